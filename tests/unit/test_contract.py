"""`make contract` ends with a line for each part; what could not be installed is named, with the reason."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "contract" / "run.py"


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a server that is none; `vllm` cannot be installed."""
    spec = importlib.util.spec_from_file_location("contract_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "contract_run", module)
    spec.loader.exec_module(module)

    @contextmanager
    def serving(python: str) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    def installed(name: str) -> Any:
        if name == "vllm":
            complain = "import sys; sys.exit('ERROR: no torch\\nERROR: No matching distribution found for torch')"
            module.run("pip", (sys.executable, "-c", complain))
        return (name,)

    monkeypatch.setattr(module, "serving", serving)
    monkeypatch.setattr(module, "installed", installed)
    monkeypatch.setattr(module, "run_python", lambda *_: None)
    monkeypatch.setattr(module, "CHECKS", dict.fromkeys(module.CHECKS, lambda command, *_: command[0] != "guidellm"))
    return module


@pytest.mark.parametrize(
    ("arguments", "status", "lines"),
    [
        ((), 1, ["clients: ok", "guidellm: FAILED", "schemathesis: ok",
                 "vllm: NOT INSTALLED: ERROR: No matching distribution found for torch"]),
        (("clients", "schemathesis"), 0, ["clients: ok", "schemathesis: ok"]),
        (("vllm", "--vllm", "some vllm"), 0, ["vllm: ok"]),
    ],
)  # fmt: skip
def test_each_part_has_its_line(
    contract: ModuleType,
    arguments: tuple[str, ...],
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "python", *arguments])
    assert contract.main() == status
    assert sorted(capsys.readouterr().out.splitlines()) == [f"contract: {line}" for line in lines]


def test_parts_that_there_are_not_are_named(
    contract: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "python", "curl"])
    with pytest.raises(SystemExit):
        contract.main()
    assert "no such part: curl" in capsys.readouterr().err
