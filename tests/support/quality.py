"""How far one executor's next-token distributions are from another's, on given text (teacher-forced)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from support.drive import GREEDY, LogitsExecutor, run, step


@dataclass
class Quality:
    """Sums over positions; the properties are means."""

    positions: int = 0
    kl_sum: float = 0.0
    nll_sum: float = 0.0
    same: int = 0

    @property
    def kl(self) -> float:
        """KL divergence of the executor from the reference, in nats per token."""
        return self.kl_sum / self.positions

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll_sum / self.positions))

    @property
    def same_top(self) -> float:
        """Share of positions whose most likely token is the reference's."""
        return self.same / self.positions

    def add(self, reference: np.ndarray, own: np.ndarray, following: np.ndarray) -> None:
        """Log probabilities (positions, vocab) of both, and the tokens that follow."""
        self.positions += len(following)
        self.kl_sum += float(np.einsum("pv,pv->", np.exp(reference), reference - own, dtype=np.float64))
        self.nll_sum -= float(own[np.arange(len(following)), following].sum(dtype=np.float64))
        self.same += int((reference.argmax(axis=1) == own.argmax(axis=1)).sum())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def compare(
    reference: LogitsExecutor, others: Mapping[str, LogitsExecutor], windows: Iterable[Sequence[int]]
) -> dict[str, Quality]:
    """Quality of each executor against the reference (which is in the result as well, as "reference").

    All go through a window in the same chunks, so that no more than one chunk of logits is held.
    """
    executors = {"reference": reference, **others}
    result = {name: Quality() for name in executors}
    chunk = min(min(e.info().max_rows, e.info().max_seqs) for e in executors.values())
    for window in windows:
        for begin in range(0, len(window) - 1, chunk):
            tokens = window[begin : min(begin + chunk, len(window) - 1)]
            following = np.asarray(window[begin + 1 : begin + 1 + len(tokens)])
            expected = np.zeros((0, 0), np.float32)
            for name, executor in executors.items():
                run(executor, step(executor.info(), tokens, begin, reset=GREEDY if begin == 0 else None))
                own = log_softmax(executor.logits)
                if name == "reference":
                    expected = own
                result[name].add(expected, own, following)
    return result
