"""Gemma 3n (text): several residual streams, inputs per layer, and late layers that share earlier keys and values."""

from dataclasses import replace

from legato.models import spec_bodies as bodies
from legato.models.config import Config
from legato.models.parts import ACTS, attention, decoder, head_dim, rms, windows
from legato.models.rope import ropes_by_type
from legato.models.spec import Arch, Block, Body, GatedMlp, Proj, Residual, Streams

ARCHITECTURES = ("Gemma3nForCausalLM",)
ABSENT = {"tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    n, hidden, part = (c.integer(k) for k in ("num_hidden_layers", "hidden_size", "hidden_size_per_layer_input"))
    for key, value in (("altup_active_idx", 0), ("altup_correct_scale", True), ("attention_bias", False)):
        c.only(key, value)
    c.unused("altup_coef_clip")
    ropes, window, act = ropes_by_type(c, head_dim(c)), windows(c), c.choice("hidden_activation", ACTS)
    first_shared = n - c.integer("num_kv_shared_layers")
    widths, sparsity = c.entries("intermediate_size", n), c.entries("activation_sparsity_pattern", n, [0.0] * n)

    def attn(i: int) -> Body:
        rope = ropes["sliding_attention" if window[i] else "full_attention"]
        a = attention(c, rope=rope, window=window[i], qk_norm=True, scale=1.0)
        if i < first_shared:
            return bodies.NormedAttention(a)
        source = max(j for j in range(first_shared) if window[j] == window[i])
        return bodies.SharedAttention(replace(a, qkv=a.qkv[:1], k_norm=None), source)

    def mlp(i: int) -> Body:
        dense = GatedMlp(widths[i], act, (Proj("mlp.gate_proj"), Proj("mlp.up_proj")), Proj("mlp.down_proj"))
        return bodies.SparseMlp(dense, sparsity[i]) if sparsity[i] else dense

    def blocks(i: int) -> tuple[Block, ...]:
        return (
            bodies.AltUpPredict("altup", c.number("rms_norm_eps")),
            bodies.LaurelAttention(
                rms(c, "input_layernorm"), attn(i), rms(c, "post_attention_layernorm"), c.integer("laurel_rank"),
                Proj("laurel.linear_left"), Proj("laurel.linear_right"), rms(c, "laurel.post_laurel_norm"),
            ),
            Residual(rms(c, "pre_feedforward_layernorm"), mlp(i), post=rms(c, "post_feedforward_layernorm")),
            bodies.AltUpCorrect(
                "altup", c.number("rms_norm_eps"), Proj("per_layer_input_gate"), act,
                Proj("per_layer_projection"), rms(c, "post_per_layer_input_norm"),
            ),
        )  # fmt: skip

    others = range(c.integer("altup_num_inputs") - 1)
    streams = Streams(
        len(others) + 1, tuple(Proj(f"model.altup_projections.{i}") for i in others),
        tuple(Proj(f"model.altup_unembed_projections.{i}") for i in others), "model.embed_tokens_per_layer",
        c.integer("vocab_size_per_layer_input"), part**0.5, part, Proj("model.per_layer_model_projection"),
        rms(c, "model.per_layer_projection_norm"), hidden**-0.5,
    )  # fmt: skip
    cap = c.number("final_logit_softcapping", None)
    layers = [blocks(i) for i in range(n)]
    return decoder(c, layers, runs=False, embed_scale=hidden**0.5, logit_cap=cap, streams=streams)
