"""`legato bench serve` and `compare servers` against a real server: what they count is what it served."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Running, serving

from legato.cli.main import main
from support.byte_level import VOCAB
from support.scripted import ScriptedExecutor, hashed

# 40 tokens of a prompt are two whole blocks of 16 and a rest that no prefix cache keeps.
SIZES = ("--num-prompts", "4", "--random-input-len", "40", "--random-output-len", "5", "--vocab-size", str(VOCAB))


def executor() -> ScriptedExecutor:
    return ScriptedExecutor(vocab_size=VOCAB, emit=hashed(VOCAB))


def bench(server: Running, file: Path, *arguments: str) -> dict[str, Any]:
    command = ("bench", "serve", "--base-url", server.url, "--ignore-eos", *SIZES, "--json", str(file), *arguments)
    assert main(command) == 0
    results: dict[str, Any] = json.loads(file.read_text())["results"]
    return results


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_tokens_are_those_that_were_served(backend: str, tmp_path: Path) -> None:
    with serving(executor()) as server:
        results = bench(server, tmp_path / "out.json", "--backend", backend, "--save-detailed")
        server.wait_drained()
        metrics = server.http.get("/metrics").text
    assert (results["completed"], results["failed"], results["output_tokens"]) == (4, {}, 20)
    for kind, count in (("generation", results["output_tokens"]), ("prompt", results["prompt_tokens"])):
        assert f'vllm:{kind}_tokens_total{{engine="0",model_name="scripted"}} {count}.0' in metrics
    assert all(request["output_tokens"] == 5 for request in results["requests"])
    assert results["prompt_tokens"] == 160 or backend == "openai-chat"  # words take more than a token each


def test_i06_the_same_seed_finds_a_warm_cache_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(executor()) as server:
        rates = [bench(server, tmp_path / "out.json", *seed)["cache_hit_rate"] for seed in ([], [], ["--seed", "7"])]
        rates.append(bench(server, tmp_path / "out.json", "--seed", "7")["cache_hit_rate"])
    assert rates == [0, 0, 0, 32 / 40]
    assert "80.0%" in capsys.readouterr().out


def test_two_servers_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    with serving(executor()) as first, serving(executor()) as second:
        command = ("bench", "compare", "servers", first.url, second.url, "--rounds", "2", "--ignore-eos", *SIZES)
        assert main([*command, "--json", str(file)]) == 0
    results = json.loads(file.read_text())["results"]
    figures = [each for found in results["rounds"] for each in found.values()]
    assert [each["output_tokens"] for each in figures] == [20] * 4
    assert [each["cache_hit_rate"] for each in figures] == [0] * 4
    ratios = {metric["metric"]: metric["ratio"] for metric in results["metrics"]}
    assert ratios["output tok/s"] > 0
    assert {"TTFT p50, ms", "TPOT p99, ms", "ITL (chunk gaps) p99, ms", "E2EL from plan p50, ms"} <= set(ratios)
