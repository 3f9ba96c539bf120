"""Mamba-2: a state per sequence instead of keys and values."""

from legato.models.config import Config
from legato.models.spec import Arch, Embedding, Head, Layer, Norm, Proj, Residual
from legato.models.spec_bodies import StateSpace

ARCHITECTURES = ("Mamba2ForCausalLM",)


def arch(c: Config) -> Arch:
    eps = c.number("layer_norm_epsilon")
    c.only("hidden_act", "silu")
    c.only("use_bias", False)
    c.only("use_conv_bias", True)
    c.only("time_step_limit", [0.0, {"__float__": "Infinity"}])
    c.unused("expand", "residual_in_fp32", "rescale_prenorm_residual", "rms_norm")
    c.unused(*(f"time_step_{name}" for name in ("floor", "max", "min", "rank")))
    mixer = StateSpace(
        name="mixer",
        heads=c.integer("num_heads"),
        head_dim=c.integer("head_dim"),
        state=c.integer("state_size"),
        groups=c.integer("n_groups"),
        kernel=c.integer("conv_kernel"),
        chunk=c.integer("chunk_size"),
        norm=Norm("mixer.norm", "rms", eps),
        into=Proj("mixer.in_proj"),
        out=Proj("mixer.out_proj"),
    )
    block = Residual(Norm("norm", "rms", eps), mixer)
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=c.integer("hidden_size"),
        vocab=c.integer("vocab_size"),
        max_position=1 << 20,  # the state has no limit
        embedding=Embedding("backbone.embeddings"),
        layers=tuple(Layer(f"backbone.layers.{i}.", (block,)) for i in range(c.integer("num_hidden_layers"))),
        norm=Norm("backbone.norm_f", "rms", eps),
        head=Head("lm_head", tied=c.flag("tie_word_embeddings")),
        runs=False,
    )
