"""GPT-NeoX, Pythia: layer norm, rope on a part of the head, attention and MLP in parallel; q, k, v stored per head."""

from legato.models.config import Config
from legato.models.parts import ACTS, derived_head_dim
from legato.models.rope import partial_rope
from legato.models.spec import Arch, Attention, Block, Embedding, Head, Layer, Mlp, Norm, Parallel, Proj, Residual

ARCHITECTURES = ("GPTNeoXForCausalLM",)
ABSENT = {"attention_bias": True, "use_parallel_residual": True}


def arch(c: Config) -> Arch:
    hidden, heads, eps = c.integer("hidden_size"), c.integer("num_attention_heads"), c.number("layer_norm_eps")
    dim, bias = derived_head_dim(c, "hidden_size", "num_attention_heads"), c.flag("attention_bias")
    c.unused("num_key_value_heads", "rotary_emb_base")
    attn = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        qkv=(Proj("attention.query_key_value", bias, f"by_kv_head:{heads},{heads},{dim}"),),
        out=Proj("attention.dense", bias),
        scale=dim**-0.5,
        rope=partial_rope(c, dim, "rotary_pct", 0.25),
    )
    mlp = Mlp(
        width=c.integer("intermediate_size"),
        act=c.choice("hidden_act", ACTS),
        up=Proj("mlp.dense_h_to_4h", True),
        down=Proj("mlp.dense_4h_to_h", True),
    )
    norms = (Norm("input_layernorm", "layer", eps, True), Norm("post_attention_layernorm", "layer", eps, True))
    one_after_the_other: tuple[Block, ...] = (Residual(norms[0], attn), Residual(norms[1], mlp))
    side_by_side: tuple[Block, ...] = (Parallel(((norms[0], attn), (norms[1], mlp))),)
    blocks = side_by_side if c.flag("use_parallel_residual") else one_after_the_other
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=hidden,
        vocab=c.integer("vocab_size"),
        max_position=c.integer("max_position_embeddings"),
        embedding=Embedding("gpt_neox.embed_in"),
        layers=tuple(Layer(f"gpt_neox.layers.{i}.", blocks) for i in range(c.integer("num_hidden_layers"))),
        norm=Norm("gpt_neox.final_layer_norm", "layer", eps, True),
        head=Head("embed_out", tied=c.flag("tie_word_embeddings")),
        ignored=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
        runs=False,
    )
