"""Who may import whom. The walls of docs/architecture.md, enforced."""

import ast
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
    "gateway": BASE | {"protocol", "gateway"},
    "cli": MIDDLE | {"scheduler", "executor", "engine", "server", "bench", "gateway", "cli"},
}
NUMPY_FREE = {"core", "cache", "scheduler", "server"}
NATIVE = {"build", "executor/native", "bench"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


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


def test_nanobind_and_intrinsics_stay_in_their_folders() -> None:
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in {".cpp", ".h"}:
            continue
        text = path.read_text()
        folder = path.relative_to(ROOT / "csrc").parts[0]
        assert "nanobind" not in text or folder == "bindings", path
        assert "immintrin.h" not in text or folder in {"kernels", "base"}, path
        assert '#include "runtime/' not in text or folder in {"runtime", "bindings", "tests"}, path
