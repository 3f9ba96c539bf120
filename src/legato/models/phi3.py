"""Phi-3: the Llama block with q, k, v in one matrix, gate and up in one, and a rope with two sets of divisors."""

from dataclasses import replace

from legato.models.config import Config
from legato.models.parts import ACTS, attention, decoder, head_dim, pre_norm
from legato.models.rope import long_rope
from legato.models.spec import Arch, GatedMlp, Proj

ARCHITECTURES = ("Phi3ForCausalLM",)


def arch(c: Config) -> Arch:
    attn = attention(c, rope=long_rope(c, head_dim(c)), window=c.integer("sliding_window", None))
    attn = replace(attn, qkv=(Proj("self_attn.qkv_proj"),))
    mlp = GatedMlp(
        width=c.integer("intermediate_size"),
        act=c.choice("hidden_act", ACTS),
        gate_up=(Proj("mlp.gate_up_proj"),),
        down=Proj("mlp.down_proj"),
    )
    return decoder(c, [pre_norm(c, attn, mlp)] * c.integer("num_hidden_layers"), runs=False)
