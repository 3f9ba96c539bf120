"""Two servers under the same load: who is asked what, in which order, and how their figures are set side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from legato.bench.servers import Compared
from legato.cli.main import main
from support.scripted_server import Answer, scripted_server

FEW = ("--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "2")


def compare(first: str, second: str, *arguments: str) -> int:
    return main(["bench", "compare", "servers", first, second, *FEW, *arguments])


def test_medians_spreads_and_their_ratio() -> None:
    found = Compared("x", [4.0, 8.0, 6.0], [2.0, 2.0, 5.0])
    assert found.medians == (6.0, 2.0)
    assert found.spreads == (pytest.approx(4 / 6), pytest.approx(3 / 2))
    assert found.ratio == 3.0
    none = Compared("requests failed", [1.0], [0.0])
    assert (none.ratio, none.spreads) == (None, (0.0, None))


def test_both_get_the_same_requests_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    few = {"prompt_tokens": 8, "completion_tokens": 3}
    many = {"prompt_tokens": 8, "completion_tokens": 6}

    def slow(index: int, body: dict[str, Any]) -> Answer:
        asked.append(("slow", body))
        return Answer(usage=few) if index else Answer(status=503)

    def fast(index: int, body: dict[str, Any]) -> Answer:
        asked.append(("fast", body))
        return Answer(usage=many)

    file = tmp_path / "out.json"
    with scripted_server(slow) as first, scripted_server(fast) as second:
        more = ("--rounds", "3", "--models", "a", "b", "--max-concurrency", "1", "--seed", "5", "--json", str(file))
        assert compare(first.url, second.url, *more) == 0
    in_turn = ("slow", "fast", "fast", "slow", "slow", "fast")
    assert [name for name, _ in asked] == [name for name in in_turn for _ in range(2)]
    assert [body.pop("model") for body in first.bodies + second.bodies] == ["a"] * 6 + ["b"] * 6
    assert first.bodies == second.bodies
    assert len({tuple(body["prompt"]) for body in first.bodies}) == 6  # each round has prompts of its own
    written = json.loads(file.read_text())
    metrics = {metric["metric"]: metric for metric in written["results"]["metrics"]}
    assert (metrics["requests failed"]["first"], metrics["requests failed"]["second"]) == ([1, 0, 0], [0, 0, 0])
    assert [round["second"]["output_tokens"] for round in written["results"]["rounds"]] == [12, 12, 12]
    ttft = metrics["TTFT p50, ms"]
    assert ttft["ratio"] == pytest.approx(ttft["medians"][0] / ttft["medians"][1])
    assert written["seed"] == 5
    said = capsys.readouterr()
    assert "failed: 1 x HTTP 503" in said.err
    assert all(
        word in said.out for word in (first.url, second.url, "first / second", "output tok/s", "ITL (chunk gaps)")
    )


def test_what_a_reader_has_to_know_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """CASES I03 and I08, for either server."""
    with scripted_server(lambda *_: Answer()) as first, scripted_server(lambda *_: Answer(usage=None)) as second:
        assert compare(first.url, second.url, "--rounds", "1", "--max-concurrency", "1") == 0
    err = capsys.readouterr().err
    assert err.count("closed loop: the first 1 requests started at once") == 2
    assert err.count("2 answers came without usage") == 1


def test_names_are_what_the_servers_report() -> None:
    with scripted_server(lambda index, body: Answer()) as first, scripted_server(lambda *_: Answer()) as second:
        assert compare(first.url, second.url, "--rounds", "1") == 0
    assert {body["model"] for body in first.bodies + second.bodies} == {"scripted"}


def test_a_server_that_answers_nothing_ends_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(lambda *_: Answer()) as first, scripted_server(lambda *_: Answer(status=503)) as second:
        assert compare(first.url, second.url) == 1
    assert "no request succeeded with scripted at 127.0.0.1:" in capsys.readouterr().err


def test_header_values_are_not_in_the_report(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    with scripted_server(lambda *_: Answer()) as first, scripted_server(lambda *_: Answer()) as second:
        arguments = ("--rounds", "1", "--header", "authorization=Bearer open-sesame", "--json", str(file))
        assert compare(first.url, second.url, *arguments) == 0
    assert "open-sesame" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--rounds", "0"), "rounds"), (("--goodput", "itl:3"), "goodput"), (("--base-url", "http://x"), "base-url")],
)
def test_a_bad_flag_is_named(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("http://127.0.0.1:1", "http://127.0.0.1:1", "--models", "a", "b", *arguments) == 2
    assert word in capsys.readouterr().err


def test_a_url_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("http://127.0.0.1:1", "nowhere", "--models", "a", "b") == 2
    assert "nowhere" in capsys.readouterr().err
