"""Figures of a simulation, computed by hand."""

import json
import math
import random
from dataclasses import replace

import pytest

from legato.bench.figures import summarize
from legato.cli.main import main
from legato.core.config import SchedulerConfig
from legato.core.types import FinishReason, TokenEvent
from legato.executor.roofline import AttentionCost, Numbers, Roofline
from legato.simulate.cluster import Cluster
from legato.simulate.outcome import Gaps, Outcome
from legato.simulate.routers import make_router
from legato.simulate.traffic import Lengths, Visit, drawn
from support.simulated import HARDWARE, MODEL, tiny_info


def test_latencies_are_those_of_the_definitions():
    outcome = Outcome({"ttft": 500, "tpot": 100})
    outcome.arrived("a", 1.0, 10)
    outcome.arrived("b", 1.0, 20)
    first = [TokenEvent("a", 0, (1,), num_cached=4)]
    assert outcome.on_steps(1.0, [1.5], first) == []
    assert outcome.on_steps(1.5, [1.75, 2.0], [TokenEvent("a", 0, (1, 1)), TokenEvent("b", 0, (1, 1))]) == []
    end = [TokenEvent("a", 0, (1,), finish=FinishReason.LENGTH), TokenEvent("b", 0, (1,), finish=FinishReason.LENGTH)]
    assert outcome.on_steps(2.0, [2.1], end) == ["a", "b"]
    figures = outcome.to_json()
    assert figures["latency_ms"]["ttft"]["mean"] == pytest.approx((500 + 750) / 2)
    assert figures["latency_ms"]["e2el"]["p50"] == pytest.approx(1100)
    assert figures["latency_ms"]["tpot"]["mean"] == pytest.approx((600 / 3 + 350 / 2) / 2)
    assert outcome.itl.count == 5
    assert figures["latency_ms"]["itl"]["mean"] == pytest.approx((3 * 250 + 2 * 100) / 5)
    assert (figures["output_tokens"], figures["cached_tokens"], figures["prompt_tokens"]) == (7, 4, 30)
    assert figures["goodput_per_s"] == 0
    assert outcome.num_live == 0


def test_percentiles_of_gaps_are_right_within_a_class():
    rng = random.Random(0)
    values = [rng.lognormvariate(-4, 1) for _ in range(5000)]
    gaps = Gaps()
    for value in values:
        gaps.add(value)
    exact, found = summarize(1000 * value for value in values), gaps.summary()
    assert found.mean == pytest.approx(exact.mean)
    for name in ("p50", "p90", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=0.011)
    assert Gaps().summary() is None


def test_gaps_of_a_leap_are_those_of_its_steps():
    """Over several classes of gaps, the first and last of which are not whole."""
    times = [1.0]
    for step in range(300):
        times.append(times[-1] + 0.01 + 2e-6 * step)
    leapt, stepped = Outcome({}), Outcome({})
    for outcome, size in ((leapt, 100), (stepped, 1)):
        outcome.arrived("a", 0.0, 1)
        for first in range(0, 300, size):
            ends = times[first : first + size]
            outcome.on_steps(0.0, ends, [TokenEvent("a", 0, (1,) * size)])
    assert leapt.itl.count == stepped.itl.count == 299
    found, exact = leapt.itl.summary(), stepped.itl.summary()
    assert found.mean == pytest.approx(exact.mean)
    assert (found.p50, found.p90, found.p99) == (exact.p50, exact.p90, exact.p99)


def test_static_wastes_what_continuous_batching_uses():
    """Answers of different lengths, while weights are what a step costs: the batch waits for its longest.

    What a padded batch computes for nobody comes on top.
    """
    visits = list(drawn(200, math.inf, 1.0, Lengths(prompt=40, output=40, spread=1.0, longest_output=300), 0))
    cost = Roofline(MODEL, replace(HARDWARE, flops={"bf16": 1e12}), Numbers("bf16", 2.0, 2.0))
    rates = []
    for policy, padding in (("static", True), ("static", False), ("fcfs", False)):
        outcome = Outcome({})
        config = SchedulerConfig(policy=policy, static_padding=padding)
        cluster = Cluster(tiny_info(256), cost, config, make_router("round-robin"), outcome)
        figures = cluster.run(iter(visits)).to_json()
        assert figures["completed"] == 200
        rates.append(figures["output_per_s"])
    assert rates[2] > 1.5 * rates[1] > 1.6 * rates[0]


def test_a_request_that_no_replica_can_serve_is_counted():
    outcome = Outcome({"ttft": 1e9})
    cost = Roofline(MODEL, HARDWARE, Numbers("bf16", 2.0, 2.0))
    cluster = Cluster(tiny_info(), cost, SchedulerConfig(), make_router("least-loaded"), outcome, count=2)
    figures = cluster.run([Visit(0.0, 600, 5), Visit(0.1, 50, 5), Visit(0.2, 500, 50)]).to_json()
    assert figures["completed"] == 2
    assert figures["output_tokens"] == 5 + 12  # the second one ends at the limit of the model
    assert sum(figures["refused"].values()) == 1
    assert figures["goodput_share"] == pytest.approx(2 / 3)


def test_prefix_aware_routing_computes_each_prefix_once_a_home():
    visits = list(drawn(600, 200.0, 1.0, Lengths(prompt=16, output=8, prefix=128, groups=60), 0))
    cost = Roofline(MODEL, HARDWARE, Numbers("bf16", 2.0, 2.0))
    cached = {}
    for router in ("round-robin", "least-loaded", "prefix"):
        outcome = Outcome({})
        cluster = Cluster(tiny_info(300), cost, SchedulerConfig(), make_router(router), outcome, count=4)
        cached[router] = cluster.run(iter(visits)).to_json()["cached_tokens"]
        assert outcome.completed == 600
    assert cached["prefix"] > 1.1 * max(cached["round-robin"], cached["least-loaded"])


def run(*args):
    return main(["simulate", "smollm2-135m", "--hardware", "cpu2", *args])


def test_the_command_writes_figures(tmp_path, capsys):
    path = tmp_path / "out.json"
    traffic = ("--num-requests", "20", "--input-len", "40", "--output-len", "10", "--rate", "50")
    assert run(*traffic, "--slo", "ttft:1000", "tpot:100", "--json", str(path)) == 0
    table = capsys.readouterr().out
    assert "requests completed" in table
    assert "TTFT" in table
    results = json.loads(path.read_text())["results"]
    assert results["completed"] == 20
    assert results["output_tokens"] == 200
    assert run(*traffic, "--no-leap", "--json", "-") == 0
    stepped = json.loads(capsys.readouterr().out)["results"]
    assert stepped["duration_s"] == results["duration_s"]
    assert stepped["latency_ms"]["e2el"] == results["latency_ms"]["e2el"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--slo", "itl:5"), "slo: 'itl' is not one of"),
        (("--slo", "ttft"), "slo: 'ttft' is not NAME:MILLISECONDS"),
        (("--traffic", "burst"), "traffic: 'burst' is not one of"),
        (("--traffic", "gamma"), "burstiness"),
        (("--burstiness", "2"), "burstiness"),
        (("--router", "best"), "router: 'best'"),
        (("--replicas", "0"), "replicas must be"),
        (("--format", "fp8"), "cpu2 has no figure for fp8"),
        (("--format", "fp7"), "format: 'fp7'"),
        (("--tp", "2"), "tp: 2"),
        (("--hardware", "tpu"), "hardware: 'tpu'"),
        (("--num-blocks", "0"), "num_blocks"),
        (("--kv-offloading-size", "1g"), "unknown argument --kv-offloading-size"),
        (("--pin-budget", "0.1"), "unknown argument --pin-budget"),
    ],
)
def test_the_command_refuses_by_name(args, message, capsys):
    assert run("--num-requests", "1", *args) == 2
    assert message in capsys.readouterr().err


def test_windowed_models_step():
    """No leap over windows, and the same figures whether one is asked for or not."""
    model = replace(MODEL, attention=(AttentionCost("window", 32, 2, 2, 64, 64),))
    info = replace(tiny_info(), cache_groups=(replace(tiny_info().cache_groups[0], kind="window", window=32),))
    figures = [
        Cluster(
            info, Roofline(model, HARDWARE, Numbers("bf16", 2.0, 2.0)), SchedulerConfig(),
            make_router("round-robin"), Outcome({}), leap=leap,
        ).run(drawn(40, 100.0, 1.0, Lengths(prompt=50, output=30), 0)).to_json()
        for leap in (True, False)
    ]  # fmt: skip
    assert figures[0] == figures[1]
    assert figures[0]["completed"] == 40
