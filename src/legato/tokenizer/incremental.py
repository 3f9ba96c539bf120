"""Token ids to text, a few tokens at a time."""

import codecs
from collections.abc import Container, Iterable

from legato.tokenizer.pieces import PieceTable

__all__ = ["IncrementalDecoder"]


class IncrementalDecoder:
    """Decodes a stream of tokens. All returned texts joined are the text of all tokens, however they were cut.

    Works on bytes: each token is looked at once, and at most three bytes of an unfinished character are held back.
    Bytes that are no UTF-8 become U+FFFD as soon as that is certain, one for each maximal ill-formed part (as
    `bytes.decode(errors="replace")` does), so U+FFFD never stands for a character that is merely unfinished.
    """

    def __init__(self, pieces: PieceTable, skip: Container[int], *, continuation: bool) -> None:
        """skip: ids that give no text. continuation: the text goes on after other text, so keep its first space."""
        self._pieces = pieces
        self._skip = skip
        self._leading = "keep" if continuation else pieces.leading
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        data = b"".join([self._piece(id) for id in ids if id not in self._skip])
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What is still held back: U+FFFD for an unfinished character, else nothing."""
        return self._utf8.decode(b"", final=True)

    def _piece(self, id: int) -> bytes:
        piece = self._pieces[id]
        if self._leading != "keep" and piece:
            if self._leading == "all":
                piece = piece.lstrip(b" ")
            elif piece.startswith(b" "):
                piece = piece[1:]
            self._leading = "keep"
        return piece
