"""How often a stream says something."""

from legato.engine.outputs import Output

__all__ = ["Pace"]


class Pace:
    """Joins the outputs of each choice until they hold `interval` tokens. Its first and its last one go at once."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[tuple[str, int], Output | None] = {}  # by choice, once it has begun

    def push(self, output: Output) -> Output | None:
        """What is to be told now: this output, with those of its choice that were held back."""
        if self._interval == 1:
            return output
        key = (output.request_id, output.choice)
        begun = key in self._held
        held = self._held.get(key)
        joined = output if held is None else held.then(output)
        if begun and output.finish is None and len(joined.tokens) < self._interval:
            self._held[key] = joined
            return None
        self._held[key] = None
        return joined

    def held(self) -> list[Output]:
        """What was held back of all choices, as no more comes."""
        held = [output for output in self._held.values() if output is not None]
        self._held.clear()
        return held
