"""The commands as processes of their own: start, drain, Ctrl-C, offline use. With the default model."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from harness import Streamed, assert_error, wait_until

from legato.executor.native import isa_levels

LEGATO = (sys.executable, "-m", "legato")


def legato(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; without a text, its standard input is empty."""
    return subprocess.run((*LEGATO, *arguments), input=text or "", capture_output=True, text=True, timeout=120)


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`legato serve` on a free port: the process, its URL, and what it has printed."""
    process = subprocess.Popen(
        (*LEGATO, "serve", "--port", "0", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        printed = ""
        while "try it:" not in printed:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            printed += line
        printed += process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", printed)
        assert found is not None
        yield process, found[0], printed
    finally:
        process.kill()
        process.communicate()


def test_f03_sigterm_lets_a_stream_finish_and_leaves_nothing_behind() -> None:
    with served() as (process, url, printed):
        assert "KV pool" in printed
        assert "curl" in printed
        assert httpx.get(f"{url}/ready").status_code == 200
        body = {"prompt": "Count:", "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
            assert_error(httpx.post(f"{url}/v1/completions", json={"prompt": "x"}), 503)
            stream = Streamed("\n".join([first, *lines]) + "\n")
        assert stream.done
        assert stream.choices()[0]["finish_reason"] == "length"
        assert process.wait(20) == 0
        assert "SIGTERM: draining 1 requests" in process.communicate(timeout=20)[1]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_f03_the_drain_ends_in_time_and_a_second_signal_ends_at_once() -> None:
    body = {"prompt": "Count:", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with served("--drain-timeout", "0.2", "--log-level", "error") as (process, url, _):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGINT)
            stream = Streamed("\n".join([first, *lines]) + "\n")
        assert "shutting down" in stream.chunks[-1]["error"]["message"]
        assert process.wait(20) == 0
        assert "drain" not in process.communicate(timeout=20)[1], "information and warnings are left out"
    with (
        served() as (process, url, _),
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        assert next(lines)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_f03_a_signal_while_the_model_loads_ends_at_once(number: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen((*LEGATO, "serve", "--port", str(port)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: not can_bind(port))  # the address is reserved before the model loads
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode in (-number, 130)
        assert can_bind(port)
    finally:
        process.kill()
        process.communicate()


def test_f03_a_ctrl_c_whose_exception_is_lost_while_the_model_loads_ends_too() -> None:
    """Python ignores what is raised in a finalizer, KeyboardInterrupt too."""
    code = """
import signal, sys
import legato.engine.start
from legato.cli.main import main

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def start(config):
    Finalized()

legato.engine.start.start = start
sys.exit(main(["serve", "--port", "0"]))
"""
    process = subprocess.run((sys.executable, "-c", code), capture_output=True, timeout=60)
    assert process.returncode == 130
    assert b"Exception ignored" in process.stderr


def can_bind(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_json_logs_are_all_that_is_said() -> None:
    command = (*LEGATO, "serve", "--port", "0", "--log-format", "json", "--log-requests")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            ready = json.loads(process.stderr.readline())
            assert (ready["message"], ready["level"], ready["executor"]) == ("ready", "info", "native")
            answer = httpx.post(
                f"{ready['url']}/v1/completions", json={"prompt": "Count:", "max_tokens": 3}, timeout=60
            )
            assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            said, logged = process.communicate(timeout=30)
        finally:
            process.kill()
    assert said == ""
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {"POST /v1/completions 200", "SIGTERM: draining 0 requests"} < {line["message"] for line in lines}
    (ended,) = [line for line in lines if "output_tokens" in line]
    assert (ended["output_tokens"], ended["finish_reasons"]) == (3, ["length"])


def test_a_port_in_use_is_said_before_the_model_loads() -> None:
    with served() as (_, url, _):
        second = legato("serve", "--port", url.rsplit(":", 1)[1])
        assert second.returncode == 2
        assert "cannot listen" in second.stderr


def test_run_completes_answers_and_reads_files(tmp_path: Path) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "12")
    assert legato("run", *greedy, "--chat", "-p", "What is the capital of Japan?").stdout == (
        "The capital of Japan is Tokyo.\n"
    )
    assert legato("run", *greedy, text="What is the capital of Japan?").stdout == "The capital of Japan is Tokyo.\n"
    prompts = tmp_path / "prompts.jsonl"
    talk = [{"role": "user", "content": "What is the capital of Japan?"}]
    prompts.write_text('"The capital of France is"\n' + json.dumps({"messages": talk}) + "\n")
    out = tmp_path / "answers.jsonl"
    assert legato("run", *greedy, "-f", str(prompts), "-o", str(out)).returncode == 0
    completed, answered = (json.loads(line) for line in out.read_text().splitlines())
    assert "Paris" in completed["text"]
    assert answered["text"] == "The capital of Japan is Tokyo."
    assert answered["messages"] == talk


def test_build_inspect_and_serve_a_built_file(tmp_path: Path) -> None:
    built = legato("build", "--format", "int8", "--max-model-len", "256", "-o", str(tmp_path))
    assert built.returncode == 0, built.stderr
    [path] = tmp_path.iterdir()
    assert built.stdout.strip() == str(path)
    shown = legato("inspect", str(path), "--verify")
    assert shown.returncode == 0, shown.stderr
    parts = (
        "max_position 256",
        "i8_panel",
        "instruction set",
        "KV pool",
        "chosen",
        "linear + residual add",
        "verified",
    )
    assert [part for part in parts if part not in shown.stdout] == []
    refused = legato("run", str(path), "-p", "x", "--max-model-len", "512")
    assert refused.returncode == 2
    assert "max_model_len" in refused.stderr
    taken = legato("build", "-o", str(path))
    assert taken.returncode == 2
    assert taken.stderr == f"legato: error: output: {path}: File exists\n"
    damaged = bytearray(path.read_bytes())
    damaged[-1000] ^= 1
    path.write_bytes(damaged)
    spoiled = legato("inspect", str(path), "--verify")
    assert spoiled.returncode == 1
    assert "damaged" in spoiled.stderr


def test_cache_and_pull(tmp_path: Path) -> None:
    pulled = legato("pull")
    assert Path(pulled.stdout.strip()).exists()
    assert "SmolLM2-135M-Instruct" in legato("cache", "ls").stdout
    assert "0 entries" in legato("cache", "ls", "--cache-dir", str(tmp_path)).stdout
    for days in ("-1", "nan"):
        assert "older-than" in legato("cache", "prune", "--older-than", days, "--dry-run").stderr
    assert "freed 0.0 MB" in legato("cache", "prune", "--all", "--cache-dir", str(tmp_path)).stdout


def test_models_that_cannot_be_served(tmp_path: Path) -> None:
    missing = legato("run", str(tmp_path / "nothing.gguf"), "-p", "x")
    assert missing.returncode == 1
    assert len(missing.stderr.splitlines()) == 1
    assert "nothing.gguf" in missing.stderr


@pytest.mark.parametrize("isa", isa_levels())
def test_a_forced_instruction_set_runs_or_is_refused_by_name(isa: str) -> None:
    command = (*LEGATO, "run", "-p", "The capital of France is", "--temperature", "0", "--max-tokens", "2")
    ran = subprocess.run(command, env={**os.environ, "LEGATO_ISA": isa}, capture_output=True, text=True, timeout=60)
    if (obstacle := isa_levels()[isa]) is None:
        assert (ran.returncode, ran.stdout) == (0, " Paris.\n")
    else:
        assert ran.returncode == 2
        assert isa in ran.stderr
        assert obstacle in ran.stderr


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    forced = subprocess.run(
        (*LEGATO, "run", "-p", "x"), env={**os.environ, "LEGATO_ISA": "amx"}, capture_output=True, text=True, timeout=60
    )
    assert forced.returncode == 2
    assert "amx" in forced.stderr
