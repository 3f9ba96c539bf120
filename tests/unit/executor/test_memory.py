"""The memory budget and the number of threads, on made-up machines."""

import os
from pathlib import Path

import pytest

from legato.core.config import CacheConfig
from legato.core.errors import ConfigError
from legato.engine.start import memory_table
from legato.executor.memory import available_memory, budget, default_threads

GIB = 1 << 30
PARTS = {"weights": 2 * GIB, "workspace": GIB}


def machine(root: Path, *, available: int | None = 16 * GIB, cgroup: str = "", **files: object) -> Path:
    """A file tree that looks like /proc and /sys. `files`: path below /sys/fs/cgroup, with __ for /, to content."""
    (root / "proc/self").mkdir(parents=True)
    line = "" if available is None else f"MemAvailable: {available // 1024} kB\n"
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\n{line}")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_a_free_machine_has_what_the_kernel_says(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path)) == 16 * GIB


@pytest.mark.parametrize("level", ["job", "job__step"])
def test_version_2_limits_count_at_every_level(tmp_path: Path, level: str) -> None:
    files = {f"{level}__memory_DOT_max": 4 * GIB, f"{level}__memory_DOT_current": GIB}
    files |= {"memory_DOT_max": "max", "memory_DOT_current": 9 * GIB}
    assert available_memory(machine(tmp_path, cgroup="0::/job/step\n", **files)) == 3 * GIB


def test_reclaimable_file_pages_are_not_in_the_way(tmp_path: Path) -> None:
    files = {"memory_DOT_max": 4 * GIB, "memory_DOT_current": 3 * GIB}
    files["memory_DOT_stat"] = f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\nslab 7"
    assert available_memory(machine(tmp_path, cgroup="0::/\n", **files)) == 3 * GIB


def test_version_1_limits_count(tmp_path: Path) -> None:
    files = {"memory__box__memory_DOT_limit_in_bytes": 2 * GIB, "memory__box__memory_DOT_usage_in_bytes": GIB}
    root = machine(tmp_path, cgroup="5:cpu,cpuacct:/box\n4:memory:/box\n", **files)
    assert available_memory(root) == GIB


def test_a_container_sees_its_group_at_the_root(tmp_path: Path) -> None:
    """In a container without a cgroup namespace the path of the group is not there; the limit is at the mount."""
    files = {"memory__memory_DOT_limit_in_bytes": 2 * GIB, "memory__memory_DOT_usage_in_bytes": GIB}
    assert available_memory(machine(tmp_path, cgroup="4:memory:/docker/abc\n", **files)) == GIB


def test_a_new_group_that_holds_nothing_yet_has_its_limit(tmp_path: Path) -> None:
    files = {"memory_DOT_max": GIB, "memory_DOT_current": 0}
    assert available_memory(machine(tmp_path, cgroup="0::/\n", **files)) == GIB


def test_a_full_group_has_nothing_left(tmp_path: Path) -> None:
    files = {"memory_DOT_max": GIB, "memory_DOT_current": 2 * GIB}
    assert available_memory(machine(tmp_path, cgroup="0::/\n", **files)) == 0


def test_memory_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the available memory"):
        available_memory(machine(tmp_path, available=None))


def test_the_pool_takes_what_the_margin_leaves() -> None:
    found = budget(PARTS, GIB // 64, CacheConfig(), max_seqs=64, max_position=8192, available=16 * GIB)
    assert found.num_blocks == int((16 * 0.88 - 3) * 64)
    assert found.available - sum(PARTS.values()) - found.pool >= 0.12 * found.available
    assert sum(size for name, size in found.rows() if name != "available") == found.available
    assert found.sequences(8192) == found.num_blocks / 512
    assert f"{found.num_blocks / 64:,.1f} of 1,024 tokens" in found.fits()
    half = CacheConfig(memory_utilization=0.5)
    assert budget(PARTS, GIB // 64, half, max_seqs=64, max_position=8192, available=16 * GIB).num_blocks == 5 * 64


def test_a_pool_too_shallow_for_the_asked_concurrency_is_said() -> None:
    """Weights of 2 GiB leave 16 blocks of a GiB / 64: 8 sequences of 32 tokens."""

    def warning(max_seqs: int, max_position: int = 32) -> str | None:
        cache = CacheConfig(num_blocks=16)
        found = budget(PARTS, GIB // 64, cache, max_seqs=max_seqs, max_position=max_position, available=4 * GIB)
        return found.warning()

    assert warning(8) is None
    shallow = warning(9)
    assert shallow is not None
    assert "holds 8.0 sequences of 32 tokens, fewer than max_num_seqs (9)" in shallow
    assert "weights 2,048 MiB" in shallow
    assert "0.2 sequences of 1,024 tokens" in (warning(1, 8192) or "")


def test_the_table_ends_with_what_fits_and_the_warning() -> None:
    cache = CacheConfig(num_blocks=640)
    found = budget(PARTS, 1 << 10, cache, max_seqs=64, max_position=8192, available=16 * GIB)
    lines = memory_table(found).splitlines()
    assert lines[-2].endswith("sequences at once: 10.0 of 1,024 tokens or 1.2 of 8,192 tokens")
    assert lines[-1].startswith("warning: the KV pool holds 10.0 sequences")
    deep = budget(PARTS, 1 << 10, CacheConfig(), max_seqs=64, max_position=8192, available=16 * GIB)
    assert "warning" not in memory_table(deep)


def test_the_pool_is_not_larger_than_all_sequences_together() -> None:
    found = budget(PARTS, 1 << 10, CacheConfig(block_size=32), max_seqs=3, max_position=100, available=16 * GIB)
    assert found.num_blocks == 3 * 4


def test_sizes_that_are_given_are_taken() -> None:
    assert (
        budget(PARTS, GIB, CacheConfig(num_blocks=3), max_seqs=64, max_position=8192, available=8 * GIB).pool == 3 * GIB
    )
    given = CacheConfig(kv_cache_memory=5 * GIB)
    assert budget(PARTS, GIB // 32, given, max_seqs=64, max_position=8192, available=9 * GIB).num_blocks == 160


@pytest.mark.parametrize(
    ("cache", "available"),
    [
        (CacheConfig(), 3 * GIB),
        (CacheConfig(), GIB),
        (CacheConfig(num_blocks=14), 16 * GIB),
        (CacheConfig(kv_cache_memory=14 * GIB), 16 * GIB),
        (CacheConfig(kv_cache_memory=GIB), 16 * GIB),
    ],
)
def test_too_little_memory_is_an_error_with_figures(cache: CacheConfig, available: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"{available >> 20:,} MiB available; weights 2,048 MiB, workspace 1,024 MiB"
    ):
        budget(PARTS, GIB, cache, max_seqs=64, max_position=8192, available=available)


@pytest.mark.parametrize(
    ("cgroup", "files", "threads"),
    [
        ("", {}, 3),
        ("0::/\n", {"cpu_DOT_max": "max 100000"}, 3),
        ("0::/\n", {"cpu_DOT_max": "200000 100000"}, 2),
        ("0::/a/b\n", {"a__cpu_DOT_max": "150000 100000"}, 1),
        ("0::/\n", {"cpu_DOT_max": "50000 100000"}, 1),
        ("3:cpu:/\n", {"cpu__cpu_DOT_cfs_quota_us": 200000, "cpu__cpu_DOT_cfs_period_us": 100000}, 2),
        ("3:cpu:/\n", {"cpu__cpu_DOT_cfs_quota_us": -1, "cpu__cpu_DOT_cfs_period_us": 100000}, 3),
    ],
)
def test_threads_are_cores_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, object], threads: int
) -> None:
    root = machine(tmp_path, cgroup=cgroup, **files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5, 6})
    for cpu, siblings in {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}.items():  # 6 is not described
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert default_threads(root) == threads
