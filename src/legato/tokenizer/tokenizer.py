"""Text to token ids and back, on the `tokenizers` library."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend

from legato.core.errors import CheckpointError, RequestError
from legato.tokenizer.assets import TextAssets
from legato.tokenizer.incremental import IncrementalDecoder
from legato.tokenizer.pieces import PieceTable

__all__ = ["Tokenizer"]

_SPACE = "\u2581"


class Tokenizer:
    """Encodes and decodes for one model. Safe to use from several threads at once.

    The backend never looks for special (control) tokens by itself: `parse_special` and `encode_parts` cut the
    text at them first. So text from outside cannot become a control token by accident.
    """

    def __init__(self, assets: TextAssets) -> None:
        """Raises CheckpointError where `tokenizer.json` is not understood."""
        try:
            self._backend = Backend.from_str(assets.tokenizer_json)
        except Exception as error:
            raise CheckpointError(f"tokenizer.json: {error}") from error
        self.assets = assets
        self._backend.no_truncation()
        self._backend.no_padding()
        self._first_prefix = _take_first_prefix(self._backend)
        self._prefix, self._suffix = self._ids_around()
        self._backend.encode_special_tokens = True
        special = {id: t for id, t in self._backend.get_added_tokens_decoder().items() if t.special}
        self._special_ids = frozenset(special)
        self._special_id_of = {token.content: id for id, token in special.items()}
        self._special_pattern = _pattern(special.values())
        self._pieces = PieceTable(self._backend)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def num_ids(self, rows: int) -> int:
        """Ids below this can be tokens, of a model with that many rows of logits: more rows are padding."""
        last = next((id for id in range(rows - 1, -1, -1) if self._backend.id_to_token(id) is not None), -1)
        return last + 1

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of every control token."""
        return dict(self._special_id_of)

    def is_special(self, id: int) -> bool:
        """Whether the id is a control token."""
        return id in self._special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        add_special_tokens: put the model's begin and end tokens around it. parse_special: the texts of control
        tokens become those tokens; else they are encoded like any other text. Raises RequestError for a text that
        is no Unicode (lone surrogates).
        """
        parts = self.split_special(text) if parse_special else [text]
        ids = self.encode_parts(parts)
        return self.surrounded(ids) if add_special_tokens else ids

    def surrounded(self, ids: Iterable[int]) -> list[int]:
        """Ids with the model's begin and end tokens around them."""
        return [*self._prefix, *ids, *self._suffix]

    def num_begin_tokens(self, prompt: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are those that `encode` puts there."""
        return len(self._prefix) if list(prompt[: len(self._prefix)]) == self._prefix else 0

    def encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        """Ids of texts and ready ids in a row; texts are encoded without looking for control tokens."""
        ids: list[int] = []
        first = True
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            elif part:
                if first and self._first_prefix and part[0] not in (" ", _SPACE):
                    part = " " + part
                ids += self._encode_text(part)
            first = False
        return ids

    def encode_further(self, text: str) -> list[int]:
        """Ids of a text that goes on where another one ended."""
        return self.encode_parts(("", text))

    def split_special(self, text: str) -> Iterator[str | int]:
        """Cuts a text at its control tokens: texts and control token ids in order."""
        position = 0
        if self._special_pattern is not None:
            for match in self._special_pattern.finditer(text):
                if match.start() > position:
                    yield text[position : match.start()]
                yield self._special_id_of[match[match.lastindex or 0]]
                position = match.end()
        if position < len(text):
            yield text[position:]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of a token list. Bytes that are no UTF-8 become U+FFFD."""
        decoder = self.decoder(skip_special_tokens)
        return decoder.push(ids) + decoder.finish()

    def decoder(
        self,
        skip_special_tokens: bool = True,
        *,
        continuation: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> IncrementalDecoder:
        """A decoder for a stream of tokens. shown: control tokens that are not skipped. continuation: the stream goes
        on after a prompt, so that a space before its first word belongs to the text (only sentencepiece vocabularies
        differ)."""
        skip = self._special_ids - shown if skip_special_tokens else frozenset[int]()
        return IncrementalDecoder(self._pieces, skip, continuation=continuation)

    def token_bytes(self, id: int) -> bytes:
        """The token's bytes; b"" for an id beyond the tokenizer's vocabulary."""
        return self._pieces[id]

    def _encode_text(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise RequestError("the text holds a lone surrogate, which is not Unicode text") from error
        return ids

    def _ids_around(self) -> tuple[list[int], list[int]]:
        """The ids that the post-processor puts before and after a text."""
        plain = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start], full[start + len(plain) :]
        raise CheckpointError("tokenizer.json: the post-processor changes the ids of a text")


def _take_first_prefix(backend: Backend) -> bool:
    """Takes over "put a space before the first word of a text" from the pre-tokenizer.

    The library does it at offset 0 of each call. Texts are encoded in pieces here, and only the first one may get it.
    """
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        return False
    state = json.loads(backend.pre_tokenizer.__getstate__())
    if state["prepend_scheme"] != "first":
        return False
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=state["replacement"], prepend_scheme="never", split=state["split"]
    )
    return True


def _pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """One group per token: the longest token at the leftmost place wins; lstrip and rstrip take the white space."""
    alternatives = []
    for token in sorted(tokens, key=lambda token: -len(token.content)):
        text = f"({re.escape(token.content)})"
        if token.single_word:
            text = rf"(?<!\w){text}(?!\w)"
        alternatives.append((r"\s*" if token.lstrip else "") + text + (r"\s*" if token.rstrip else ""))
    return re.compile("|".join(alternatives)) if alternatives else None
