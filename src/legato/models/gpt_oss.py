"""gpt-oss: attention with sinks and biases, windows in every second layer, experts with biases and a clamped gate."""

from legato.models.config import Config
from legato.models.parts import attention, decoder, head_dim, pre_norm, windows
from legato.models.rope import rope
from legato.models.spec import Arch, Proj
from legato.models.spec_bodies import ClampedExperts, Moe, SinkAttention, TopKRouter

ARCHITECTURES = ("GptOssForCausalLM",)
ABSENT = {"attention_bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def arch(c: Config) -> Arch:
    rotary, bias = rope(c, head_dim(c)), c.flag("attention_bias")
    c.only("hidden_act", "silu")
    c.unused("experts_per_token", "initial_context_length")
    moe = Moe(
        router=TopKRouter(Proj("mlp.router", True), c.part("num_experts_per_tok", "num_local_experts"), normalize=True),
        experts=ClampedExperts(
            count=c.integer("num_local_experts"),
            width=c.integer("intermediate_size"),
            gate_up="mlp.experts.gate_up_proj",
            down="mlp.experts.down_proj",
            alpha=c.number("swiglu_alpha"),
            limit=c.number("swiglu_limit"),
        ),
    )
    layers = [
        pre_norm(
            c,
            SinkAttention(attention(c, rope=rotary, window=w, qkv_bias=bias, out_bias=bias), "self_attn.sinks"),
            moe,
        )
        for w in windows(c)
    ]
    return decoder(c, layers, runs=False)
