"""Mixtral: the Mistral block with experts; the weights of those chosen sum to one."""

from legato.models.config import Config
from legato.models.parts import ACTS, attention, decoder, head_dim, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch, Proj
from legato.models.spec_bodies import Experts, Moe, TopKRouter

ARCHITECTURES = ("MixtralForCausalLM",)
ABSENT = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "rope_theta": 1e6}


def arch(c: Config) -> Arch:
    attn = attention(c, rope=rope(c, head_dim(c)), window=c.integer("sliding_window", None))
    expert = "block_sparse_moe.experts.{}."
    moe = Moe(
        router=TopKRouter(
            Proj("block_sparse_moe.gate"), c.part("num_experts_per_tok", "num_local_experts"), normalize=True
        ),
        experts=Experts(
            count=c.integer("num_local_experts"),
            width=c.integer("intermediate_size"),
            act=c.choice("hidden_act", ACTS),
            gate=expert + "w1",
            up=expert + "w3",
            down=expert + "w2",
        ),
    )
    return decoder(c, [pre_norm(c, attn, moe)] * c.integer("num_hidden_layers"), runs=False)
