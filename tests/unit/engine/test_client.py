"""The door to the engine for asynchronous code."""

from legato.core.config import EngineConfig
from legato.core.types import SamplingParams
from legato.engine.assemble import assemble
from legato.engine.client import EngineClient
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


def test_a22_a_request_counts_as_open_until_the_engine_knows_that_nobody_reads() -> None:
    """Whoever waits for `num_open` then knows that no step more is planned for it."""
    it = assemble(ScriptedExecutor(vocab_size=VOCAB), ASSETS, EngineConfig(), "scripted")
    client = EngineClient(it.loop)
    request = it.inputs.request(byte_tokens("a"), SamplingParams(max_tokens=3))
    client.submit([request])
    told: list[tuple[str, int]] = []
    it.loop.abort = lambda request_id: told.append((request_id, client.num_open))  # type: ignore[method-assign]
    for _ in range(2):
        client.abort(request.request_id)
    assert told == [(request.request_id, 1)]
    assert client.num_open == 0
