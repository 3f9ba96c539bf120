"""The exact bytes of each token of a `tokenizers` vocabulary."""

import json
from typing import Any, Literal

from tokenizers import Tokenizer

from legato.core.errors import CheckpointError

__all__ = ["Leading", "PieceTable"]

_SPACE = "\u2581"
Leading = Literal["keep", "one", "all"]


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself where printable, else from U+0100 on.

    The rule is the one of the GPT-2 release.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class PieceTable:
    """token id -> bytes. Concatenated bytes of a token list, decoded as UTF-8, are its text.

    `leading` says what the decoder does to spaces at the very start of a text: "keep" them, drop "one", or drop
    "all" of the first token (sentencepiece vocabularies write a word with its space in front).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items()}
        self._cache: dict[int, bytes] = {}
        steps = _decoder_steps(tokenizer)
        kinds = {step["type"] for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        unknown = kinds - {"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace"}
        if unknown or not kinds:
            name = ", ".join(sorted(unknown)) or "null"
            raise CheckpointError(f"tokenizer.json: decoder {name} is not supported")
        self.leading: Leading = _leading(steps)

    def __getitem__(self, id: int) -> bytes:
        """The token's bytes; b"" for an id that the tokenizer does not have (padding of the embedding)."""
        piece = self._cache.get(id)
        if piece is None:
            piece = self._cache[id] = self._compute(id)
        return piece

    def _compute(self, id: int) -> bytes:
        if id in self._added:
            return self._added[id].encode("utf-8")
        token: str | None = self._tokenizer.id_to_token(id) if id >= 0 else None
        if token is None:
            return b""
        if self._byte_level:
            if all(char in _BYTE_OF for char in token):
                return bytes(_BYTE_OF[char] for char in token)
            return token.encode("utf-8")
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace(_SPACE, " ").encode("utf-8")


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder as a flat list of its JSON steps."""
    if tokenizer.decoder is None:
        return []
    decoder = json.loads(tokenizer.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _leading(steps: list[dict[str, Any]]) -> Leading:
    for step in steps:
        if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return "all"
        if step["type"] == "Strip" and step.get("content") == " " and step.get("start") == 1:
            return "one"
    return "keep"
