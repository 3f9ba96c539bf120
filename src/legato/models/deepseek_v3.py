"""DeepSeek-V3: attention over cached latents, experts chosen by groups beside a shared one, first layers dense."""

from legato.models.config import Config
from legato.models.parts import ACTS, decoder, gated_mlp, pre_norm, rms
from legato.models.rope import rope, yarn_scale
from legato.models.spec import Arch, Proj
from legato.models.spec_bodies import Experts, GroupedRouter, LatentAttention, Moe

ARCHITECTURES = ("DeepseekV3ForCausalLM",)


def arch(c: Config) -> Arch:
    heads, nope, turned = (c.integer(k) for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
    rank, value = c.integer("kv_lora_rank"), c.integer("v_head_dim")
    c.only("attention_bias", False)
    c.only("rope_interleave", True)
    c.unused("num_key_value_heads", "head_dim", "qk_head_dim", "num_nextn_predict_layers", "ep_size", "moe_layer_freq")
    c.unused("topk_method", "scoring_func", "aux_loss_alpha", "seq_aux")
    attn = LatentAttention(
        heads=heads,
        nope_dim=nope,
        rope_dim=turned,
        value_dim=value,
        q_rank=c.integer("q_lora_rank"),
        rank=rank,
        q_down=Proj("self_attn.q_a_proj"),
        q_norm=rms(c, "self_attn.q_a_layernorm"),
        q_up=Proj("self_attn.q_b_proj", view=f"pairs:{heads},{nope + turned},{nope}"),
        kv_down=Proj("self_attn.kv_a_proj_with_mqa", view=f"pairs:1,{rank + turned},{rank}"),
        kv_norm=rms(c, "self_attn.kv_a_layernorm"),
        kv_up=Proj("self_attn.kv_b_proj"),
        out=Proj("self_attn.o_proj"),
        rope=rope(c, turned),
        scale=(nope + turned) ** -0.5 * yarn_scale(c),
    )
    width, expert = c.integer("moe_intermediate_size"), "mlp.experts.{}."
    if (experts := c.integer("n_routed_experts")) % c.integer("n_group"):
        raise c.error("n_group", f"is {c.integer('n_group')}, which does not divide 'n_routed_experts' ({experts})")
    moe = Moe(
        router=GroupedRouter(
            Proj("mlp.gate"), "mlp.gate.e_score_correction_bias", c.part("num_experts_per_tok", "n_routed_experts"),
            c.integer("n_group"), c.part("topk_group", "n_group"), c.flag("norm_topk_prob"),
            c.number("routed_scaling_factor"),
        ),
        experts=Experts(
            c.integer("n_routed_experts"), width, c.choice("hidden_act", ACTS),
            expert + "gate_proj", expert + "up_proj", expert + "down_proj",
        ),
        shared=gated_mlp(c, name="mlp.shared_experts", width=width * c.integer("n_shared_experts")),
    )  # fmt: skip
    dense = c.count("first_k_dense_replace")
    layers = [pre_norm(c, attn, gated_mlp(c) if i < dense else moe) for i in range(c.integer("num_hidden_layers"))]
    return decoder(c, layers, runs=False)
