"""The benchmarks that run a model, on a few short requests of the default model. Counts are checked, never times."""

import json
from pathlib import Path

import pytest

from legato.bench.compare import compare
from legato.bench.workloads import Job
from legato.cli.main import main
from legato.core.config import EngineConfig, build

SMALL = {"num_blocks": 64, "threads": 1, "max_num_seqs": 4}
FLAGS = ("--num-blocks", "64", "--threads", "1", "--max-num-seqs", "4")


def test_policies_differ_in_steps_and_rows_as_they_should() -> None:
    """Eight requests in places of four. The last token of each is not computed."""
    jobs = [Job((100, 200, 300), count) for count in (2, 3, 12, 2, 2, 3, 2, 2)]
    runs, info = compare(build(EngineConfig, SMALL), jobs, 1, lambda *said: None)
    continuous, skips, pads = runs
    assert info.name == "native"
    needed = sum(len(job.prompt) + job.max_tokens - 1 for job in jobs)
    assert continuous.rows == skips.rows == needed
    assert (continuous.steps, skips.steps) == (12, 12 + 3)
    assert pads.steps == skips.steps
    assert pads.rows == 8 * 3 + 4 * 11 + 4 * 2
    assert pads.useless_rows > continuous.useless_rows == 0


def test_latency_leaves_the_warm_up_out(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    sizes = (
        "--batch-size",
        "2",
        "--input-len",
        "4",
        "--output-len",
        "2",
        "--num-iters",
        "3",
        "--num-iters-warmup",
        "1",
    )
    assert main(["bench", "latency", *FLAGS, *sizes, "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert len(written["results"]["seconds"]) == 3
    assert list(written["results"]["percentiles_s"]) == ["10", "25", "50", "75", "90", "99"]
    assert written["executor"]["isa"]


def test_throughput_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ("--workloads", "single", "--rounds", "1", "--json", str(file), "--html", str(page))
    assert main(["bench", "throughput", *FLAGS, *arguments]) == 0
    [result] = json.loads(file.read_text())["results"]
    assert (result["tokens_in"], result["tokens_out"]) == (128, 128)
    assert page.read_text().count("<svg") == 3
    assert "single" in capsys.readouterr().out
