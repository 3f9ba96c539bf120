"""`--record-traffic`: lengths and timings of what was served, to simulate with; never text."""

import json
import logging

import pytest

from e2e.harness import Script, serving
from legato.cli.main import main
from legato.core.errors import ConfigError
from legato.engine.traffic import HASH_SIZE, TrafficRecorder
from support.byte_level import VOCAB
from support.scripted import ScriptedExecutor


def serve(path, script):
    return serving(ScriptedExecutor(emit=script, vocab_size=VOCAB), record_traffic=str(path))


def test_each_choice_leaves_a_line_with_lengths_and_no_text(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    script = Script()
    head = "x" * (HASH_SIZE + 5)
    for prompt in ("secret", head + "1", head + "2"):
        script.set(prompt, b"hush")
    with serve(path, script) as server:
        server.complete("secret", n=2)
        server.stream("/v1/completions", prompt=[head + "1", head + "2"])
        server.complete("unknown", max_tokens=1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["prompt_tokens"] for line in lines) == [6, 6, 7, HASH_SIZE + 6, HASH_SIZE + 6]
    assert sorted(line["output_tokens"] for line in lines) == [1, 5, 5, 5, 5]  # with the end token, as billed
    assert all(0 <= line["ttft_s"] <= line["e2e_s"] and line["finish"] == "stop" for line in lines)
    one, two = (line["hash_ids"] for line in lines if line["prompt_tokens"] > HASH_SIZE)
    assert len(one) == len(two) == 2
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert not {"secret", "hush", "xxxx"} & {str(value) for line in lines for value in line.values()}
    assert set(lines[0]) == {
        "at_s", "prompt_tokens", "cached_tokens", "output_tokens", "finish", "ttft_s", "e2e_s", "hash_size", "hash_ids",
        "priority", "tenant",
    }  # fmt: skip
    command = ["simulate", "smollm2-135m", "--hardware", "cpu2", "--traffic", "recorded", "--traffic-file", str(path)]
    assert main([*command, "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert (figures["completed"], figures["output_tokens"]) == (5, 21)


def test_a_second_start_adds_lines_whose_ids_tell_nothing_of_the_first(tmp_path):
    path = tmp_path / "traffic.jsonl"
    for _ in range(2):
        with serve(path, Script()) as server:
            server.complete("same", max_tokens=1)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["hash_ids"] != second["hash_ids"]


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match=f"record_traffic: {tmp_path}: Is a directory"):
        TrafficRecorder(str(tmp_path))


def test_a_full_disk_ends_the_record_and_not_the_server(caplog):
    with serve("/dev/full", Script()) as server:
        for _ in range(3):
            server.complete("a", max_tokens=1)
    with caplog.at_level(logging.WARNING):
        assert "record_traffic: /dev/full: No space left on device" in caplog.text
