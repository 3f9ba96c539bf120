"""Parts that Llama-like families share: which config.json key gives what, and the names of the tensors."""

from collections.abc import Sequence

from legato.models.config import Config
from legato.models.spec import (
    Alibi,
    Arch,
    Attention,
    AxisRope,
    Block,
    Body,
    Embedding,
    GatedMlp,
    Head,
    Layer,
    LongRope,
    Norm,
    Proj,
    Residual,
    Rope,
    Streams,
)

__all__ = [
    "ACTS",
    "attention",
    "decoder",
    "derived_head_dim",
    "gated_mlp",
    "head_dim",
    "late_windows",
    "pre_norm",
    "rms",
    "windows",
]

# config.json names of activations -> the plan's
ACTS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def rms(c: Config, name: str, view: str = "") -> Norm:
    return Norm(name, "rms", c.positive("rms_norm_eps"), view=view)


def head_dim(c: Config) -> int:
    """An explicit head_dim wins; absent or null: hidden_size / num_attention_heads."""
    dim = c.integer("head_dim", None) or derived_head_dim(c, "hidden_size", "num_attention_heads")
    if dim % 2:
        raise c.error("head_dim", f"is {dim}, not even")
    return dim


def derived_head_dim(c: Config, hidden: str, heads: str) -> int:
    """Width over heads, by the names of their keys."""
    width, count = c.integer(hidden), c.integer(heads)
    if width % count:
        raise c.error(heads, f"is {count}, which does not divide {hidden} {width}")
    if width // count > 1 << 16:
        raise c.error(heads, f"is {count}, too few for {hidden} {width}")
    return width // count


def attention(
    c: Config,
    *,
    rope: Rope | LongRope | AxisRope | Alibi | None,
    window: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    scale: float | None = None,
    pairs: bool = False,
    norm_view: str = "",
) -> Attention:
    """self_attn.{q,k,v,o}_proj, and with qk_norm self_attn.{q,k}_norm. pairs: rope turns neighbouring rows."""
    heads, dim = c.integer("num_attention_heads"), head_dim(c)
    kv_heads = c.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.error("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        qkv=(
            Proj("self_attn.q_proj", qkv_bias, f"pairs:{heads},{dim},0" if pairs else ""),
            Proj("self_attn.k_proj", qkv_bias, f"pairs:{kv_heads},{dim},0" if pairs else ""),
            Proj("self_attn.v_proj", qkv_bias),
        ),
        out=Proj("self_attn.o_proj", out_bias),
        scale=dim**-0.5 if scale is None else scale,
        rope=rope,
        window=window,
        q_norm=rms(c, "self_attn.q_norm", norm_view) if qk_norm else None,
        k_norm=rms(c, "self_attn.k_norm", norm_view) if qk_norm else None,
    )


def gated_mlp(c: Config, *, bias: bool = False, name: str = "mlp", width: int | None = None) -> GatedMlp:
    """`name`.{gate,up,down}_proj."""
    return GatedMlp(
        width=width or c.integer("intermediate_size"),
        act=c.choice("hidden_act", ACTS),
        gate_up=(Proj(f"{name}.gate_proj", bias), Proj(f"{name}.up_proj", bias)),
        down=Proj(f"{name}.down_proj", bias),
    )


def windows(c: Config, default: Sequence[bool] | None = None) -> list[int | None]:
    """Window of each layer, from `layer_types`, or from `default` (True: windowed) where the config has none."""
    n = c.integer("num_hidden_layers")
    size = c.integer("sliding_window", None)
    if "layer_types" in c:
        types = c.entries("layer_types", n)
        if unknown := [t for t in types if t not in ("full_attention", "sliding_attention")]:
            raise c.error("layer_types", f"holds {unknown[0]!r}")
        sliding: Sequence[bool] = [t == "sliding_attention" for t in types]
    else:
        sliding = default or [False] * n
    if size is None and any(sliding):
        raise c.error("sliding_window", "is missing, but layers with a window are asked for")
    return [size if s else None for s in sliding]


def late_windows(c: Config) -> list[int | None]:
    """Qwen's rule: off without `use_sliding_window`; else `layer_types`, or all layers from `max_window_layers` on."""
    n = c.integer("num_hidden_layers")
    first = c.count("max_window_layers")
    if c.flag("use_sliding_window"):
        return windows(c, [i >= first for i in range(n)])
    c.unused("sliding_window", "layer_types")
    return [None] * n


def pre_norm(c: Config, first: Body, second: Body, *, scale: float = 1.0) -> tuple[Block, ...]:
    """Llama's two blocks: each body behind its norm."""
    return (
        Residual(rms(c, "input_layernorm"), first, scale),
        Residual(rms(c, "post_attention_layernorm"), second, scale),
    )


def decoder(
    c: Config,
    layers: Sequence[tuple[Block, ...]],
    *,
    runs: bool = True,
    norm: Norm | None = None,
    embed_scale: float = 1.0,
    logit_scale: float = 1.0,
    logit_cap: float | None = None,
    streams: Streams | None = None,
    ignored: tuple[str, ...] = (),
) -> Arch:
    """A decoder in Llama's names, given the blocks of each layer."""
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=c.integer("hidden_size"),
        vocab=c.integer("vocab_size"),
        max_position=c.integer("max_position_embeddings"),
        embedding=Embedding("model.embed_tokens", embed_scale),
        layers=tuple(Layer(f"model.layers.{i}.", blocks) for i, blocks in enumerate(layers)),
        norm=norm or rms(c, "model.norm"),
        head=Head("lm_head", tied=c.flag("tie_word_embeddings"), scale=logit_scale, cap=logit_cap),
        streams=streams,
        ignored=("*.rotary_emb.inv_freq", *ignored),
        runs=runs,
    )
