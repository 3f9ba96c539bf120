"""Stands in for pip: `fake_pip.py MODE WHEEL download OPTIONS --dest FOLDER REQUIREMENT`.

Each call adds a line to WHEEL.log.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

mode, wheel, command, *options, requirement = sys.argv[1:]
with open(wheel + ".log", "a") as log:
    log.write(" ".join([command, *options, requirement]) + "\n")
target = Path(options[options.index("--dest") + 1]) / Path(wheel).name
if mode == "copy":
    shutil.copyfile(wheel, target)
elif mode == "half":
    target.write_bytes(Path(wheel).read_bytes()[: os.path.getsize(wheel) // 2])
elif mode == "kill-parent":
    target.write_bytes(b"part of a wheel")
    os.kill(os.getppid(), signal.SIGKILL)
elif mode == "nothing":
    pass
elif mode == "offline":
    print("WARNING: Retrying (Retry(total=4)) after connection broken", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for x")
elif mode == "no-pip":
    sys.exit(f"{sys.executable}: No module named pip")
elif mode == "full":
    sys.exit("ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device")
else:
    print("Collecting x")
    sys.exit(f"ERROR: first\nERROR: {mode}")
