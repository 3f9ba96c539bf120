"""What a stranger may try: internal fields (G12), addresses (G06), pictures (G07), adapters (F07, G05)."""

import base64
import dataclasses
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Running, Script, assert_error, serving

from legato.core import types
from legato.engine.outputs import Output
from legato.protocol.chat import ChatBody
from legato.protocol.completion import CompletionBody
from support.byte_level import VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as it:
        yield it


@pytest.fixture(autouse=True)
def probed(server: Running) -> Iterator[None]:
    """Oracle 6: whatever a test sent, a good request succeeds and nothing is left behind."""
    yield
    assert server.complete("hi")["choices"][0]["text"] == "fine"
    server.wait_drained()


INTERNAL = sorted(
    {
        field.name
        for kind in (types.Request, types.SamplingParams, types.SlotReset, types.StepPlan, Output)
        for field in dataclasses.fields(kind)
    }
    | set(types.TokenEvent._fields)
    | {"data_parallel_rank", "bootstrap_room", "kv_transfer_params", "arrival_time", "is_warm_up", "__class__"}
)


@pytest.mark.parametrize(
    ("path", "public", "body"),
    [
        ("/v1/completions", CompletionBody, {"prompt": "hi"}),
        ("/v1/chat/completions", ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_g12_internal_fields_are_out_of_reach(
    server: Running, path: str, public: type[CompletionBody] | type[ChatBody], body: dict[str, Any]
) -> None:
    tried = [name for name in INTERNAL if name not in public.model_fields]
    assert {"slot", "adapter", "arrival_s", "end_token_ids"} <= set(tried)
    for name in tried:
        for value in (1, "x", [0]):
            assert_error(server.post(path, **body, **{name: value}), 400, param=name)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.settimeout(0)
        yield sock
        with pytest.raises(BlockingIOError):
            sock.accept()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0.0.0.0"])
def test_g06_no_address_is_fetched(server: Running, listener: socket.socket, host: str) -> None:
    url = f"http://{host}:{listener.getsockname()[1]}/x.png"
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "file", "file": {"file_data": url}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    ):
        messages = [{"role": "user", "content": [part]}]
        for path in ("/v1/chat/completions", "/tokenize"):
            assert "not supported" in assert_error(server.post(path, messages=messages), 400)


def test_g07_a_picture_is_refused_and_repeated_nowhere(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    payload = base64.b64encode(bytes(range(256)) * 4096).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{payload}"}}
    with caplog.at_level("DEBUG"):
        answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": [part]}])
    assert_error(answer, 400)
    assert len(answer.text) < 1000
    assert payload[:64] not in caplog.text


PATHS = ["a", "../a", "/etc", "~/a", "http://127.0.0.1/a", "a\0b", "a/../../b"]


@pytest.mark.parametrize("name", PATHS)
def test_f07_g05_adapters_cannot_be_loaded_and_unknown_ones_do_not_answer(server: Running, name: str) -> None:
    """None are served yet: the routes do not exist, and no name means the base model in silence."""
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert_error(server.post(path, lora_name=name, lora_path=name), 404)
    assert_error(server.post("/v1/completions", prompt="hi", model=name), 404, code="model_not_found")
