"""KV memory by counting, against a count made step by step; and the command's refusals."""

import pytest

from legato.bench.policies import PolicyRun, kv_memory
from legato.bench.workloads import Job, standard
from legato.cli.main import main


def test_kv_memory_of_one_job_by_hand() -> None:
    """Prompt 3, three tokens: 3, 4 and 5 slots are used, in blocks of 4: 4, 4 and 8."""
    wide, known, paged = kv_memory([Job((1, 2, 3), 3)], pool_slots=160, block_size=4, max_model_len=16)
    assert (wide.waste, wide.streams) == (pytest.approx(1 - 12 / 48), 10)
    assert (known.waste, known.streams) == (pytest.approx(1 - 12 / 18), 26)
    assert (paged.waste, paged.streams) == (pytest.approx(1 - 12 / 16), 30)


def test_blocks_waste_little_of_the_agent_workload() -> None:
    wide, known, paged = kv_memory(standard()["agent"], 1 << 16, 16, 2048)
    assert paged.waste < 0.05 < 0.5 < known.waste < wide.waste
    assert paged.streams > 2 * known.streams > 4 * wide.streams


def test_figures_of_a_policy() -> None:
    run = PolicyRun("x", (4.0, 2.0, 3.0), tokens_in=100, tokens_out=300, steps=30, rows=1600, kv_waste=0.1)
    assert (run.median_s, run.output_per_s, run.ms_per_step) == (3.0, 100.0, 100.0)
    assert run.useless_rows == 0.75


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "policies", "--policy", "fcfs"),
        ("compare", "policies", "--static-padding"),
        ("compare", "policies", "--executor", "reference"),
        ("compare", "policies", "--rounds", "0"),
        ("compare", "policies", "--num-requests", "0"),
        ("compare", "formats", "--formats", "int3"),
        ("compare", "formats", "--formats", "int8/int3"),
        ("compare", "formats", "--format", "int8"),
        ("compare", "formats", "--kv-cache-dtype", "bf16"),
        ("compare", "formats", "--window", "3"),
        ("compare", "formats", "--max-windows", "3"),
        ("compare", "formats", "--text", "nothing.txt"),
        ("compare", "formats", "--rounds", "0"),
        ("latency", "--batch-size", "65"),
        ("latency", "--num-iters", "0"),
        ("profile", "--executor", "reference"),
        ("profile", "--workloads", "nothing"),
        ("profile", "--rounds", "0"),
        ("throughput", "--workloads", "nothing"),
        ("throughput", "--rounds", "0"),
    ],
)
def test_a_bad_flag_ends_the_start_by_name(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    name = next(argument for argument in arguments if argument.startswith("--"))
    assert name.lstrip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")
