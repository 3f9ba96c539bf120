"""Llama 2 and 3, SmolLM2: rotary attention with grouped KV heads, gated MLP."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("LlamaForCausalLM",)


def arch(c: Config) -> Arch:
    bias = c.flag("attention_bias")
    attn = attention(c, rope=rope(c, head_dim(c)), qkv_bias=bias, out_bias=bias)
    mlp = gated_mlp(c, bias=c.flag("mlp_bias"))
    return decoder(c, [pre_norm(c, attn, mlp)] * c.integer("num_hidden_layers"))
