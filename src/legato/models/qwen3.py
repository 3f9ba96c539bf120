"""Qwen3 dense: the Llama block with an RMS norm on each head of q and k."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, late_windows, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("Qwen3ForCausalLM",)
ABSENT = {"head_dim": 128, "max_window_layers": 28, "num_key_value_heads": 32, "sliding_window": 4096}


def arch(c: Config) -> Arch:
    rotary, mlp, bias = rope(c, head_dim(c)), gated_mlp(c), c.flag("attention_bias")
    layers = [
        pre_norm(c, attention(c, rope=rotary, window=w, qkv_bias=bias, out_bias=bias, qk_norm=True), mlp)
        for w in late_windows(c)
    ]
    return decoder(c, layers)
