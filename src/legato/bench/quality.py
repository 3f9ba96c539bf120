"""How far a format's next-token distributions are from those of the fp32 format, on given text (teacher-forced).

For each position of each window of tokens: KL = sum_v p(v) (log p(v) - log q(v)) in nats, with p of fp32 and q of the
format; whether both have the same most likely token; and -log q of the token that follows, whose mean's exponential is
the perplexity.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from legato.core.config import CacheConfig, ModelConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import BlockTable, ExecutorInfo, SlotReset, StepPlan
from legato.engine.start import engine_file
from legato.executor.native import NativeExecutor
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["Quality", "measure", "opened", "read_windows", "windows"]

CHUNK = 128  # positions computed, and logits held, at a time
_GREEDY = SlotReset(0, 0.0, 1.0, 0, 0.0, 0, 0, 1.0, 0.0, 0.0, -1, 0, (), (), ())


@dataclass(slots=True)
class Quality:
    """Sums over positions; the properties are means."""

    positions: int = 0
    kl_sum: float = 0.0
    nll_sum: float = 0.0
    reference_nll_sum: float = 0.0
    same: int = 0

    @property
    def kl(self) -> float:
        return self.kl_sum / self.positions

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll_sum / self.positions))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(self.reference_nll_sum / self.positions))

    @property
    def same_top(self) -> float:
        return self.same / self.positions

    def add(
        self, reference: npt.NDArray[np.float32], own: npt.NDArray[np.float32], following: npt.NDArray[np.int32]
    ) -> None:
        """Log probabilities float32 (positions, vocab) of both, and the tokens that follow."""
        at = np.arange(len(following))
        self.positions += len(following)
        self.kl_sum += float(np.einsum("pv,pv->", np.exp(reference), reference - own, dtype=np.float64))
        self.nll_sum -= float(own[at, following].sum(dtype=np.float64))
        self.reference_nll_sum -= float(reference[at, following].sum(dtype=np.float64))
        self.same += int((reference.argmax(axis=1) == own.argmax(axis=1)).sum())

    def to_json(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "kl": self.kl,
            "same_top": self.same_top,
            "perplexity": self.perplexity,
            "reference_perplexity": self.reference_perplexity,
        }


def windows(tokens: Sequence[int], length: int, most: int | None) -> list[list[int]]:
    """Whole windows of `length` tokens, one after another. ConfigError where the text is shorter than one."""
    count = len(tokens) // length
    if count == 0:
        raise ConfigError(f"the text has {len(tokens)} tokens, fewer than one window of {length}")
    return [list(tokens[i * length : (i + 1) * length]) for i in range(count)][:most]


def read_windows(model: ModelConfig, paths: Sequence[Path], length: int, most: int | None) -> list[list[int]]:
    """Windows of the files' text, joined, in the model's tokens. ConfigError names what is wrong."""
    if length < 2 or (most is not None and most < 1):
        raise ConfigError("window must be at least 2, and max_windows at least 1")
    try:
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"text: {error}") from None
    tokenizer = Tokenizer(engine_file(model).text_assets)
    return windows(tokenizer.encode(text, add_special_tokens=False, parse_special=False), length, most)


@contextmanager
def opened(
    model: ModelConfig, formats: Mapping[str, tuple[str, str]], threads: int | None, length: int
) -> Iterator[tuple[NativeExecutor, dict[str, NativeExecutor]]]:
    """The model in fp32, and in each of the formats (of weights and of KV, by name), with room for one window."""
    scheduler = SchedulerConfig(max_num_batched_tokens=CHUNK, max_num_seqs=CHUNK)
    with ExitStack() as resources:

        def one(format: str, kv_dtype: str) -> NativeExecutor:
            cache = CacheConfig(num_blocks=-(-length // 16), kv_cache_dtype=kv_dtype)
            file = engine_file(replace(model, format=format))
            executor = NativeExecutor.open(file, cache=cache, scheduler=scheduler, threads=threads)
            resources.callback(executor.close)
            return executor

        yield one("fp32", "fp32"), {name: one(*format) for name, format in formats.items()}


def measure(
    reference: NativeExecutor,
    tested: Mapping[str, NativeExecutor],
    texts: Sequence[Sequence[int]],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Quality]:
    """Of each tested executor, by its name. All run over the windows in the same chunks."""
    found = {name: Quality() for name in tested}
    for done, window in enumerate(texts, 1):
        for begin in range(0, len(window) - 1, CHUNK):
            tokens = window[begin : min(begin + CHUNK, len(window) - 1)]
            following = np.asarray(window[begin + 1 : begin + 1 + len(tokens)], np.int32)
            expected = _log_probs(reference, tokens, begin)
            for name, executor in tested.items():
                found[name].add(expected, _log_probs(executor, tokens, begin), following)
        progress(done)
    return found


def _log_probs(executor: NativeExecutor, tokens: Sequence[int], begin: int) -> npt.NDArray[np.float32]:
    plan = _step(executor.info(), tokens, begin)
    executor.launch(plan)
    executor.collect(plan.step_id)
    shifted = executor.logits - executor.logits.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _step(info: ExecutorInfo, tokens: Sequence[int], begin: int) -> StepPlan:
    """Tokens at positions begin, begin + 1, ... of the only sequence, in blocks 0, 1, ...; logits of every row."""
    end, groups = begin + len(tokens), len(info.cache_groups)
    blocks = array("i", range(-(-end // info.block_size)))
    positions = range(begin, end)
    return StepPlan(
        step_id=0,
        tokens=array("i", tokens),
        positions=array("i", positions),
        kv_slots=(array("q", positions),) * groups,
        parents=array("i"),
        row_offsets=array("i", [0, len(tokens)]),
        seq_slots=array("i", [0]),
        block_tables=(BlockTable(array("i", [0, len(blocks)]), blocks),) * groups,
        adapters=array("i"),
        out_rows=array("i", range(len(tokens))),
        out_purposes=array("b", bytes(len(tokens))),
        out_params=array("i", [0] * len(tokens)),
        out_masks=array("i"),
        resets=(_GREEDY,) if begin == 0 else (),
    )
