"""Scripted answers of models that call tools and reason."""

from collections.abc import Sequence

from legato.core.types import SlotReset
from legato.tokenizer.assets import TextAssets
from legato.tokenizer.tokenizer import Tokenizer
from support.byte_level import EOS
from support.scripted import AnswerAll

__all__ = ["HERMES_TEMPLATE", "MISTRAL_TEMPLATE", "THINKING_TEMPLATE", "Saying"]

HERMES_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} Call in <tool_call>.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls | tojson }}{% endif %}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if opened is defined %}<think>\n{% endif %}"
)


class Saying:
    """The script of a ScriptedExecutor: every answer is the text that was set last, characters split over tokens.

    Words and control tokens of the tokenizer in the text are those tokens. The tokens are those of the tokenizer, since
    masks allow no others where only one text can follow.
    """

    def __init__(self, assets: TextAssets) -> None:
        self._tokenizer = Tokenizer(assets)
        self.vocab_size = self._tokenizer.vocab_size
        self.set("")

    def tokens(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    def text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def set(self, text: str) -> int:
        """Returns the number of tokens of an answer, its end included."""
        tokens = self.tokens(text)
        self._emit = AnswerAll(tokens, EOS)
        return len(tokens) + 1

    def __call__(self, history: Sequence[int], params: SlotReset, seen: Sequence[int]) -> int:
        return self._emit(history, params, seen)
