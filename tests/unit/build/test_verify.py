"""Each way to break a plan is caught, with a message that names the part."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from legato.build import plan as ops
from legato.build.lower import lower
from legato.build.plan import Buffer, Op, Plan, Rope, Tensor
from legato.build.verify import PlanError, verify
from legato.models.find import find
from support.tiny_models import tiny_config, tiny_source


def good() -> Plan:
    source = tiny_source(tiny_config("qwen3", num_hidden_layers=2, attention_bias=True))
    return lower(find(source.config, "config.json"), source)


PLAN = good()


def index(kind: type[Op], n: int = 0) -> int:
    return [i for i, op in enumerate(PLAN.ops) if isinstance(op, kind)][n]


def with_op(kind: type[Op], n: int = 0, **changes: Any) -> Plan:
    i = index(kind, n)
    return replace(PLAN, ops=(*PLAN.ops[:i], replace(PLAN.ops[i], **changes), *PLAN.ops[i + 1 :]))


def without_op(i: int) -> Plan:
    return replace(PLAN, ops=PLAN.ops[:i] + PLAN.ops[i + 1 :])


def swapped(i: int, j: int) -> Plan:
    order = list(PLAN.ops)
    order[i], order[j] = order[j], order[i]
    return replace(PLAN, ops=tuple(order))


def with_tensor(name: str, **changes: Any) -> Plan:
    return replace(PLAN, tensors=tuple(replace(t, **changes) if t.name == name else t for t in PLAN.tensors))


def with_buffer(name: str, **changes: Any) -> Plan:
    return replace(PLAN, buffers=tuple(replace(b, **changes) if b.name == name else b for b in PLAN.buffers))


def with_group(**changes: Any) -> Plan:
    return replace(PLAN, groups=(replace(PLAN.groups[0], **changes),))


LINEAR, GLU = 0, 2  # nth linear of a layer: qkv, out, gate_up, down
ROPE = PLAN.ropes[0]
TENSOR = Tensor("extra", "vector", (64,), ("extra.weight",), "f32")
BREAKS: dict[str, tuple[Callable[[], Plan], str]] = {
    "undefined buffer": (lambda: with_op(ops.Norm, x="nowhere"), "buffer 'nowhere' is not defined"),
    "undefined tensor": (lambda: with_op(ops.Norm, weight="nothing"), "tensor 'nothing' is not defined"),
    "read before write": (lambda: swapped(index(ops.Norm), index(ops.Linear)), "read before it is written"),
    "add before write": (lambda: without_op(0), "'x' is read before it is written"),
    "no logits": (lambda: without_op(len(PLAN.ops) - 1), "last op is not logits"),
    "empty": (lambda: replace(PLAN, ops=(), buffers=(), tensors=(), groups=(), kv_heads=(), head_dims=()), "logits"),
    "unused tensor": (lambda: replace(PLAN, tensors=(*PLAN.tensors, TENSOR)), "'extra' is never used"),
    "unused buffer": (lambda: replace(PLAN, buffers=(*PLAN.buffers, Buffer("spare", 8))), "'spare' is never read"),
    "tensor twice": (lambda: replace(PLAN, tensors=(*PLAN.tensors, PLAN.tensors[0])), "'embedding' is defined twice"),
    "buffer twice": (lambda: replace(PLAN, buffers=(*PLAN.buffers, PLAN.buffers[0])), "'x' is defined twice"),
    "tensor kind": (lambda: with_tensor("model.norm", kind="blob"), "kind 'blob'"),
    "tensor shape": (lambda: with_tensor("model.norm", shape=(63,)), r"'model.norm' has shape \[63\], not \[64\]"),
    "tensor dims": (lambda: with_tensor("model.norm", shape=(8, 8)), "tensor 'model.norm': shape"),
    "tensor format": (lambda: with_tensor("head", format="q5_k"), "format 'q5_k'"),
    "vector format": (lambda: with_tensor("model.norm", format="bf16"), "a vector is f32"),
    "table sources": (lambda: with_tensor("embedding", sources=("a", "b")), "a table has one source"),
    "repeated source": (lambda: with_tensor("layers.0.qkv", sources=("a", "a", "b")), "repeated"),
    "no sources": (lambda: with_tensor("model.norm", sources=()), "absent"),
    "not whole groups": (lambda: with_tensor("layers.0.out", format="q4_0", shape=(64, 40)), "whole groups of 32"),
    "interleave one": (lambda: with_tensor("layers.0.out", interleave=True), "must not be interleaved"),
    "glu not interleaved": (lambda: with_tensor("layers.0.gate_up", interleave=False), "must be interleaved"),
    "bias not interleaved": (lambda: with_op(ops.Linear, GLU, bias="layers.0.qkv.bias"), "has shape|interleaved"),
    "activation format": (lambda: with_tensor("layers.0.out", format="bf16"), "'attended' is f32, not bf16"),
    "matrix width": (lambda: with_tensor("layers.0.down", shape=(64, 95)), "'gated' is 96 wide, not 95"),
    "matrix height": (lambda: with_tensor("layers.0.down", shape=(63, 96)), "'x' is 64 wide, not 63"),
    "table as matrix": (lambda: with_op(ops.Linear, weight="embedding"), "is a table, not a linear"),
    "bias size": (lambda: with_tensor("layers.0.qkv.bias", shape=(96,)), "has shape"),
    "buffer width": (lambda: with_buffer("gated", width=0), "width 0"),
    "buffer format": (lambda: with_buffer("gated", format="fp4"), "format 'fp4'"),
    "buffer domain": (lambda: with_buffer("gated", domain="col"), "domain 'col'"),
    "wrong domain": (lambda: with_buffer("gated", domain="out"), "'gated' is in the out domain, not row"),
    "logits of rows": (lambda: with_buffer("selected_normed", domain="row"), "'selected_normed' is in the row"),
    "vocabulary": (lambda: replace(PLAN, vocab=81), "80 logits for a vocabulary of 81"),
    "nothing": (lambda: replace(PLAN, max_position=0), "must be positive"),
    "norm kind": (lambda: with_op(ops.Norm, norm="batch"), "norm 'batch'"),
    "rms bias": (lambda: with_op(ops.Norm, bias="model.norm"), "an rms norm has no bias"),
    "norm eps": (lambda: with_op(ops.Norm, eps=float("nan")), "eps nan"),
    "epilogue": (lambda: with_op(ops.Linear, epilogue="mul"), "epilogue 'mul'"),
    "activation": (lambda: with_op(ops.Linear, GLU, act="tanh"), "activation 'tanh'"),
    "added activation": (lambda: with_op(ops.Linear, 1, act="silu"), "adding takes no activation"),
    "stored scale": (lambda: with_op(ops.Linear, scale=2.0), "only adding takes a scale"),
    "added column": (lambda: with_op(ops.Linear, 1, column=8), "only storing takes a column"),
    "column past the end": (lambda: with_op(ops.Linear, column=8), "columns 8 to 136 are not in 'qkv'"),
    "half a buffer": (lambda: with_tensor("layers.0.qkv", shape=(96, 64)), "'qkv' is read before it is written|shape"),
    "head shape": (lambda: with_op(ops.HeadsToCache, kv_heads=1), "cache group 0 has 2 heads of 16"),
    "heads not shared": (lambda: with_op(ops.Attention, heads=3), "3 heads do not share 2 KV heads"),
    "head norm": (lambda: with_op(ops.HeadsToCache, q_norm="model.norm"), r"'model.norm' has shape \[64\], not \[16\]"),
    "cache group": (lambda: with_op(ops.Attention, group=1), "cache group 1 is not defined"),
    "cache layer": (lambda: with_op(ops.Attention, layer=2), "layer 2 is not in its cache group"),
    "layer order": (lambda: with_op(ops.HeadsToCache, layer=1), "layer 1 is out of order"),
    "layer unwritten": (lambda: with_op(ops.Attention, layer=1), "layer 1 is not written yet"),
    "layers sparse": (lambda: with_group(num_layers=3), "2 of 3 layers"),
    "window": (lambda: with_op(ops.Attention, window=8), "window 8, but cache group 0 keeps None"),
    "group kind": (lambda: with_group(kind="window"), "kind and window differ|window"),
    "group lists": (lambda: replace(PLAN, kv_heads=(2, 2)), "differ in length"),
    "rope index": (lambda: with_op(ops.HeadsToCache, rope=1), "rope 1 is not defined"),
    "rope width": (lambda: replace(PLAN, ropes=(Rope(32, (1.0,) * 16),)), "rope 0 is wider than a head"),
    "rope length": (lambda: replace(PLAN, ropes=(replace(ROPE, dim=8),)), "inv_freq does not fit dim 8"),
    "rope value": (lambda: replace(PLAN, ropes=(replace(ROPE, inv_freq=(float("inf"),) * 8),)), "out of range"),
    "rope factor": (lambda: replace(PLAN, ropes=(replace(ROPE, factor=0.0),)), "factor 0"),
    "selected width": (lambda: with_buffer("selected", width=63), "wide, not"),
}


def test_the_plan_is_good() -> None:
    verify(PLAN)


@pytest.mark.parametrize("name", BREAKS)
def test_breaks_are_caught(name: str) -> None:
    broken, message = BREAKS[name]
    with pytest.raises(PlanError, match=message):
        verify(broken())


def test_a_gap_between_columns_is_caught() -> None:
    """q, k and v as three matrices: fine in order, caught when one is missing."""
    dtypes = {"q_proj": "F32", "k_proj": "F16"}
    source = tiny_source(
        tiny_config("llama", num_hidden_layers=1), dtype=lambda name: dtypes.get(name.split(".")[-2], "BF16")
    )
    plan = lower(find(source.config, "config.json"), source)
    second = next(i for i, op in enumerate(plan.ops) if isinstance(op, ops.Linear) and op.column)
    with pytest.raises(PlanError, match="leaves a gap in 'qkv'"):
        verify(replace(plan, ops=plan.ops[:second] + plan.ops[second + 1 :]))


def test_ops_outside_the_grammar_are_caught() -> None:
    class Odd(Op):
        kind = "odd"

    with pytest.raises(PlanError, match=r"op 0 \(odd\): is not in the grammar"):
        verify(replace(PLAN, ops=(Odd(), *PLAN.ops)))
