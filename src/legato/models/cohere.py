"""Cohere Command-R: layer norm, attention and MLP in parallel, rope on neighbouring pairs, scaled logits."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, gated_mlp, head_dim
from legato.models.rope import rope
from legato.models.spec import Arch, Norm, Parallel

ARCHITECTURES = ("CohereForCausalLM",)
ABSENT = {"tie_word_embeddings": True}


def arch(c: Config) -> Arch:
    c.only("use_qk_norm", False)
    bias, eps = c.flag("attention_bias"), c.number("layer_norm_eps")
    attn = attention(c, rope=rope(c, head_dim(c)), qkv_bias=bias, out_bias=bias, pairs=True)
    block = Parallel(tuple((Norm("input_layernorm", "layer", eps), body) for body in (attn, gated_mlp(c))))
    return decoder(
        c,
        [(block,)] * c.integer("num_hidden_layers"),
        runs=False,
        norm=Norm("model.norm", "layer", eps),
        logit_scale=c.number("logit_scale"),
    )
