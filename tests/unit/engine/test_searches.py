"""Beam searches in the engine: what becomes of them when they are aborted or refused."""

import pytest

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.types import BeamOptions, FinishReason, SamplingParams
from legato.engine.assemble import Engine, assemble
from legato.engine.outputs import Output
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor


def engine(**scheduler: int) -> Engine:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=4, **scheduler))
    return assemble(ScriptedExecutor(vocab_size=VOCAB), ASSETS, config, "scripted")


def search(it: Engine, text: str, width: int = 3) -> str:
    params = SamplingParams(n=width, max_tokens=9, ignore_eos=True)
    request = it.inputs.request(byte_tokens(text), params, beam=BeamOptions(width))
    it.loop.submit([request])
    return request.request_id


def ends(outputs: list[Output], request_id: str) -> list[tuple[int, FinishReason | None]]:
    return [(output.choice, output.finish) for output in outputs if output.request_id == request_id]


@pytest.mark.parametrize("steps", range(12))
def test_p2_an_aborted_search_ends_each_choice_once_whenever_it_comes(steps: int) -> None:
    """Between two rounds too, when no request of a round is there to be aborted; another search goes on."""
    it = engine()
    outputs: list[Output] = []
    it.loop.publish = outputs.extend
    left, other = search(it, "left"), search(it, "other")
    for _ in range(steps):
        it.loop.step()
    it.loop.abort(left)
    while it.loop.busy:
        it.loop.step()
    found = ends(outputs, left)
    assert [choice for choice, _ in found] == [0, 1, 2]
    assert len({finish for _, finish in found}) == 1
    assert found[0][1] is FinishReason.ABORT or steps > 8
    assert ends(outputs, other) == [(choice, FinishReason.LENGTH) for choice in range(3)]
    assert {output.request_id for output in outputs} == {left, other}, "nobody hears of the rounds"
    searches = it.loop._searches
    assert not searches._searches
    assert not searches._beams
    assert (it.loop.stats.running, it.loop.stats.waiting, it.loop.stats.blocks_used) == (0, 0, 0)
    assert it.metrics.requests.num_live == 0


def test_more_beams_than_tokens_are_refused_by_name() -> None:
    it = engine()
    outputs: list[Output] = []
    it.loop.publish = outputs.extend
    params = SamplingParams(n=3, max_tokens=9, stop_token_ids=tuple(range(VOCAB - 2)))
    it.loop.submit([it.inputs.request(byte_tokens("a"), params, beam=BeamOptions(3))])
    while it.loop.busy:
        it.loop.step()
    assert [(o.choice, o.finish, o.error_param) for o in outputs] == [(i, FinishReason.ERROR, "n") for i in range(3)]
