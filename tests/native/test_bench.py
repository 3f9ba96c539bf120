"""The benchmarks that run native code, on little work. Counts are checked, never times."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato import _native
from legato.bench.machine import KINDS, Limits, bandwidth, peaks, usable_levels
from legato.bench.ops import FORMATS, KV_DTYPES, attentions, linears, rows_kernels
from legato.bench.policies import compare
from legato.bench.profile import BETWEEN
from legato.bench.quality import measure, windows
from legato.bench.workloads import Job
from legato.cli.main import main
from legato.core.config import EngineConfig, build
from legato.core.errors import ConfigError
from legato.executor.native import NativeExecutor
from support.drive import logits
from support.tiny_engines import open_native, tiny_engine
from support.tiny_folders import tiny_folder

SMALL = {"num_blocks": 64, "threads": 1, "max_num_seqs": 4}
FLAGS = ("--num-blocks", "64", "--threads", "1", "--max-num-seqs", "4")


def test_policies_differ_in_steps_and_rows_as_they_should() -> None:
    """Eight requests in places of four. The last token of each is not computed."""
    jobs = [Job((100, 200, 300), count) for count in (2, 3, 12, 2, 2, 3, 2, 2)]
    runs, traces, info = compare(build(EngineConfig, SMALL), jobs, 1, lambda *said: None)
    continuous, skips, pads = runs
    assert all(len(traces[run.policy].ended) == 8 for run in runs)
    assert info.name == "native"
    needed = sum(len(job.prompt) + job.max_tokens - 1 for job in jobs)
    assert continuous.rows == skips.rows == needed
    assert (continuous.steps, skips.steps) == (12, 12 + 3)
    assert pads.steps == skips.steps
    assert pads.rows == 8 * 3 + 4 * 11 + 4 * 2
    assert pads.useless_rows > continuous.useless_rows == 0
    assert all(1 / 16 <= run.kv_waste <= 13 / 16 for run in runs)  # at most one block each, of 16 slots, never empty


@pytest.mark.parametrize("kind", ["machine", "ops"])
def test_too_many_threads_are_an_error_that_names_their_number(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise _native.ThreadError("Resource temporarily unavailable")

    for name in ("peak", "read_bandwidth"):
        monkeypatch.setattr(_native.ops, name, refuse)
    assert main(["bench", kind, "--threads", "9"]) == 2
    assert "error: cannot start 9 compute threads (--threads): Resource temp" in capsys.readouterr().err


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


def test_a_warm_prefix_cache_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CASES I06. The second of two equal rounds finds all of the prompt but its last block."""
    file = tmp_path / "out.json"
    arguments = ("--workloads", "single", "--rounds", "2", "--enable-prefix-caching", "--json", str(file))
    assert main(["bench", "throughput", *FLAGS, *arguments]) == 0
    [result] = json.loads(file.read_text())["results"]
    assert (result["cached"], result["cached_share"]) == (112, 112 / 256)
    assert "44%" in capsys.readouterr().out


def test_profile_divides_all_of_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert main(["bench", "profile", *FLAGS, "--workloads", "single", "--rounds", "1", "--json", str(file)]) == 0
    [found] = json.loads(file.read_text())["results"]
    assert (found["steps"], found["rows"]) == (128, 128 + 127)
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert {"linear", "attention", "prepare", "sample", BETWEEN} <= set(found["parts"])
    assert min(found["parts"].values()) >= 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("single", "attention", BETWEEN, "rows per step"))


def test_policies_draw_ids_that_a_small_vocabulary_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_jobs(num_requests: int, seed: int, last_id: int) -> list[Job]:
        return [Job((100, last_id - 1), 3)] * num_requests

    monkeypatch.setattr("legato.bench.workloads.agent", short_jobs)
    folder, file, report = tiny_folder(tmp_path / "tiny"), tmp_path / "out.json", tmp_path / "out.html"
    few = (*FLAGS, "--num-requests", "2", "--rounds", "1", "--cache-dir", str(tmp_path / "cache"))
    few += ("--json", str(file), "--html", str(report))
    assert main(["bench", "compare", "policies", str(folder), *few]) == 0
    results = json.loads(file.read_text())["results"]
    assert [run["tokens_out"] for run in results["policies"]] == [6, 6, 6]
    assert [memory["layout"].split(",")[0] for memory in results["kv_memory"]] == ["contiguous", "contiguous", "paged"]
    out = capsys.readouterr().out
    assert all(word in out for word in ("continuous is", "KV waste", "why:", "streams", "paged, blocks of 16"))
    page = report.read_text()
    assert page.count("<svg") == 3
    assert all(word in page for word in ("static, computes padded rows", "Batch occupancy", "paged, blocks of 16"))


@pytest.mark.parametrize("isa", usable_levels())
def test_every_level_has_peaks(isa: str) -> None:
    found = peaks(isa, 2, seconds=1e-6)
    assert all(found.of(kind) > 0 for kind in KINDS)
    assert bandwidth(isa, 2, seconds=1e-6, size=1 << 20) > 0


def test_impossible_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        _native.ops.peak("int4")
    with pytest.raises(ValueError, match="threads"):
        _native.ops.peak("int8", threads=0)
    with pytest.raises(ValueError, match="threads"):
        _native.ops.read_bandwidth(threads=0)
    with pytest.raises(ValueError, match="bytes"):
        _native.ops.read_bandwidth(bytes=4095)
    with pytest.raises(ValueError, match="amx"):
        _native.ops.peak("int8", isa="amx")


def test_shares_are_of_the_limits_beside_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = usable_levels()[-1]
    peaks = {"int8": iter(range(1, 1000)), "bf16": iter(range(1, 1000)), "f32": iter(range(1, 1000))}
    monkeypatch.setattr(Limits, "peak", lambda self, kind, seconds: float(next(peaks[kind])))
    monkeypatch.setattr(Limits, "bandwidth", lambda self, seconds: 5.0)
    limits = Limits(isa, 1)
    runs = linears(limits, formats=list(FORMATS), shapes=[(64, 128)], rows=[1, 3], seconds=1e-6, copies_bytes=1)
    assert [(run.rows, run.operations) for run in runs] == [(1, 16384.0), (3, 49152.0)] * len(FORMATS)
    medians = {"f32": (2, 5), "bf16": (2, 5), "int8": (2, 5), "int4": (8, 11), "q4_1": (14, 17)}  # of three turns each
    assert [run.peak for run in runs] == [peak for name in FORMATS for peak in medians[name]]
    for run in runs:
        assert run.peak is not None
        assert run.of_peak == pytest.approx(run.operations / run.seconds / run.peak)
        assert run.of_bandwidth == pytest.approx(run.bytes / run.seconds / 5)
        assert run.to_json()["of_peak"] == run.of_peak
    assert runs[0].bytes == 64 * 128 * 4
    others = rows_kernels(isa, 1e9, width=64, vocab=1000, rows=4)
    assert [run.of_peak for run in others] == [None] * (5 + len(KV_DTYPES))
    assert {run.bytes for run in others if "rope" in run.name} == {4 * (9 + 2 * 3) * 64 * 4}
    assert others[0].bytes == 4 * 64 * 4


@pytest.mark.parametrize("isa", usable_levels())
def test_attention_counts_the_positions_that_its_rows_see(isa: str) -> None:
    """Three sequences decode over 17 positions, in two blocks of 16 each; and one of 17 rows is prefilled."""
    sizes = {"heads": (4, 2, 20), "context": 17, "batch": 3, "seconds": 1e-6, "layers_bytes": 1}
    runs = attentions(Limits(isa, 2), kv_dtypes=KV_DTYPES, **sizes)
    assert [run.rows for run in runs] == [3, 17] * len(KV_DTYPES)
    assert [run.operations for run in runs] == [4.0 * 4 * 20 * 3 * 17, 4.0 * 4 * 20 * 17 * 18 / 2] * len(KV_DTYPES)
    named = {(run.name.split()[0], run.name.split()[2]): run for run in runs}
    assert named["decode", "fp32"].bytes == 3 * 2 * 16 * 2 * 2 * 32 * 4  # K and V of two heads, padded to 32
    assert named["prefill", "bf16"].bytes == 2 * 16 * 2 * 2 * 32 * 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kv_dtype": "int3"}, "KV dtype"),
        ({"rows": 9}, "context"),
        ({"sequences": 0}, "sequences"),
        ({"heads": 3}, "heads"),
        ({"kv_heads": 0}, "heads"),
        ({"head_dim": 514}, "head_dim"),
        ({"threads": 0}, "threads"),
        ({"isa": "amx"}, "amx"),
    ],
)
def test_impossible_attention_is_refused(changes: dict[str, Any], word: str) -> None:
    sizes = {"sequences": 1, "context": 8, "rows": 8, "heads": 4, "kv_heads": 2, "head_dim": 16}
    with pytest.raises(ValueError, match=word):
        _native.ops.attention_bench(**{"kv_dtype": "bf16", **sizes, **changes})


def test_machine_and_ops_print_and_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    few = ("--threads", "1", "--seconds", "1e-6", "--json", str(file))
    assert main(["bench", "machine", *few]) == 0
    written = json.loads(file.read_text())["results"]
    assert [found["isa"] for found in written["peaks"]] == usable_levels()
    assert main(["bench", "ops", "--formats", "int8", "--shapes", "64x64", "--rows", "2", "--context", "9", *few]) == 0
    written = json.loads(file.read_text())["results"]
    assert written["kernels"][0]["name"] == "linear int8 64x64"
    assert written["isa"] == _native.ops.choose_isa(os.environ.get("LEGATO_ISA"))
    names = " ".join(kernel["name"] for kernel in written["kernels"])
    assert "decode attention, bf16 KV, context 9" in names
    assert "rms norm" in names
    assert "of the read bandwidth" in capsys.readouterr().out


def test_ops_runs_the_kernels_that_are_named(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    few = ("--kernels", "attention", "--kv-dtypes", "bf16", "--heads", "4x2x16", "--context", "20", "--batch", "3")
    assert main(["bench", "ops", *few, "--threads", "1", "--seconds", "1e-6", "--json", str(file)]) == 0
    kernels = json.loads(file.read_text())["results"]["kernels"]
    assert [(kernel["name"], kernel["rows"]) for kernel in kernels] == [
        ("decode attention, bf16 KV, context 20", 3),
        ("prefill attention, bf16 KV, context 20", 20),
    ]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("machine", "--threads", "0"), "threads"),
        (("machine", "--seconds", "0"), "seconds"),
        (("ops", "--isa", "amx"), "isa"),
        (("ops", "--formats", "int3"), "formats"),
        (("ops", "--shapes", "3x"), "shapes"),
        (("ops", "--rows", "0"), "rows"),
        (("ops", "--kernels", "softmax"), "kernels"),
        (("ops", "--kv-dtypes", "int3"), "kv_dtypes"),
        (("ops", "--heads", "9x3"), "heads"),
        (("ops", "--heads", "9x2x64"), "heads"),
        (("ops", "--heads", "8x2x514"), "heads"),
        (("ops", "--context", "0"), "context"),
        (("quality", "--text", "nothing.txt"), "nothing.txt"),
        (("quality", "--text", "nothing.txt", "--window", "1"), "window"),
    ],
)
def test_a_bad_flag_is_named(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert word in capsys.readouterr().err


def test_quality_of_a_format_is_what_its_definitions_say(tmp_path: Path) -> None:
    exact = open_native(tiny_engine(tmp_path / "a", format="fp32"), max_rows=128, max_seqs=128)
    int8 = open_native(tiny_engine(tmp_path / "b", format="int8"), max_rows=128, max_seqs=128)
    vocab = exact.info().vocab_size
    texts = windows([(7 * i * i + 3) % vocab for i in range(430)], 200, None)
    assert [len(text) for text in texts] == [200, 200]
    same = measure(exact, {"same": exact}, texts)["same"]
    assert (same.positions, same.kl, same.same_top) == (398, 0.0, 1.0)
    assert same.perplexity == same.reference_perplexity
    found = measure(exact, {"int8": int8}, texts)["int8"]
    p, q = (np.concatenate([probabilities(executor, text[:-1]) for text in texts]) for executor in (exact, int8))
    following = np.array([token for text in texts for token in text[1:]])
    own, fp32 = (np.exp(-np.log(x[np.arange(398), following]).mean()) for x in (q, p))
    assert found.kl == pytest.approx((p * np.log(p / q)).sum(axis=1).mean(), rel=1e-4)
    assert found.kl > 0
    assert found.same_top == (p.argmax(axis=1) == q.argmax(axis=1)).mean() < 1
    assert (found.perplexity, found.reference_perplexity) == (pytest.approx(own), pytest.approx(fp32))


def probabilities(executor: NativeExecutor, tokens: list[int]) -> np.ndarray:
    """float64 (tokens, vocab), straight from the definition of softmax."""
    powers = np.exp(logits(executor, tokens).astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 tokens"):
        windows([1, 2, 3], 4, None)
    assert windows(range(9), 4, 1) == [[0, 1, 2, 3]]


def test_formats_run_in_turn_beside_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, text = tmp_path / "out.json", tmp_path / "text"
    text.write_text("An alphabet of letters, and " * 40)
    few = ("--workloads", "single", "--rounds", "2", "--text", str(text), "--window", "50", "--max-windows", "2")
    model = (str(tiny_folder(tmp_path / "tiny")), "--cache-dir", str(tmp_path / "cache"))
    arguments = (*model, *FLAGS, *few, "--formats", "fp32", "int8", "int8/fp32", "--json", str(file))
    assert main(["bench", "compare", "formats", *arguments]) == 0
    results = json.loads(file.read_text())["results"]
    assert [run["format"] for run in results["formats"]] == ["fp32", "int8", "int8/fp32"]
    assert [run["executor"]["kv_cache_dtype"] for run in results["formats"]] == ["fp32", "bf16", "fp32"]
    assert all(len(run["workloads"][0]["seconds"]) == 2 for run in results["formats"])
    quality = results["quality"]
    assert {name: found["positions"] for name, found in quality.items()} == dict.fromkeys(quality, 2 * 49)
    assert quality["fp32"]["kl"] == 0 < quality["int8/fp32"]["kl"] != quality["int8"]["kl"]
    said = capsys.readouterr()
    assert [line.split(":")[0].strip() for line in said.err.splitlines() if "round" in line] == [
        f"{name}, single round {index}" for index in (1, 2) for name in ("fp32", "int8", "int8/fp32")
    ]
    assert "to the first" in said.out
    assert "KL to fp32" in said.out
