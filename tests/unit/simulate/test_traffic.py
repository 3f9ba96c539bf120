"""Traffic that is drawn, and the prompts that stand for it."""

import itertools
import json
import math
import statistics

import pytest

from legato.cli.main import main
from legato.core.errors import ConfigError
from legato.simulate.traffic import Lengths, Prompts, Visit, drawn


def test_arrivals_have_the_rate_and_the_burstiness_asked_for():
    for burstiness in (0.25, 1.0, 4.0):
        times = [visit.at_s for visit in drawn(4000, 8.0, burstiness, Lengths(prompt=10, output=5), 1)]
        spans = [after - before for before, after in itertools.pairwise(times)]
        assert statistics.fmean(spans) == pytest.approx(1 / 8, rel=0.1)
        assert statistics.variance(spans) * 64 == pytest.approx(1 / burstiness, rel=0.2)
    assert {visit.at_s for visit in drawn(9, math.inf, 1.0, Lengths(prompt=10, output=5), 1)} == {0.0}
    with pytest.raises(ConfigError, match="rate and burstiness"):
        list(drawn(9, 0.0, 1.0, Lengths(prompt=10, output=5), 1))


def test_lengths_have_the_mean_asked_for():
    lengths = Lengths(prompt=400, output=200, spread=0.8, prefix=64, groups=10)
    visits = list(drawn(20_000, 1.0, 1.0, lengths, 2))
    assert visits == list(drawn(20_000, 1.0, 1.0, lengths, 2))
    assert statistics.fmean(visit.prompt_tokens for visit in visits) == pytest.approx(464, rel=0.03)
    assert statistics.fmean(visit.output_tokens for visit in visits) == pytest.approx(200, rel=0.03)
    sizes = [sum(visit.shared == (group,) for visit in visits) for group in range(10)]
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.1)
    assert sum(sizes) == len(visits)
    fixed = Lengths(prompt=9, output=9, longest_output=8, longest_prompt=7)
    assert {(visit.prompt_tokens, visit.output_tokens, visit.shared) for visit in drawn(5, 1.0, 1.0, fixed, 0)} == {
        (7, 8, ())
    }


@pytest.mark.parametrize("vocab", [4, 100, 50_000])
def test_prompts_are_equal_exactly_where_visits_say_so(vocab):
    prompts = Prompts(vocab)
    first, same, other, cut, short = (
        list(prompts.request(visit).prompt)
        for visit in (
            Visit(0.0, 200, 1, (7, 9), 64),
            Visit(0.0, 200, 1, (7, 9), 64),
            Visit(0.0, 200, 1, (7, 10), 64),
            Visit(0.0, 100, 1, (7, 9), 64),
            Visit(0.0, 3, 1),
        )
    )
    assert first[:128] == same[:128]
    assert first[128:] != same[128:]
    assert first[:64] == other[:64]
    assert first[64:128] != other[64:128]
    assert cut == first[:100]
    assert len(short) == 3
    assert all(0 <= token < vocab for token in first + other + short)
    assert len({tuple(Prompts(vocab)._marked(number, 1, 64)) for number in range(500)}) == 1 * 500


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="3 tokens"):
        Prompts(3)


def run(*args):
    return main(["simulate", "smollm2-135m", "--hardware", "cpu2", "--json", "-", *map(str, args)])


def test_traces_are_replayed(tmp_path, capsys):
    """Each form of trace; shared prefixes are found in the cache, and `speed` shrinks the time between arrivals."""
    burst = tmp_path / "burst.csv"
    burst.write_text("Timestamp,Request tokens,Response tokens\n5,30,7\n8,9,0\n105,9,2\n")
    mooncake = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": at, "input_length": 600, "output_length": 3, "hash_ids": ids}
        for at, ids in ((0, [1, 2]), (50_000, [1, 3]), (60_000, [4, 5]))
    ]
    mooncake.write_text("\n".join(map(json.dumps, rows)))
    assert run("--traffic", "burstgpt", "--traffic-file", burst) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert (figures["completed"], figures["prompt_tokens"], figures["output_tokens"]) == (2, 39, 9)
    assert 100 < figures["duration_s"] < 101
    assert run("--traffic", "mooncake", "--traffic-file", mooncake, "--speed", 10) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert (figures["completed"], figures["cached_tokens"]) == (3, 512)
    assert 6 < figures["duration_s"] < 7
    assert run("--traffic", "mooncake", "--traffic-file", mooncake, "--num-requests", 1) == 0
    assert json.loads(capsys.readouterr().out)["results"]["completed"] == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--traffic", "recorded"), "traffic recorded needs --traffic-file"),
        (("--traffic", "recorded", "--traffic-file", "/nowhere"), "/nowhere: No such file"),
        (("--traffic", "mooncake", "--traffic-file", "/nowhere", "--rate", "2"), "rate: traffic mooncake has its own"),
        (("--speed", "2"), "speed: goes with traffic from a file"),
        (("--num-requests", "0"), "num_requests must be at least 1"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(args, message, capsys):
    assert run(*args) == 2
    assert message in capsys.readouterr().err


def test_a_broken_trace_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    for text, message in [
        ('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 3}\n{"at_s": 0}', "line 2: prompt_tokens is missing"),
        ('{"at_s": 0, "prompt_tokens": -5, "output_tokens": 3}', "line 1: prompt_tokens is below 0"),
        ('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 3, "hash_ids": ["a"]}', "line 1: hash_ids is not"),
        ('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 3, "hash_ids": [1], "hash_size": 4}', "line 1: 1 hash_ids"),
        ('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 0}', "holds no request with an answer"),
    ]:
        path.write_text(text)
        assert run("--traffic", "recorded", "--traffic-file", path) == 2
        assert message in capsys.readouterr().err
