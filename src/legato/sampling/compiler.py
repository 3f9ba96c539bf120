"""From the grammar of a request to one that gives masks. llguidance does the work."""

from __future__ import annotations  # llguidance is loaded at first use

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from legato.core.config import GrammarConfig
from legato.core.errors import RequestError
from legato.core.grammar import Grammar
from legato.sampling.closing import Closing
from legato.sampling.matcher import MaskedGrammar
from legato.sampling.trial import Trial

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["GrammarCompiler", "Vocabulary"]

# Never endless: one space, or a new line and its indentation. White space is one lexeme between two others.
_WHITE_SPACE = {"whitespace_pattern": r"( |\n[ \t]{0,16})"}
# Tokens that llguidance takes or leaves together: white space, and text of a JSON string up to that many characters.
# With its own (10, 30 and any number), a string of bounded length leaves it with most of the vocabulary.
_TEXT = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(_TEXT + f"{{1,{most}}}" for most in (8, 10, 14, 30)), _TEXT + "+"]
# What the lexer may cost for one token (some milliseconds), and a matcher in memory (about 1 KiB a lexer state).
_PARSER_LIMITS: dict[str, Any] = {"step_lexer_fuel": 100_000, "max_lexer_states": 20_000, "verbose_errors": False}
_PATIENCE_S = 30.0  # by the clock, beyond the CPU time that a grammar may take: others may want the CPUs, too
_SHOWN = 400  # characters of a reason
_SHORT, _MOST_KNOWN = 64, 4096  # characters of a text whose tokens are kept, and how many texts are


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that a model can choose: `size` ids, the bytes of each, and which of them are no text.

    `encode` gives the ids of a text that goes on where another one ended.
    """

    size: int
    token_bytes: Callable[[int], bytes]
    special_ids: Collection[int]
    encode: Callable[[str], list[int]]


class GrammarCompiler:
    """Compiles for one vocabulary, which is read at the first use. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._vocabulary = vocabulary
        self._config = config
        self._limits = {**_PARSER_LIMITS, "step_max_items": config.max_grammar_items}
        self._trial = Trial(self._trial_setup, config.grammar_timeout + _PATIENCE_S)
        self._tokenizer: LLTokenizer | None = None
        self._closing: Closing | None = None
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> MaskedGrammar:
        """A grammar that is ready for use. RequestError: it is wrong, or costs more than is allowed."""
        if len(grammar.source.encode(errors="surrogatepass")) > self._config.max_grammar_bytes:
            raise _refusal(grammar, f"it is longer than {self._config.max_grammar_bytes} bytes (max_grammar_bytes)")
        answer = self._trial.run(*self._text(grammar))
        if "error" in answer:
            raise _refusal(grammar, _reason(answer["error"]))
        tokenizer = self._ready()
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**self._limits)
        matcher = LLMatcher(tokenizer, answer["grammar"], log_level=0, limits=limits)
        try:
            closing = self._closing if _is_json(grammar) else None
            return MaskedGrammar(matcher, self._vocabulary.size, closing)
        except ValueError as error:
            raise _refusal(grammar, _reason(str(error))) from None

    def close(self) -> None:
        self._trial.close()

    def _text(self, grammar: Grammar) -> tuple[str, str]:
        """The grammar as llguidance knows it: a kind that the trial reads, and the text."""
        if grammar.kind == "lark":
            return "lark", grammar.source
        if grammar.kind == "regex":
            return "regex", grammar.source
        if grammar.kind == "choice":
            return "regex", "|".join(map(_literal, json.loads(grammar.source)))
        schema: Any = json.loads(grammar.source or "{}")
        if _depth(schema, self._config.max_grammar_depth) > self._config.max_grammar_depth:
            raise _refusal(
                grammar, f"it is nested deeper than {self._config.max_grammar_depth} levels (max_grammar_depth)"
            )
        if not isinstance(schema, dict | bool):
            raise _refusal(grammar, "a schema must be an object or a boolean")
        if schema is False:
            raise _refusal(grammar, "no value fits the schema false")
        kind = {"type": "object"} if grammar.kind == "json_object" else {}
        return "json", json.dumps({"x-guidance": _WHITE_SPACE, **kind, **({} if schema is True else schema)})

    def _trial_setup(self) -> dict[str, Any]:
        tokens = _Tokens(self._vocabulary)
        return {
            "tokens": [token.hex() for token in tokens.tokens],
            "special": tokens.special_token_ids,
            "slices": _SLICES,
            "limits": self._limits,
            "seconds": self._config.grammar_timeout,
            "memory": self._config.max_grammar_memory,
        }

    def _ready(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                tokens = _Tokens(self._vocabulary)
                if self._config.grammar_closing_tokens:
                    self._closing = Closing(tokens.tokens[:-1], self._config.grammar_closing_tokens)
                self._tokenizer = _tokenizer(tokens)
            return self._tokenizer


class _Tokens:
    """A vocabulary and an end token, in the shape that llguidance asks for."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*map(vocabulary.token_bytes, range(vocabulary.size)), b"<end>"]
        self.eos_token_id = vocabulary.size
        self.special_token_ids = [*(id for id in vocabulary.special_ids if id < vocabulary.size), vocabulary.size]
        self.greedy: Callable[[str], list[int]] | None = None
        self._encode = vocabulary.encode
        self._known: dict[str, list[int]] = {}  # the same few texts follow in all records: names of properties, say

    def __call__(self, text: str) -> list[int]:
        """Called where only one text can follow: the tokens that the model has learned to write it in.

        A tokenizer that puts a space before every text says something else than the text; then longest tokens first.
        """
        ids = self._known.get(text)
        if ids is None:
            ids = self._ids(text)
            if self.greedy is not None and len(text) <= _SHORT and len(self._known) < _MOST_KNOWN:
                self._known[text] = ids
        return ids

    def _ids(self, text: str) -> list[int]:
        ids = self._encode(text)
        if self.greedy is None or b"".join(self.tokens[id] for id in ids) == text.encode():
            return ids
        return self.greedy(text)


def _tokenizer(tokens: Any) -> LLTokenizer:
    from llguidance import LLTokenizer

    made = LLTokenizer(tokens, n_vocab=len(tokens.tokens), eos_token=tokens.eos_token_id, slices=_SLICES)
    tokens.greedy = made.greedy_tokenize
    return made


def _is_json(grammar: Grammar) -> bool:
    return grammar.kind in ("json_object", "json_schema")


def _literal(text: str) -> str:
    """A regular expression of one text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _depth(value: Any, limit: int) -> int:
    """Objects and lists inside each other; what is deeper than `limit` by more than one is not looked at."""
    depth, level = 0, [value]
    while level and depth <= limit:
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [v for each in inner for v in (each.values() if isinstance(each, dict) else each)]
        depth += bool(inner)
    return depth


def _refusal(grammar: Grammar, reason: str) -> RequestError:
    return RequestError(f"{grammar.param} cannot be used: {reason}", param=grammar.param, code="invalid_grammar")


def _reason(error: str) -> str:
    """One line. llguidance repeats the grammar, and where it was not prepared for one, it shows its own stack."""
    if error.startswith("panic"):
        return "it is too large"
    if error.startswith("NoExtension"):
        return "nothing but the empty text fits it"
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
