"""Who may import whom. The walls of docs/architecture.md, enforced."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "legato"
BASE = {"core"}
READERS = BASE | {"tokenizer", "models", "weights", "quant", "protocol"}
MIDDLE = READERS | {"build", "cache", "sampling", "chat"}
ALLOWED = {
    "core": BASE,
    **{name: BASE | {name} for name in ("tokenizer", "models", "protocol", "quant")},
    "weights": BASE | {"weights", "quant"},
    "build": READERS | {"build"},
    "cache": BASE | {"cache"},
    "sampling": BASE | {"sampling"},
    "chat": BASE | {"chat", "tokenizer"},
    "scheduler": BASE | {"scheduler", "cache", "sampling"},
    "executor": MIDDLE | {"executor"},
    "engine": MIDDLE | {"scheduler", "executor", "engine"},
    "server": MIDDLE | {"engine", "server"},
    "bench": MIDDLE | {"scheduler", "executor", "engine", "bench"},
    "simulate": MIDDLE | {"scheduler", "executor", "bench", "simulate"},
    "gateway": BASE | {"protocol", "gateway"},
    "cli": MIDDLE | {"scheduler", "executor", "engine", "server", "bench", "simulate", "gateway", "cli"},
}
NUMPY_FREE = {"core", "cache", "scheduler", "server", "simulate"}
NATIVE = {"build", "executor/native", "bench"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def inner_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Modules of our own that are imported inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] == "legato":
                    yield inner.module or "", inner.lineno


def part(name: str) -> str:
    return name.removesuffix(".py").split("_")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    inner = path.relative_to(PACKAGE)
    owner = part(inner.parts[0])
    for name, line in imports(path):
        where = f"{inner}:{line} imports {name}"
        root, *rest = name.split(".")
        assert root != "torch" or inner.parts[:2] == ("executor", "torch"), where
        assert root != "numpy" or owner not in NUMPY_FREE, where
        if root != "legato" or owner == "":
            continue
        if rest and rest[0] == "_native":
            assert owner in NATIVE or f"{owner}/{inner.stem}" in NATIVE, where
        elif rest and rest[0] != "__version__":
            assert part(rest[0]) in ALLOWED[owner], where


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_commands_import_late(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] != "cli":
        assert list(inner_imports(path)) == []


def test_core_needs_the_standard_library_only() -> None:
    for path in (PACKAGE / "core").glob("*.py"):
        assert {name.split(".")[0] for name, _ in imports(path)} <= sys.stdlib_module_names | {"legato"}, path


def test_importing_legato_imports_nothing() -> None:
    report = "import sys, legato; print(*(name for name in sys.modules if name.startswith(('legato.', 'numpy'))))"
    done = subprocess.run((sys.executable, "-c", report), capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_nanobind_and_intrinsics_stay_in_their_folders() -> None:
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in {".cpp", ".h"}:
            continue
        text = path.read_text()
        folder = path.relative_to(ROOT / "csrc").parts[0]
        assert not ("nanobind" in text or "Python.h" in text) or folder == "bindings", path
        assert not re.search(r"immintrin\.h|\b_mm\d*_\w+\(", text) or folder == "kernels", path
        assert '#include "runtime/' not in text or folder in {"runtime", "bindings", "tests"}, path
