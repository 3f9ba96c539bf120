"""SmolLM3: the Llama block; every fourth layer has no rope, and (if windows are on) such layers have a window."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim, pre_norm, windows
from legato.models.rope import rope
from legato.models.spec import Arch

ARCHITECTURES = ("SmolLM3ForCausalLM",)
ABSENT = {
    "no_rope_layer_interval": 4,
    "num_key_value_heads": 4,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
}


def arch(c: Config) -> Arch:
    n, every = c.integer("num_hidden_layers"), c.integer("no_rope_layer_interval")
    has_rope = [bool(r) for r in c.entries("no_rope_layers", n, [(i + 1) % every != 0 for i in range(n)])]
    c.unused("max_window_layers")
    rotary = rope(c, head_dim(c))
    bias = c.flag("attention_bias")
    window = windows(c, [not r for r in has_rope]) if c.flag("use_sliding_window") else [None] * n
    c.unused("layer_types", "sliding_window")
    mlp = gated_mlp(c, bias=c.flag("mlp_bias"))
    layers = [
        pre_norm(c, attention(c, rope=rotary if r else None, window=w, qkv_bias=bias, out_bias=bias), mlp)
        for r, w in zip(has_rope, window, strict=True)
    ]
    return decoder(c, layers)
