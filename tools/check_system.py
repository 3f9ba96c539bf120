"""Say in one line what the system lacks to build Legato. Needs nothing but the standard library."""

import os
import shutil
import sys
import sysconfig


def missing() -> str | None:
    """What is not there, with the package that brings it, or None."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything checks it
        return f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        return "a C++20 compiler is needed (Debian, Ubuntu: apt install g++)"
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        return f"Python's headers are needed, {header} is missing (Debian, Ubuntu: apt install python3-dev)"
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return "Python's venv module is needed (Debian, Ubuntu: apt install python3-venv)"
    return None


if __name__ == "__main__":
    if problem := missing():
        sys.exit(f"legato: {problem}")
