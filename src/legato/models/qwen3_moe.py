"""Qwen3 with experts in all layers but those listed, or in every n-th one."""

from legato.models.config import Config
from legato.models.parts import ACTS, attention, decoder, gated_mlp, head_dim, late_windows, pre_norm
from legato.models.rope import rope
from legato.models.spec import Arch, Body, Proj
from legato.models.spec_bodies import Experts, Moe, TopKRouter

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
ABSENT = {"decoder_sparse_step": 1, "max_window_layers": 28, "num_key_value_heads": 4, "sliding_window": 4096}


def arch(c: Config) -> Arch:
    rotary, bias = rope(c, head_dim(c)), c.flag("attention_bias")
    expert, experts = "mlp.experts.{}.", "num_local_experts" if "num_local_experts" in c else "num_experts"
    moe = Moe(
        router=TopKRouter(Proj("mlp.gate"), c.part("num_experts_per_tok", experts), c.flag("norm_topk_prob")),
        experts=Experts(
            count=c.integer(experts),
            width=c.integer("moe_intermediate_size"),
            act=c.choice("hidden_act", ACTS),
            gate=expert + "gate_proj",
            up=expert + "up_proj",
            down=expert + "down_proj",
        ),
    )
    dense, step = c.get("mlp_only_layers", []), c.integer("decoder_sparse_step")
    if not isinstance(dense, list):
        raise c.error("mlp_only_layers", f"is {dense!r}, not a list of layers")

    def mlp(i: int) -> Body:
        return gated_mlp(c) if i in dense or (i + 1) % step else moe

    c.unused("intermediate_size")
    layers = [
        pre_norm(c, attention(c, rope=rotary, window=w, qkv_bias=bias, out_bias=bias, qk_norm=True), mlp(i))
        for i, w in enumerate(late_windows(c))
    ]
    return decoder(c, layers, runs=False)
