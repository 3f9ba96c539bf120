"""Beam search written to be read: the whole vocabulary, plain lists, everything ranked anew at each step."""

from collections.abc import Callable, Sequence

__all__ = ["plain_beam_search"]


def plain_beam_search(
    next_logprobs: Callable[[Sequence[int]], Sequence[float]],
    width: int,
    ends: frozenset[int],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[tuple[tuple[int, ...], float, bool]]:
    """The `width` best answers: tokens, score, and whether an end token ended them."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float, bool]] = []

    def keep(tokens: tuple[int, ...], total: float, ended: bool) -> None:
        finished.append((tokens, total / len(tokens) ** length_penalty, ended))
        finished.sort(key=lambda each: each[1], reverse=True)
        del finished[width:]

    for length in range(1, max_tokens + 1):
        following = [
            ((*tokens, token), total + logprob)
            for tokens, total in live
            for token, logprob in enumerate(next_logprobs(tokens))
        ]
        following.sort(key=lambda each: each[1], reverse=True)
        following = following[: width * max(2, 1 + len(ends))]
        for rank, (tokens, total) in enumerate(following):
            unfinished = [f for f in following[:rank] if f[0][-1] not in ends]
            if tokens[-1] in ends and rank < width and length > min_tokens and len(unfinished) < width:
                keep(tokens, total, True)
        live = [each for each in following if each[0][-1] not in ends][:width]
        if not live:
            return finished
        if length == max_tokens:
            for tokens, total in live:
                keep(tokens, total, False)
            return finished
        if len(finished) == width:
            reach = max_tokens if early_stopping == "never" and length_penalty > 0 else length
            best = max(total for _, total in live) / reach**length_penalty
            if early_stopping is True or finished[-1][1] >= best:
                return finished
    return finished
