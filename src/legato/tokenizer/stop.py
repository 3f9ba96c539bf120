"""Stop strings in streamed text."""

__all__ = ["StopFinder"]


class StopFinder:
    """Finds stop strings in text that arrives in pieces, and says which text may be shown.

    The match that completes first wins; of several that complete at the same character, the longest. The result
    does not depend on how the text is cut. Only text that may still become a stop string is held back: the longest
    end of the text so far that begins one. Linear in the text (Knuth, Morris, Pratt 1977).
    """

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        """include: a found stop string is part of the shown text. Raises ValueError for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = stops
        self._include = include
        self._borders = [_borders(stop) for stop in stops]
        self._matched = [0] * len(stops)  # per stop: how many of its characters the text ends with
        self._held = ""
        self._found = False

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes more text. Returns the text that may be shown now, and the stop string if one is complete.

        After a match the rest of the text is dropped, and nothing more may be pushed.
        """
        if self._found:
            raise RuntimeError("text after a stop string")
        pending = self._held + text
        for index, char in enumerate(text, start=len(self._held)):
            stop = self._step(char)
            if stop is not None:
                self._found = True
                self._held = ""
                end = index + 1
                return pending[: end if self._include else end - len(stop)], stop
        hold = max(self._matched, default=0)
        self._held = pending[len(pending) - hold :]
        return pending[: len(pending) - hold], None

    def finish(self) -> str:
        """The text still held back, once no more text comes; empty after a match."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        """Advances every stop string by one character; the longest that is now complete."""
        complete: str | None = None
        for i, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop) and (complete is None or len(stop) > len(complete)):
                complete = stop
            self._matched[i] = matched
        return complete


def _borders(pattern: str) -> list[int]:
    """For each prefix of the pattern: the length of its longest proper prefix that is also its end."""
    borders = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = borders[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        borders[i] = length
    return borders
