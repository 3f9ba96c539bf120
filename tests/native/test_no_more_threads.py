"""Where the system has no more threads the start ends with an error that says so, and nothing is left running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_engines import tiny_engine

# Stacks of 1 GiB in an address space that holds only so many of them.
START = """
import os, resource, sys
from pathlib import Path
from legato.core.errors import ConfigError
from support.tiny_engines import open_native

path, threads, fit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
count = lambda: len(os.listdir("/proc/self/task"))
open_native(path, threads=1).close()
before = count()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (fit << 30) + (1 << 29), resource.RLIM_INFINITY))
try:
    open_native(path, threads=threads)
except ConfigError as error:
    print(error)
while count() > before:
    os.sched_yield()  # the system forgets a thread a moment after it has ended
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
open_native(path, threads=3).close()
print("opened")
"""


@pytest.mark.parametrize(("threads", "fit"), [(1, 0), (2, 0), (2, 1), (5, 2)])
def test_no_more_threads_is_an_error_that_names_their_number_and_the_limits(
    tmp_path: Path, threads: int, fit: int
) -> None:
    """The model's own thread, the first of a pool, and one behind others that have to end."""
    arguments = (str(tiny_engine(tmp_path / "tiny.legato")), str(threads), str(fit))
    shell = 'ulimit -S -s 1048576; exec "$@"'
    run = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", START, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said, opened = run.stdout.splitlines()
    assert said.startswith(f"cannot start {threads} compute threads (--threads): Resource temporarily unavailable; ")
    assert "; limits: " in said
    assert "ulimit -v " in said
    assert opened == "opened"
