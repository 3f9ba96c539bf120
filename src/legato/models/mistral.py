"""Mistral: the Llama block, every layer with the same sliding window (none where sliding_window is null)."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("MistralForCausalLM",)
ABSENT = {"num_key_value_heads": 8, "sliding_window": 4096}


def arch(c: Config) -> Arch:
    attn = attention(c, rope=rope(c, head_dim(c)), window=c.integer("sliding_window", None))
    return decoder(c, [pre_norm(c, attn, gated_mlp(c))] * c.integer("num_hidden_layers"))
