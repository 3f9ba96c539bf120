"""Bloom: layer norm also after the embedding, ALiBi, plain MLP; q, k, v stored per head."""

from legato.models.config import Config
from legato.models.parts import derived_head_dim
from legato.models.rope import alibi
from legato.models.spec import Arch, Attention, Embedding, Head, Layer, Mlp, Norm, Proj, Residual

ARCHITECTURES = ("BloomForCausalLM",)
ABSENT = {"tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    hidden, heads, eps = c.integer("hidden_size"), c.integer("n_head"), c.number("layer_norm_epsilon")
    dim = derived_head_dim(c, "hidden_size", "n_head")
    c.only("apply_residual_connection_post_layernorm", False)
    c.unused("slow_but_exact", "masked_softmax_fusion", "bias_dropout_fusion", "unk_token_id")
    attn = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        qkv=(Proj("self_attention.query_key_value", True, f"by_kv_head:{heads},{heads},{dim}"),),
        out=Proj("self_attention.dense", True),
        scale=dim**-0.5,
        rope=alibi(heads),
    )
    mlp = Mlp(4 * hidden, "gelu_tanh", Proj("mlp.dense_h_to_4h", True), Proj("mlp.dense_4h_to_h", True))

    def norm(name: str) -> Norm:
        return Norm(name, "layer", eps, True)

    blocks = (Residual(norm("input_layernorm"), attn), Residual(norm("post_attention_layernorm"), mlp))
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=hidden,
        vocab=c.integer("vocab_size"),
        max_position=c.integer("seq_length", 2048),
        embedding=Embedding("transformer.word_embeddings", norm=norm("transformer.word_embeddings_layernorm")),
        layers=tuple(Layer(f"transformer.h.{i}.", blocks) for i in range(c.integer("n_layer"))),
        norm=norm("transformer.ln_f"),
        head=Head("lm_head", tied=c.flag("tie_word_embeddings")),
        runs=False,
    )
