"""Gemma 3 (text): norms before and after each body, stored minus one; windows of two kinds of layers, each its rope."""

from legato.models.config import Config
from legato.models.parts import ACTS, attention, decoder, head_dim, rms, windows
from legato.models.rope import ropes_by_type
from legato.models.spec import Arch, Block, GatedMlp, Proj, Residual

ARCHITECTURES = ("Gemma3ForCausalLM",)
ABSENT = {"tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    c.only("use_bidirectional_attention", False)
    c.unused("_sliding_window_pattern", "sliding_window_pattern")
    ropes, bias = ropes_by_type(c, head_dim(c)), c.flag("attention_bias")
    mlp = GatedMlp(
        width=c.integer("intermediate_size"),
        act=c.choice("hidden_activation", ACTS),
        gate_up=(Proj("mlp.gate_proj"), Proj("mlp.up_proj")),
        down=Proj("mlp.down_proj"),
    )

    def blocks(window: int | None) -> tuple[Block, ...]:
        attn = attention(
            c,
            rope=ropes["sliding_attention" if window else "full_attention"],
            window=window,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=True,
            scale=c.integer("query_pre_attn_scalar") ** -0.5,
            norm_view="plus_one",
        )
        norms = [
            rms(c, f"{name}_layernorm", "plus_one")
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        ]
        return Residual(norms[0], attn, post=norms[1]), Residual(norms[2], mlp, post=norms[3])

    return decoder(
        c,
        [blocks(window) for window in windows(c)],
        runs=False,
        norm=rms(c, "model.norm", "plus_one"),
        embed_scale=c.integer("hidden_size") ** 0.5,
        logit_cap=c.number("final_logit_softcapping", None),
    )
