"""Qwen2 and Qwen2.5: the Llama block with biases on q, k and v."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, late_windows, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("Qwen2ForCausalLM",)
ABSENT = {"max_window_layers": 28, "num_key_value_heads": 32, "sliding_window": 4096}


def arch(c: Config) -> Arch:
    rotary, mlp = rope(c, head_dim(c)), gated_mlp(c)
    return decoder(c, [pre_norm(c, attention(c, rope=rotary, window=w, qkv_bias=True), mlp) for w in late_windows(c)])
