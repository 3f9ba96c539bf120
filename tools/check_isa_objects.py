"""Check the objects that are compiled once per ISA level: python tools/check_isa_objects.py BUILD_DIR

A weak symbol (an inline function or a template from outside our unnamed namespaces) compiled for AVX-512 may be the
copy that the linker picks for the whole program, and a call to a library function hides code that was compiled
elsewhere. So only these references are allowed, and nothing weak.
"""

import re
import subprocess
import sys
from pathlib import Path

ALLOWED = re.compile(r"memcpy|memset|memmove|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail")
WEAK = "VvWwu"


def problems(obj: Path) -> list[str]:
    """One line for each symbol of `obj` that must not be there."""
    output = subprocess.run(["nm", "-C", str(obj)], check=True, capture_output=True, text=True).stdout
    found = []
    for line in output.splitlines():
        kind, name = line[17:].split(" ", 1)
        if kind in WEAK:
            found.append(f"{obj}: weak symbol {name}")
        elif kind == "U" and not ALLOWED.fullmatch(name):
            found.append(f"{obj}: undefined reference to {name}")
    return found


def main() -> int:
    objects = sorted(Path(sys.argv[1]).rglob("legato_isa_*.dir/**/*_unit.cpp.o"))
    if not objects:
        print(f"no ISA objects under {sys.argv[1]}", file=sys.stderr)
        return 1
    found = [problem for obj in objects for problem in problems(obj)]
    print("\n".join(found) if found else f"{len(objects)} ISA objects are clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
