"""The reference executor: paging, chunks, windows, resets, copies, sampling, faults."""

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from legato.build.lower import lower
from legato.core.errors import ConfigError
from legato.core.types import NO_BLOCK, BlockCopy, BlockTable, OutputPurpose, SlotReset
from legato.executor.reference import ReferenceExecutor
from legato.models.find import find
from legato.quant.dequantize import dequantize
from support.drive import GREEDY, greedy, greedy_together, join, logits, run, step
from support.tiny_models import ARCHITECTURES, MemorySource, tiny_config, tiny_source

TOKENS = [int(t) for t in np.random.RandomState(5).randint(0, 80, 50)]


def make(source: MemorySource, *, num_blocks: int = 20, block_size: int = 4, max_rows: int = 64) -> ReferenceExecutor:
    plan = lower(find(source.config, "config.json"), source)
    return ReferenceExecutor(plan, source, block_size=block_size, num_blocks=num_blocks, max_rows=max_rows, max_seqs=3)


def tiny(model_type: str = "llama", **changes: Any) -> ReferenceExecutor:
    return make(tiny_source(tiny_config(model_type, **changes)))


def params(**changes: Any) -> SlotReset:
    return replace(GREEDY, **changes)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_give_the_same_logits(model_type: str, chunk: int) -> None:
    executor = tiny(model_type, **({"sliding_window": 8} if model_type == "mistral" else {}))
    whole = logits(executor, TOKENS)
    assert whole.shape == (50, 80)
    assert whole.std() > 1
    np.testing.assert_allclose(logits(executor, TOKENS, chunk=chunk), whole, atol=1e-4)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_block_sizes_give_the_same_logits(block_size: int) -> None:
    source = tiny_source(tiny_config("llama"))
    other = make(source, num_blocks=60, block_size=block_size)
    np.testing.assert_allclose(logits(other, TOKENS), logits(make(source), TOKENS), atol=1e-5)


def test_blocks_behind_a_window_may_be_gone() -> None:
    executor = tiny("mistral", sliding_window=8)
    expected = logits(executor, TOKENS)[-1]
    plan = step(executor.info(), TOKENS[-1:], len(TOKENS) - 1)
    table = plan.block_tables[0]
    run(executor, replace(plan, block_tables=(freed(table, 10),)))  # the last 8 positions are in blocks 10 to 12
    np.testing.assert_allclose(executor.logits[0], expected, atol=1e-5)
    with pytest.raises(ValueError, match="visible block of sequence 0 was freed"):
        executor.launch(replace(plan, block_tables=(freed(table, 11),)))


def freed(table: BlockTable, count: int) -> BlockTable:
    return replace(table, blocks=array("i", [NO_BLOCK] * count + table.blocks[count:].tolist()))


def test_sequences_in_one_step_do_not_see_each_other() -> None:
    source = tiny_source(tiny_config("qwen3"))
    executor = make(source, num_blocks=40)
    alone = [logits(executor, tokens) for tokens in (TOKENS[:20], TOKENS[20:31])]
    info = executor.info()
    halves = [(0, 20), (20, 20)]
    first, second = (TOKENS[:20], halves[0]), (TOKENS[20:31], halves[1])
    both = join(*(step(info, tokens, 0, reset=GREEDY, part=part) for tokens, part in (first, second)))
    result = run(executor, both)
    np.testing.assert_allclose(executor.logits, np.concatenate(alone), atol=1e-5)
    assert list(result.tokens) == [int(row.argmax()) for part in alone for row in part]


def test_greedy_tokens_follow_their_own_logits() -> None:
    executor = tiny()
    tokens = greedy(executor, TOKENS[:5], 8)
    scores = logits(executor, TOKENS[:5] + tokens[:-1])
    assert tokens == [int(row.argmax()) for row in scores[4:]]


def test_greedy_together_is_greedy_alone() -> None:
    executor = tiny("mistral", sliding_window=8)
    prompts = [TOKENS[:5], TOKENS[5:7], TOKENS[7:20]]
    assert greedy_together(executor, prompts, 6) == [greedy(executor, prompt, 6) for prompt in prompts]


def test_copies_move_whole_blocks_before_compute() -> None:
    executor = tiny()
    info = executor.info()
    expected = logits(executor, TOKENS[:9])[-1]
    logits(executor, TOKENS[:8])
    plan = step(info, TOKENS[8:9], 8)
    source = plan.block_tables[0].blocks[0]
    target = next(b for b in range(info.num_blocks) if b not in plan.block_tables[0].blocks)
    table = BlockTable(plan.block_tables[0].offsets, array("i", [target, *plan.block_tables[0].blocks[1:]]))
    run(executor, replace(plan, copies=(BlockCopy(0, 0, source, 0, target),), block_tables=(table,)))
    np.testing.assert_allclose(executor.logits[0], expected, atol=1e-5)


def test_sampling_parameters_stay_until_the_next_reset() -> None:
    executor = tiny()
    info = executor.info()
    favourite = run(executor, step(info, TOKENS[:4], 0, outputs=[3], reset=GREEDY)).tokens[0]
    again = step(info, TOKENS[:4], 0, outputs=[3])
    assert run(executor, again).tokens[0] == favourite
    banned = params(frequency_penalty=1e3, output=(favourite,))
    other = run(executor, replace(again, resets=(banned,))).tokens[0]
    assert other != favourite
    assert run(executor, again).tokens[0] not in (favourite, other)  # `other` counts as output now


def test_masks_and_logprobs() -> None:
    executor = tiny()
    plan = step(executor.info(), TOKENS[:4], 0, outputs=[2, 3], reset=params(num_logprobs=2))
    mask = bytearray(10)
    mask[17 // 8] |= 1 << 17 % 8
    result = run(executor, replace(plan, out_masks=array("i", [-1, 0]), masks=(bytes(mask),)))
    assert result.tokens[1] == 17
    assert [len(top) for top in result.top_logprobs] == [2, 2]
    assert result.top_logprobs[0][0] == (result.tokens[0], pytest.approx(result.logprobs[0]))
    scores = executor.logits[1].astype(np.float64)
    assert result.logprobs[1] == pytest.approx(scores[17] - np.log(np.exp(scores).sum()), abs=1e-5)


def test_prompts_are_scored_among_the_tokens_that_there_are() -> None:
    executor = tiny()
    plan = step(executor.info(), TOKENS[:4], 0, outputs=[0], reset=params(num_prompt_logprobs=37, vocab_size=37))
    scored = replace(plan, out_purposes=array("b", [OutputPurpose.PROMPT_LOGPROBS]), out_targets=array("i", [2]))
    result = run(executor, scored)
    assert sorted(token for token, _ in result.top_logprobs[0]) == list(range(37))
    assert sum(np.exp(value) for _, value in result.top_logprobs[0]) == pytest.approx(1)


def test_a_row_is_sampled_again_with_a_mask() -> None:
    executor = tiny()
    plan = step(executor.info(), TOKENS[:4], 0, outputs=[2, 3], reset=params(num_logprobs=2))
    mask = (1 << 17 | 1 << 18).to_bytes(10, "little")
    expected = run(executor, replace(plan, out_masks=array("i", [-1, 0]), masks=(mask,)))
    again = executor.sample_again(plan, run(executor, plan), {1: mask})
    assert again.tokens == expected.tokens
    assert again.logprobs == expected.logprobs
    assert again.top_logprobs == expected.top_logprobs
    assert executor._slots[0].output == list(expected.tokens)


def test_a_fault_stays_in_its_row() -> None:
    source = tiny_source(tiny_config("llama", tie_word_embeddings=False))
    source.arrays["model.embed_tokens.weight"][7] = np.nan
    executor = make(source, num_blocks=40)
    info = executor.info()
    good = step(info, [1, 2, 3], 0, reset=GREEDY, part=(0, 20))
    bad = step(info, [4, 7], 0, reset=GREEDY, part=(20, 20))
    expected = list(run(executor, good).tokens)
    result = run(executor, join(good, bad))
    assert list(result.faults) == [0, 0, 0, 0, 1]
    assert list(result.tokens)[:3] == expected
    assert result.tokens[4] == -1


def test_stale_nan_in_the_cache_does_not_reach_a_new_owner() -> None:
    executor = tiny()
    clean = logits(executor, TOKENS[:6])
    for pool in (*executor._keys, *executor._values):
        pool[:] = np.nan
    np.testing.assert_array_equal(logits(executor, TOKENS[:6]), clean)


def test_what_it_reports() -> None:
    info = tiny("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=2).info()
    assert [(g.kind, g.window, g.num_layers) for g in info.cache_groups] == [("full", None, 2), ("window", 8, 1)]
    assert [g.bytes_per_block for g in info.cache_groups] == [2 * 2 * 4 * 2 * 16 * 4, 2 * 1 * 4 * 2 * 16 * 4]
    assert (info.block_size, info.num_blocks, info.max_rows, info.max_seqs) == (4, 20, 64, 3)
    assert (info.vocab_size, info.max_position, info.chunk_align) == (80, 256, 1)


def test_steps_beyond_its_limits_are_refused() -> None:
    executor = make(tiny_source(tiny_config("llama")), max_rows=4)
    plan = step(executor.info(), TOKENS[:4], 0)
    for beyond in (
        step(executor.info(), TOKENS[:5], 0),
        replace(plan, seq_slots=array("i", [3])),
        replace(plan, adapters=array("i", [0])),
        replace(plan, parents=array("i", [-1, 0, 0, 1])),
        replace(plan, out_purposes=array("b", [1] * 4)),
        replace(plan, masks=(bytes(10),)),
        replace(plan, copies=(BlockCopy(0, 1, 0, 0, 0),)),
        replace(plan, kv_slots=(array("q", [0, 1, 2, -1]),)),
        replace(plan, kv_slots=(array("q", [0, 1, 2, executor.info().num_blocks * executor.info().block_size]),)),
    ):
        with pytest.raises(ConfigError):
            executor.launch(beyond)


def test_launch_and_collect_come_in_pairs() -> None:
    executor = tiny()
    plan = step(executor.info(), TOKENS[:4], 0, step_id=9)
    with pytest.raises(ValueError, match="step 9 was not launched"):
        executor.collect(9)
    executor.launch(plan)
    with pytest.raises(ValueError, match="step 9 was not collected"):
        executor.launch(plan)
    assert executor.collect(9).step_id == 9


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_stored_types_are_read_exactly(dtype: str) -> None:
    """A checkpoint in `dtype` equals an F32 one that holds the rounded values."""
    config = tiny_config("llama", num_hidden_layers=1)
    stored = tiny_source(config, dtype=lambda name: dtype)
    rounded = {name: read(stored, name) for name in stored.arrays}
    expected = logits(make(MemorySource(config, rounded)), TOKENS[:10])
    np.testing.assert_array_equal(logits(make(stored), TOKENS[:10]), expected)
    assert np.abs(expected - logits(make(tiny_source(config)), TOKENS[:10])).max() > 1e-4


def test_mixed_types_of_q_k_v_and_gate_up() -> None:
    dtypes = {"q_proj": "Q4_1", "k_proj": "Q4_1", "v_proj": "Q8_0", "gate_proj": "Q4_0", "up_proj": "F16"}
    stored = tiny_source(tiny_config("llama"), dtype=lambda name: dtypes.get(name.split(".")[-2], "F32"))
    values = {name: read(stored, name) for name in stored.arrays}
    expected = logits(make(MemorySource(stored.config, values)), TOKENS)
    np.testing.assert_allclose(logits(make(stored), TOKENS), expected, atol=1e-4)


def read(source: MemorySource, name: str) -> np.ndarray:
    raw = source.read(name)
    return dequantize(raw.info.dtype, raw.data).reshape(raw.info.shape)
