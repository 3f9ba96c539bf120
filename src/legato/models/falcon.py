"""Falcon: layer norm, attention and MLP in parallel, few KV heads, rope or ALiBi; q, k, v stored per KV head."""

from legato.models.config import Config
from legato.models.parts import ACTS, derived_head_dim
from legato.models.rope import alibi, rope
from legato.models.spec import Arch, Attention, Block, Embedding, Head, Layer, Mlp, Norm, Parallel, Proj, Residual

ARCHITECTURES = ("FalconForCausalLM",)
ABSENT = {"multi_query": True, "parallel_attn": True, "tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    hidden, heads, eps = c.integer("hidden_size"), c.integer("num_attention_heads"), c.number("layer_norm_epsilon")
    dim, bias, grouped = (
        derived_head_dim(c, "hidden_size", "num_attention_heads"),
        c.flag("bias"),
        c.flag("new_decoder_architecture"),
    )
    few = c.integer("num_kv_heads", heads) if grouped else 1
    kv_heads = few if grouped or c.flag("multi_query") else heads
    c.unused("multi_query", "num_kv_heads")
    attn = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        qkv=(Proj("self_attention.query_key_value", bias, f"by_kv_head:{heads},{kv_heads},{dim}"),),
        out=Proj("self_attention.dense", bias),
        scale=dim**-0.5,
        rope=alibi(heads) if c.flag("alibi") else rope(c, dim),
    )
    width, act = c.integer("ffn_hidden_size", 4 * hidden), c.choice("activation", ACTS, "gelu")
    mlp = Mlp(width, act, Proj("mlp.dense_h_to_4h", bias), Proj("mlp.dense_4h_to_h", bias))

    def norm(name: str) -> Norm:
        return Norm(name, "layer", eps, True)

    c.unused("num_ln_in_parallel_attn")
    blocks: tuple[Block, ...] = (Parallel(((norm("input_layernorm"), attn), (norm("input_layernorm"), mlp))),)
    if grouped and c.integer("num_ln_in_parallel_attn", 2) == 2:
        blocks = (Parallel(((norm("ln_attn"), attn), (norm("ln_mlp"), mlp))),)
    elif not (grouped or c.flag("parallel_attn")):
        blocks = (Residual(norm("input_layernorm"), attn), Residual(norm("post_attention_layernorm"), mlp))
    c.unused("parallel_attn")
    return Arch(
        name=c.architecture,
        file=c.file,
        hidden=hidden,
        vocab=c.integer("vocab_size"),
        max_position=c.integer("max_position_embeddings", 2048),
        embedding=Embedding("transformer.word_embeddings"),
        layers=tuple(Layer(f"transformer.h.{i}.", blocks) for i in range(c.integer("num_hidden_layers"))),
        norm=norm("transformer.ln_f"),
        head=Head("lm_head", tied=c.flag("tie_word_embeddings")),
        runs=False,
    )
