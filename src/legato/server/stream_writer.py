"""The events of one stream, from the outputs of its choices."""

from legato.core.answers import Delta
from legato.core.types import FinishReason
from legato.engine.outputs import Output
from legato.protocol.responses import DONE, Frames, Reply, Style
from legato.server.answers import Answers, joined
from legato.server.scores import Scores, aside
from legato.server.tally import Tally

__all__ = ["StreamWriter"]

_WELL = (FinishReason.STOP, FinishReason.LENGTH)


class StreamWriter:
    """Knows what has been said of each choice. Outputs come in order, counted by `tally` already."""

    def __init__(self, reply: Reply, style: Style, scores: Scores, answers: Answers, tally: Tally) -> None:
        self._frames = Frames(reply, style.include_usage)
        self._begins = reply.chat or style.token_ids
        self._style = style
        self._scores = scores
        self._answers = answers
        self._tally = tally
        self._begun: set[int] = set()

    async def events(self, output: Output) -> list[bytes]:
        """What the next output adds to its choice. One that failed adds its text, and no last event."""
        frames, tally, index = self._frames, self._tally, self._tally.index(output)
        used = tally.usage() if self._style.continuous_usage else None
        out, echo = [], ""
        if index not in self._begun:
            self._begun.add(index)
            if self._begins:
                out.append(frames.begin(index, tally.prompt_token_ids(index), used))
            echo = self._scores.echo(index)
        logprobs = await aside(output.prompt_logprobs is not None, self._scores.next_body, index, output)
        token_ids = output.tokens if self._style.token_ids else None
        deltas = joined(echo, self._answers.push(index, output))
        well = output.finish in _WELL
        rest = deltas.pop().content if well and deltas and deltas[-1].content else ""
        for delta in deltas:
            out.append(frames.delta(index, delta, logprobs, token_ids, used))
            logprobs, token_ids = None, token_ids and ()  # they come with the first piece of their output
        if well:
            reason = self._answers.finish_reason(index, output)
            choice = tally.choice(index, rest, token_ids or (), output, reason, logprobs)
            out.append(frames.finish(choice, used))
        elif not deltas and output.tokens and (logprobs is not None or token_ids):
            out.append(frames.delta(index, Delta(), logprobs, token_ids, used))
        return out

    def end(self) -> bytes:
        """Behind the last events of all choices."""
        return (self._frames.usage(self._tally.usage()) if self._style.include_usage else b"") + DONE
