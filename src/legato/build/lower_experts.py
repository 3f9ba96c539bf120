"""Lowering of routers and experts."""

from legato.build import plan as ops
from legato.build import plan_declared as declared
from legato.build.scope import Bodies, Input, Out, Scope
from legato.models.spec_bodies import ClampedExperts, Experts, GroupedRouter, Moe, TopKRouter

__all__ = ["BODIES"]


def _moe(s: Scope, x: Input, body: Moe, out: Out) -> None:
    """Router and experts read the same input; the shared expert, if any, adds to the same output."""
    assert out.epilogue == "add"
    matrix = s.one("router", body.router.proj, body.experts.count, s.b.arch.hidden)
    scores = s.store("router", x.for_weight(matrix[0]), matrix)
    routes = s.b.buffer("routes", 2 * body.router.top_k)
    s.b.ops.append(_route(s, body.router, scores, routes, body.experts.count))
    experts = body.experts
    if isinstance(experts, Experts):
        gate_up, down = _numbered(s, experts)
        s.b.ops.append(
            declared.Experts(x.for_weight(gate_up), routes, out.buffer, gate_up, down, experts.act, out.scale)
        )
    else:
        gate_up, gate_up_bias, down, down_bias = _stacked(s, experts)
        s.b.ops.append(
            declared.ClampedExperts(
                x.for_weight(gate_up), routes, out.buffer, gate_up, gate_up_bias, down, down_bias,
                experts.alpha, experts.limit, out.scale,
            )
        )  # fmt: skip
    if body.shared:
        s.body(x, body.shared, out)


def _route(s: Scope, router: TopKRouter | GroupedRouter, scores: str, routes: str, experts: int) -> ops.Op:
    if isinstance(router, TopKRouter):
        return declared.RouteTopK(scores, routes, router.top_k, router.normalize)
    bias = s.vector("router.choice_bias", router.bias, experts)
    return declared.RouteGrouped(
        scores, routes, bias, router.top_k, router.groups, router.top_groups, router.normalize, router.scale
    )


def _numbered(s: Scope, e: Experts) -> tuple[str, str]:
    """(gate_up, down): gate and up of expert 0, of expert 1, ..."""
    hidden = s.b.arch.hidden
    both = [f"{name.format(i)}.weight" for i in range(e.count) for name in (e.gate, e.up)]
    gate_up = s.experts("experts.gate_up", both, (e.width, hidden), (e.count, 2 * e.width, hidden))
    downs = [f"{e.down.format(i)}.weight" for i in range(e.count)]
    return gate_up, s.experts("experts.down", downs, (hidden, e.width), (e.count, hidden, e.width))


def _stacked(s: Scope, e: ClampedExperts) -> tuple[str, str, str, str]:
    """(gate_up, gate_up_bias, down, down_bias) of all experts, each from one tensor."""
    n, width, hidden = e.count, e.width, s.b.arch.hidden
    return (
        s.experts("experts.gate_up", [e.gate_up], (n, hidden, 2 * width), (n, 2 * width, hidden), "even_odd_columns"),
        s.array("experts.gate_up.bias", f"{e.gate_up}_bias", (n, 2 * width)),
        s.experts("experts.down", [e.down], (n, width, hidden), (n, hidden, width), "columns"),
        s.array("experts.down.bias", f"{e.down}_bias", (n, hidden)),
    )


BODIES: Bodies = {Moe: _moe}
