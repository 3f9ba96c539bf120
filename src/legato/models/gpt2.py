"""GPT-2: learned positions, layer norm, plain MLP; matrices stored transposed."""

from legato.models.config import Config
from legato.models.parts import ACTS, derived_head_dim
from legato.models.spec import AddedTable, Arch, Attention, Embedding, Head, Layer, Mlp, Norm, Proj, Residual

ARCHITECTURES = ("GPT2LMHeadModel",)
ABSENT = {"tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    hidden, heads, eps = c.integer("n_embd"), c.integer("n_head"), c.number("layer_norm_epsilon")
    positions, dim = c.integer("n_positions"), derived_head_dim(c, "n_embd", "n_head")
    c.only("scale_attn_weights", True)
    c.only("scale_attn_by_inverse_layer_idx", False)
    c.unused("n_ctx", *(f"summary_{k}" for k in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    attn = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        qkv=(Proj("attn.c_attn", True, "columns"),),
        out=Proj("attn.c_proj", True, "columns"),
        scale=dim**-0.5,
        rope=None,
    )
    mlp = Mlp(
        width=c.integer("n_inner", 4 * hidden),
        act=c.choice("activation_function", ACTS),
        up=Proj("mlp.c_fc", True, "columns"),
        down=Proj("mlp.c_proj", True, "columns"),
    )
    blocks = (Residual(Norm("ln_1", "layer", eps, True), attn), Residual(Norm("ln_2", "layer", eps, True), mlp))
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=hidden,
        vocab=c.integer("vocab_size"),
        max_position=positions,
        embedding=Embedding("transformer.wte", added=(AddedTable("transformer.wpe", positions, "position"),)),
        layers=tuple(Layer(f"transformer.h.{i}.", blocks) for i in range(c.integer("n_layer"))),
        norm=Norm("transformer.ln_f", "layer", eps, True),
        head=Head("lm_head", tied=c.flag("tie_word_embeddings")),
        ignored=("*.attn.bias", "*.attn.masked_bias"),
        runs=False,
    )
