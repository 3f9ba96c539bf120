"""Which sampling parameters a request gets that sets none: request, override, generation config, OpenAI."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import MODEL, Script, running

from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.core.types import SlotReset
from legato.engine.assemble import Engine, assemble
from support.byte_level import ASSETS, EOS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

OWN = {"temperature": 0.5, "top_k": 7, "max_new_tokens": 5, "eos_token_id": [EOS], "do_sample": True}


def engine_of(own: dict[str, Any] | None = None, **config: Any) -> tuple[Engine, ScriptedExecutor]:
    script = Script()
    script.set("hi", byte_tokens("x" * 50))
    executor = ScriptedExecutor(vocab_size=VOCAB, emit=script, max_position=32)
    assets = replace(ASSETS, generation_config=OWN if own is None else own)
    return assemble(executor, assets, EngineConfig(**config), MODEL), executor


def used(body: dict[str, Any], **config: Any) -> tuple[SlotReset, int]:
    """What the sampler got, and how many tokens came."""
    engine, executor = engine_of(**config)
    with running(engine, ServerConfig(port=0)) as server:
        answer = server.complete("hi", **body)
        return executor.plans[0].resets[0], answer["usage"]["completion_tokens"]


def test_the_order_of_precedence(tmp_path: Path) -> None:
    own, tokens = used({})
    assert (own.temperature, own.top_k, own.top_p, tokens) == (0.5, 7, 1.0, 5)
    asked, tokens = used({"temperature": 0.25, "max_tokens": 2}, override_generation_config='{"temperature": 0.75}')
    assert (asked.temperature, asked.top_k, tokens) == (0.25, 7, 2)
    override = '{"temperature": 0.75, "max_new_tokens": 9}'
    overridden, tokens = used({}, override_generation_config=override)
    assert (overridden.temperature, overridden.top_k, tokens) == (0.75, 7, 9)
    plain, tokens = used({}, generation_config="vllm")
    assert (plain.temperature, plain.top_k, tokens) == (1.0, 0, 16)
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_p": 0.5, "max_new_tokens": 1000}))
    other, tokens = used({}, generation_config=str(tmp_path))
    assert (other.temperature, other.top_p, tokens) == (1.0, 0.5, 30), "cut to what is left of the context"
    null, _ = used({"temperature": None})
    assert null.temperature == 0.5, "null means left out"


def test_a19_chat_takes_the_default_length_too() -> None:
    engine, _ = engine_of(override_generation_config='{"max_new_tokens": 3}')
    assert engine.inputs.defaults.max_tokens == 3
    with running(engine, ServerConfig(port=0)) as server:
        talk = [{"role": "user", "content": ""}]
        answer = server.post("/v1/chat/completions", messages=talk, ignore_eos=True).json()
        assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"override_generation_config": "{"}, "override_generation_config: is not JSON"),
        ({"override_generation_config": "[1]"}, "override_generation_config: holds no JSON object"),
        ({"override_generation_config": '{"temprature": 1}'}, "'temprature' is not one of temperature"),
        ({"override_generation_config": '{"temperature": 3}'}, "temperature must be between"),
        ({"override_generation_config": '{"max_new_tokens": 0}'}, "max_tokens must be"),
        ({"generation_config": "/nowhere"}, "/nowhere/generation_config.json"),
        ({"own": {"top_p": 7}}, "generation_config: top_p must be between"),
    ],
)
def test_what_ends_the_start(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_of(**config)
    assert said in str(caught.value)
