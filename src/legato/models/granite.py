"""Granite 3: the Llama block with multipliers on embedding, attention, residual adds and logits."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("GraniteForCausalLM",)


def arch(c: Config) -> Arch:
    bias = c.flag("attention_bias")
    attn = attention(
        c,
        rope=rope(c, head_dim(c)),
        qkv_bias=bias,
        out_bias=bias,
        scale=c.number("attention_multiplier", 1.0),
    )
    mlp = gated_mlp(c, bias=c.flag("mlp_bias"))
    return decoder(
        c,
        [pre_norm(c, attn, mlp, scale=c.number("residual_multiplier", 1.0))] * c.integer("num_hidden_layers"),
        embed_scale=c.number("embedding_multiplier", 1.0),
        logit_scale=1 / c.positive("logits_scaling", 1.0),
    )
