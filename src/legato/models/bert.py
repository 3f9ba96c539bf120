"""BERT: every row sees every other, norms after the adds, a pooled vector instead of logits."""

from legato.models.config import Config
from legato.models.parts import ACTS, derived_head_dim
from legato.models.spec import AddedTable, Arch, Embedding, Layer, Mlp, Norm, Pooler, PostNorm, Proj
from legato.models.spec_bodies import EncoderAttention

ARCHITECTURES = ("BertModel",)
ABSENT = {"type_vocab_size": 2}


def arch(c: Config) -> Arch:
    hidden, heads, eps = c.integer("hidden_size"), c.integer("num_attention_heads"), c.number("layer_norm_eps")
    positions, dim = c.integer("max_position_embeddings"), derived_head_dim(c, "hidden_size", "num_attention_heads")
    c.only("position_embedding_type", "absolute")
    c.unused("tie_word_embeddings")
    attn = EncoderAttention(
        heads=heads,
        head_dim=dim,
        qkv=tuple(Proj(f"attention.self.{name}", True) for name in ("query", "key", "value")),
        out=Proj("attention.output.dense", True),
        scale=dim**-0.5,
    )
    mlp = Mlp(
        width=c.integer("intermediate_size"),
        act=c.choice("hidden_act", ACTS),
        up=Proj("intermediate.dense", True),
        down=Proj("output.dense", True),
    )

    def norm(name: str) -> Norm:
        return Norm(f"{name}.LayerNorm", "layer", eps, True)

    blocks = (PostNorm(attn, norm("attention.output")), PostNorm(mlp, norm("output")))
    added = (
        AddedTable("embeddings.position_embeddings", positions, "position"),
        AddedTable("embeddings.token_type_embeddings", c.integer("type_vocab_size"), "segment"),
    )
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=hidden,
        vocab=c.integer("vocab_size"),
        max_position=positions,
        embedding=Embedding("embeddings.word_embeddings", added=added, norm=norm("embeddings")),
        layers=tuple(Layer(f"encoder.layer.{i}.", blocks) for i in range(c.integer("num_hidden_layers"))),
        norm=None,
        head=Pooler(Proj("pooler.dense", True)),
        ignored=("embeddings.position_ids",),
        runs=False,
    )
