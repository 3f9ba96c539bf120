"""A process that compiles grammars to see whether that is safe. Run as a program; knows llguidance and nothing else.

Each message is four bytes, little-endian, that say its length, and then JSON. The first says what to work with (see
`Trial`), the others are grammars: [kind, text], where kind is lark (the text may be GBNF), regex or json (a schema).
The answer to those is {"grammar": the same in llguidance's form} or {"error": why not}.

A grammar that takes too much time, memory or stack kills the process, which is what it is for.
"""

import json
import resource
import signal
import sys
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

STEPS = 8  # tokens that are tried: what is too wide shows where the answer branches, not at its first token
STACK = 4 << 20  # bytes; less than the engine's threads have, so that what passes here passes there


class Tokens:
    """A vocabulary in the shape that llguidance asks for. The last token is the end token."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[str], special: list[int]) -> None:
        self.tokens = [bytes.fromhex(token) for token in tokens]
        self.special_token_ids = special
        self.eos_token_id = len(tokens) - 1
        self.ids = {token: id for id, token in enumerate(self.tokens)}

    def __call__(self, text: str) -> list[int]:
        return [self.ids[byte] for value in text.encode() if (byte := bytes([value])) in self.ids]


def convert(kind: str, text: str) -> str:
    """A grammar in llguidance's own form."""
    if kind == "lark":
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    return LLMatcher.grammar_from_regex(text) if kind == "regex" else LLMatcher.grammar_from_json_schema(text)


def attempt(kind: str, text: str, tokenizer: LLTokenizer, limits: LLParserLimits) -> dict[str, str]:
    """Compile a grammar, and do once with it what an engine does with it at every token."""
    try:
        grammar = convert(kind, text)
    except Exception as error:  # noqa: BLE001 (the converters raise what they like)
        return {"error": str(error) or type(error).__name__}
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    matcher = matcher.deep_copy()
    walk(matcher, tokenizer.eos_token)
    return {"error": matcher.get_error()} if matcher.is_error() else {"grammar": grammar}


def walk(matcher: LLMatcher, end: int) -> None:
    """Accept the lowest token that is allowed, a few times; the matcher keeps the error if there is one."""
    for _ in range(STEPS):
        if matcher.is_stopped():  # by an error, too
            return
        mask = int.from_bytes(matcher.compute_bitmask(), "little") & ~(1 << end)
        if mask:
            matcher.consume_token((mask & -mask).bit_length() - 1)


def read() -> Any:
    """The next message; None when there will be no more."""
    size = sys.stdin.buffer.read(4)
    return json.loads(sys.stdin.buffer.read(int.from_bytes(size, "little"))) if len(size) == 4 else None


def serve() -> None:
    setup = read()
    tokens: Any = Tokens(setup["tokens"], setup["special"])
    size, end = len(tokens.tokens), tokens.eos_token_id
    tokenizer = LLTokenizer(tokens, n_vocab=size, eos_token=end, slices=setup["slices"])
    limits = LLParserLimits(**setup["limits"])
    with open("/proc/self/statm") as statm:
        space = int(statm.read().split()[0]) * resource.getpagesize() + setup["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    while (message := read()) is not None:
        signal.setitimer(signal.ITIMER_PROF, setup["seconds"])
        kind, text = message
        answer = json.dumps(attempt(kind, text, tokenizer, limits)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(len(answer).to_bytes(4, "little") + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK)
    worker = threading.Thread(target=serve)
    worker.start()
    worker.join()
