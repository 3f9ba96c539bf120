"""logit_bias and allowed_token_ids: from the body to the sampler."""

from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving

from legato.core.types import SlotReset
from support.byte_level import EOS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

TALK: Any = [{"role": "user", "content": "hi"}]


def installed(server: Running, executor: ScriptedExecutor, path: str, **body: Any) -> SlotReset:
    executor.plans.clear()
    content = {"prompt": "hi"} if path == "/v1/completions" else {"messages": TALK}
    response = server.post(path, **content, max_tokens=1, **body)
    assert response.status_code == 200, response.text
    [reset] = executor.plans[0].resets
    return reset


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_the_sampler_gets(path: str) -> None:
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=Script())
    with serving(executor) as server:
        reset = installed(server, executor, path, logit_bias={"7": 300, "0": -0.5}, allowed_token_ids=[9, 4])
        assert (reset.bias_token_ids, reset.bias_values) == ((0, 7), (-0.5, 100.0))
        assert reset.allowed_token_ids == (9, 4)
        reset = installed(server, executor, path, logit_bias={}, allowed_token_ids=None)
        assert (reset.bias_token_ids, reset.bias_values, reset.allowed_token_ids) == ((), (), ())
        server.api.chat.completions.create(model=MODEL, messages=TALK, logit_bias={"11": -100}, max_tokens=1)
        assert executor.plans[-1].resets[0].bias_token_ids == (11,)


def test_min_tokens_must_leave_something_to_choose() -> None:
    script = Script()
    script.set("hi", byte_tokens("fine"))
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script)) as server:
        nothing = {"prompt": "hi", "min_tokens": 1, "allowed_token_ids": [EOS, 7], "stop_token_ids": [7]}
        assert_error(server.post("/v1/completions", **nothing), 400, param="allowed_token_ids")
        assert server.post("/v1/completions", **nothing, ignore_eos=True).status_code == 200
        assert server.post("/v1/completions", **{**nothing, "min_tokens": 0}).status_code == 200
