"""What a stranger may try: internal fields (G12), addresses (G06), pictures (G07, C07), adapters (C05, F07, G05).

Images, adapters and speculation (B03, D17, D18) do not exist here: what asks for them is refused by name, so that
nobody gets an answer that was made without them.
"""

import base64
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving

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


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
INTERNAL = sorted(
    {
        field.name
        for kind in (types.Request, types.SamplingParams, types.SlotReset, types.StepPlan, Output)
        for field in dataclasses.fields(kind)
    }
    | set(types.TokenEvent._fields)
    | {"data_parallel_rank", "bootstrap_room", "kv_transfer_params", "arrival_time", "is_warm_up", "__class__"}
)


@pytest.mark.parametrize(("path", "public"), list(zip(BODIES, (CompletionBody, ChatBody), strict=True)))
def test_g12_internal_fields_are_out_of_reach(
    server: Running, path: str, public: type[CompletionBody] | type[ChatBody]
) -> None:
    tried = [name for name in INTERNAL if name not in public.model_fields]
    assert {"slot", "adapter", "arrival_s", "end_token_ids"} <= set(tried)
    for name in tried:
        for value in (1, "x", [0]):
            assert_error(server.post(path, **BODIES[path], **{name: value}), 400, param=name)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """On this machine, for all addresses that lead to it. Nobody may knock."""
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        sock.listen()
        sock.settimeout(0)
        yield sock
        with pytest.raises(BlockingIOError):
            sock.accept()


HOSTS = [
    "127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433", "0x7f000001",
    "0177.0.0.1", "127.1", "0.0.0.0", "169.254.169.254", "user@127.0.0.1",
]  # fmt: skip


def parts(url: str) -> list[dict[str, Any]]:
    """Content parts of every kind that names something to fetch."""
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "file", "file": {"file_data": url}},
        {"image_url": {"url": url}},
    ]


def assert_parts_are_refused(server: Running, url: str) -> None:
    """Whatever the part, the role and the route: 400 that names the part's type, and says nothing of its content."""
    for part in parts(url):
        messages = [{"role": "user", "content": [{"type": "text", "text": "look:"}, part]}]
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = server.post(path, messages=messages)
            assert "only 'text' is" in assert_error(answer, 400, param="messages[0].content[1].type")
            assert url[:64] not in answer.text


@pytest.mark.parametrize("host", HOSTS)
def test_g06_no_address_is_fetched(server: Running, listener: socket.socket, host: str) -> None:
    assert_parts_are_refused(server, f"http://{host}:{listener.getsockname()[1]}/x.png")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "ftp://127.0.0.1/x", "", "http://", "\0"])
def test_g06_no_file_is_read_and_no_odd_address_does_harm(server: Running, url: str) -> None:
    for part in parts(url):
        content = [{"type": "text", "text": "root:"}, part]
        answer = server.post("/v1/chat/completions", messages=[{"role": "system", "content": content}])
        assert_error(answer, 400, param="messages[0].content[1].type")
        assert "root:x" not in answer.text


def test_g06_a_text_part_carries_nothing_else(listener: socket.socket) -> None:
    """Where unknown fields are let pass, an address beside the text is one; an image is refused all the same."""
    url = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"}
    script = Script()
    script.set("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", byte_tokens("fine"))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script), permissive_fields=True) as permissive:
        content = [{"type": "text", "text": "hi", "image_url": url}]
        answer = permissive.post("/v1/chat/completions", messages=[{"role": "user", "content": content}])
        assert answer.json()["choices"][0]["message"]["content"] == "fine"
        assert answer.headers["x-legato-ignored-fields"] == "messages[0].content[0].image_url"
        assert_parts_are_refused(permissive, url["url"])


PAYLOADS = {
    "a picture": "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4096).decode(),
    "broken base64": "data:image/png;base64," + "@@@=" * 100,
    "no base64": "data:image/png;base64",
    "cut short": "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()[:-3],
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_g07_c07_a_picture_is_refused_and_repeated_nowhere(
    server: Running, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It never becomes part of a prompt, so no two of them can share what is cached of one."""
    url = PAYLOADS[name]
    with caplog.at_level("DEBUG"):
        assert_parts_are_refused(server, url)
        answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": parts(url)[:1]}])
    assert len(answer.text) < 1000
    assert url[-60:] not in answer.text + caplog.text


def test_g07_a_body_larger_than_the_limit_is_refused_unread(caplog: pytest.LogCaptureFixture) -> None:
    url = "data:image/png;base64," + "A" * 200_000
    with (
        caplog.at_level("DEBUG"),
        serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), max_body_bytes=100_000) as small,
    ):
        answer = small.post("/v1/chat/completions", messages=[{"role": "user", "content": parts(url)[:1]}])
        assert "100000" in assert_error(answer, 413)
        small.wait_drained()
    assert "AAAA" not in answer.text + caplog.text


def test_g06_g07_fields_of_media_are_refused_by_name(server: Running) -> None:
    for path, body in BODIES.items():
        for name in ("mm_payload", "mm_processor_kwargs", "media_io_kwargs"):
            assert_error(server.post(path, **body, **{name: {}}), 400, param=name, code="unsupported_parameter")
    embeds = server.post("/v1/completions", prompt_embeds=base64.b64encode(b"x" * 100).decode())
    assert_error(embeds, 400, param="prompt_embeds", code="unsupported_parameter")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter that lies on the server's disk, and a pickled one that would write a file."""
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (tmp_path / "adapter_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + bytes(tmp_path / "harm") + b"'\ntR.")
    (tmp_path / "link").symlink_to("/etc")
    return tmp_path


def test_f07_g05_adapters_cannot_be_loaded_and_unknown_ones_do_not_answer(server: Running, adapter: Path) -> None:
    """The routes do not exist, and say the same of what exists and what does not; no name means the base model."""
    there = [str(adapter), str(adapter / "link"), f"{adapter}/../{adapter.name}", "/etc", "~"]
    not_there = ["a", "../a", "~/a", "http://127.0.0.1/a", "a\0b", "a/../../b", str(adapter / "none")]
    said = set()
    for name in (*there, *not_there):
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            answer = server.post(path, lora_name=name, lora_path=name)
            said.add(assert_error(answer, 404).replace("unload", "load"))
        for path, body in BODIES.items():
            for stream in (False, True):
                answer = server.post(path, model=name, stream=stream, **body)
                assert_error(answer, 404, param="model", code="model_not_found")
        assert_error(server.post("/tokenize", model=name, prompt="hi"), 404, param="model", code="model_not_found")
    assert len(said) == 1
    assert not (adapter / "harm").exists()
    assert [model.id for model in server.api.models.list()] == [MODEL]


@pytest.mark.parametrize("permissive", [False, True])
def test_c05_f07_fields_that_ask_for_an_adapter_are_refused_by_name(permissive: bool) -> None:
    """In either mode: an answer of the base model would be the wrong one."""
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=Script()), permissive_fields=permissive) as it:
        for path, body in BODIES.items():
            for name in ("lora_request", "lora_path", "adapter_id"):
                for value in ("a", {"lora_name": "a", "lora_int_id": 1, "lora_path": "/a"}):
                    answer = it.post(path, **body, **{name: value})
                    assert_error(answer, 400, param=name, code="unsupported_parameter")
        it.wait_drained()


@pytest.mark.parametrize(
    "name",
    ["speculative_config", "speculative_model", "num_speculative_tokens", "draft_model", "spec_tokens", "prediction"],
)
def test_b03_d17_d18_requests_cannot_ask_for_speculation(server: Running, name: str) -> None:
    for path, body in BODIES.items():
        for value in (3, "ngram", {"method": "ngram", "num_speculative_tokens": 4}):
            assert_error(server.post(path, **body, **{name: value}), 400, param=name)
