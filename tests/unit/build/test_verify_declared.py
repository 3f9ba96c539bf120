"""Every operand of every declared op is checked: one that does not fit is refused, in every plan of the proof."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from test_declared import NAMES, plan_of

from legato.build.plan import Buffer, Op, Plan, Tensor
from legato.build.verify import PlanError, verify
from legato.build.verify_declared import CHECKS

PLANS = {name: plan_of(name, format="bf16") for name in NAMES}
ODD_BUFFER = Buffer("odd", 7)
ODD_TENSOR = Tensor("odd", "vector", (7,), ("odd",), "f32")


def operands() -> Iterator[tuple[str, str]]:
    """(op kind, field) of every operand, and of the cache positions."""
    for op in CHECKS:
        for name in (*op.reads, *op.writes, *op.weights, *({"group", "layer"} & set(op.__dataclass_fields__))):
            yield op.kind, name


def first_use(kind: str) -> tuple[Plan, int, Any]:
    return next((plan, i, op) for plan in PLANS.values() for i, op in enumerate(plan.ops) if op.kind == kind)


def test_every_declared_op_is_in_a_plan() -> None:
    used = {type(op) for plan in PLANS.values() for op in plan.ops}
    assert set(CHECKS) <= used


@pytest.mark.parametrize(("kind", "field"), sorted(set(operands())))
def test_an_operand_that_does_not_fit_is_refused(kind: str, field: str) -> None:
    plan, i, op = first_use(kind)
    wrong: Any = 9 if field in ("group", "layer") else "odd"
    changed: Op = replace(op, **{field: wrong})
    broken = replace(
        plan,
        buffers=(*plan.buffers, ODD_BUFFER),
        tensors=(*plan.tensors, ODD_TENSOR),
        ops=(*plan.ops[:i], changed, *plan.ops[i + 1 :]),
    )
    with pytest.raises(PlanError, match=rf"op {i} \({kind}\)"):
        verify(broken)
