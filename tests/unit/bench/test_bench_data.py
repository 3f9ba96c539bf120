"""Datasets, arrival times, statistics and charts of the benchmarks."""

import json
import math
from pathlib import Path
from statistics import mean, pstdev
from xml.etree import ElementTree

import pytest

from legato.bench.arrivals import arrivals
from legato.bench.datasets import Draw, Sample, load, words
from legato.bench.figures import summarize
from legato.bench.plot import Line, cdf, chart, document
from legato.bench.traces import read_trace
from legato.bench.workloads import LAST_ID, last_id_of, standard
from legato.core.errors import ConfigError

DRAW = Draw(seed=3)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)])
def test_arrivals_have_the_rate_and_the_spread_that_were_asked_for(burstiness: float, variation: float) -> None:
    times = arrivals(4000, 20.0, burstiness, seed=1)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(4000 / 20)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(variation, rel=0.1, abs=1e-9)
    assert times == arrivals(4000, 20.0, burstiness, seed=1)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrivals(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (1, 0), (math.nan, 1), (1, math.nan)])
def test_impossible_arrivals_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError):
        arrivals(3, rate, burstiness, seed=0)


def test_random_lengths_lie_in_their_range_and_prefixes_are_shared() -> None:
    draw = Draw(seed=3, num_prompts=200, input_len=100, output_len=40, range_ratio=0.5, prefix_len=7)
    samples = load("random", None, draw)
    lengths = [len(sample.prompt) - 7 for sample in samples]
    assert 50 <= min(lengths) < 60 < 140 < max(lengths) <= 150
    assert 20 <= min(s.max_tokens for s in samples) < 40 < max(s.max_tokens for s in samples) <= 60
    assert len({sample.prompt[:7] for sample in samples}) == 1
    assert len({sample.prompt for sample in samples}) == 200


def test_standard_workloads_are_datasets() -> None:
    assert load("uniform", None, DRAW) == [Sample(job.prompt, job.max_tokens) for job in standard(3)["uniform"]]


@pytest.mark.parametrize(("vocab", "last"), [(101, 101), (32_000, 32_000), (LAST_ID + 1, LAST_ID), (152_000, LAST_ID)])
def test_ids_lie_inside_the_vocabulary(vocab: int, last: int) -> None:
    assert last_id_of(vocab) == last
    prompts = [job.prompt for jobs in standard(0, last).values() for job in jobs]
    assert 100 <= min(map(min, prompts)) <= max(map(max, prompts)) < last


def test_a_vocabulary_without_ids_to_draw_is_named() -> None:
    with pytest.raises(ConfigError, match="only 100"):
        last_id_of(100)


def test_agent_answers_have_a_heavy_tail() -> None:
    counts = [job.max_tokens for seed in range(20) for job in standard(seed)["agent"]]
    assert 85 < mean(counts) < 115
    assert max(counts) == 600


def test_custom_lines(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a", "output_tokens": 5}\n\n{"prompt": "b"}\n')
    assert load("custom", file, DRAW) == [Sample("a", 5), Sample("b", 128)]


def test_sharegpt_keeps_what_has_a_fitting_length(tmp_path: Path) -> None:
    def talk(*lengths: int) -> dict[str, object]:
        return {"conversations": [{"value": "x" * n} for n in lengths]}

    file = tmp_path / "data.json"
    file.write_text(json.dumps([talk(400, 800), talk(8, 800), talk(5000, 800), talk(400, 8000), talk(400)]))
    assert load("sharegpt", file, DRAW) == [Sample("x" * 400, 200)]


def test_equal_hash_ids_share_their_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [1, 3]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    early, late = load("timed_trace", file, DRAW)
    assert (early.at_s, late.at_s) == (0.0, 2.0)
    assert (len(early.prompt), len(late.prompt), early.max_tokens) == (1000, 600, 5)
    assert early.prompt[:512] == late.prompt[:512]
    assert early.prompt[512:600] != late.prompt[512:]


def test_burstgpt_leaves_out_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    file.write_text(head + "5,GPT-4,30,7,37,API log\n6,GPT-4,30,0,30,API log\n8.5,ChatGPT,9,2,11,API log\n")
    first, second = load("burstgpt", file, DRAW)
    assert (len(first.prompt), first.max_tokens, first.at_s) == (30, 7, 0.0)
    assert (len(second.prompt), second.max_tokens, second.at_s) == (9, 2, 3.5)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("custom", '{"prompt": 3}', "line 1: prompt"),
        ("custom", "{", "line 1"),
        ("custom", "[]", "line 1"),
        ("custom", "", "no request"),
        ("sharegpt", "{}", "array"),
        ("sharegpt", "[3]", "entry 1"),
        ("sharegpt", '[{"conversations": [1, 2]}]', "entry 1"),
        ("timed_trace", '{"input_length": 4, "output_length": 4}', "timestamp"),
        ("timed_trace", '{"input_length": 600, "output_length": 4, "timestamp": 0, "hash_ids": [1]}', "hash_ids"),
        ("burstgpt", "Timestamp,Request tokens\n1,2\n", "line 2"),
    ],
)
def test_a_broken_file_is_named_with_its_line(name: str, text: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text(text)
    with pytest.raises(ConfigError, match=word):
        load(name, file, DRAW)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        load("custom", tmp_path / "nothing", DRAW)


def test_words_differ_for_neighbours() -> None:
    text = words(range(100, 10_100))
    assert len(set(text.split())) == 10_000


def test_percentiles_interpolate() -> None:
    summary = summarize([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary is not None
    assert (summary.mean, summary.p50, summary.p90, summary.p99) == pytest.approx((3.0, 3.0, 4.6, 4.96))
    assert summarize([]) is None


def test_a_distribution_ends_at_all_values() -> None:
    assert cdf("x", [3.0, 1.0]).points == [(1.0, 0.0), (1.0, 50.0), (3.0, 100.0)]


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(0.0, 1.0), (1e-9, 2.0)], [(i, i % 7) for i in range(5000)]])
def test_charts_of_any_size(points: list[tuple[float, float]]) -> None:
    svg = chart("a < b", "x", "y", [Line("line & more", points)])
    assert "a &lt; b" in svg
    assert "nan" not in svg
    assert len(svg) < 30_000
    assert ("no data" in svg) == (not points)


def test_recorded_traffic_can_be_asked_again(tmp_path: Path) -> None:
    rows = [
        {"at_s": 9.5, "prompt_tokens": 70, "output_tokens": 4, "hash_ids": [7, 8], "hash_size": 64},
        {"at_s": 9.0, "prompt_tokens": 64, "output_tokens": 5, "hash_ids": [7], "hash_size": 64},
        {"at_s": 9.2, "prompt_tokens": 30, "output_tokens": 0},
        {"at_s": 9.7, "prompt_tokens": 30, "output_tokens": 3},
    ]
    file = tmp_path / "recorded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    first, second, third = load("recorded", file, DRAW)
    assert [len(sample.prompt) for sample in (first, second, third)] == [64, 70, 30]
    assert [sample.max_tokens for sample in (first, second, third)] == [5, 4, 3]
    assert second.prompt[:64] == first.prompt
    assert third.at_s == pytest.approx(0.7)


def test_recorded_traffic_tells_priority_and_tenant(tmp_path: Path) -> None:
    row = {"at_s": 1.0, "prompt_tokens": 7, "output_tokens": 4}
    file = tmp_path / "recorded.jsonl"
    file.write_text("\n".join(json.dumps(each) for each in ({**row, "priority": -2, "tenant": "a1"}, row)))
    assert [(each.priority, each.tenant) for each in read_trace("recorded", file)] == [(-2, "a1"), (0, "")]
    file.write_text(json.dumps({**row, "tenant": 3}))
    with pytest.raises(ConfigError, match="line 1: tenant"):
        read_trace("recorded", file)


def test_a_plot_can_be_a_file_of_its_own() -> None:
    text = document("a < b", "x & y", "z", [Line("one < two", [(0, 0), (1, 5)]), Line("empty", [])])
    root = ElementTree.fromstring(text)  # it is well formed
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "x & y", "one < two"} <= set(texts)
    assert "empty" not in texts
