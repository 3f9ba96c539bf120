"""Strings that tell tokenizers apart, the same on every run."""

import random
from collections.abc import Callable

FIXED = [
    "", " ", "  ", "\n", "\n\n\n", "\t\t", " \n", "\n ", " \t\n  \t", "\r\n\r\n", "\u00a0", "\u2003x", "\u200b",
    "\u3000x", "a", "Hello world", "  Hello  world  ", "a  12", "3.14159", "1234567890", "12 345 6789",
    "0x1F600", "1,000,000.50", "٣٤٥", "１２３", "½ ¾ Ⅷ ² x³", "१२३ देवनागरी", "naïve café résumé",
    "cafe\u0301 e\u0301\u0327", "em — dash – en ‘q’ “d”", "Straße İstanbul ẞ ſ", "🙂", "🫠",
    "👩‍👩‍👧‍👦", "🤦🏽‍♂️", "🏳️‍🌈", "🇫🇷🇯🇵", "1️⃣ 2️⃣", "龜", "你好，世界！",
    "こんにちは世界", "カタカナ ｶﾀｶﾅ", "안녕하세요", "ᄒ\u1161ᆫ", "مرحبا بالعالم", "שלום עולם",
    "Привет мир", "Γειά σου", "สวัสดีชาวโลก", "Xin chào thế giới", "ཨོཾ་མ་ཎི", "𝒳𝓎𝓏 𝟙𝟚𝟛", "𐍈 𐎀",
    "\U000e0041 tag", "z\u0338a\u0335l\u0336g\u0337o", "I'm you're they've he'll she'd it's 'tis",
    "I'M YOU'RE THEY'VE HE'LL SHE'D 'S 'LL", "don''t '' ' s 's", "it’s ‘tis",
    "snake_case camelCase kebab-case", "def f(x: int) -> int:\n    return x + 1\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += 2;\r\n}\n", '<div class="x">&amp;</div>',
    '{"a": [1, 2.5, null], "b": "\\u00e9"}', "https://example.com/p?q=1&r=%20x#f", "a@b.org",
    "C:\\Windows\\System32", "$x^2 + y_1 = \\frac{1}{2}$", "# Title\n\n- item\n\n```python\nprint('hi')\n```\n",
    "!!! ??? ...", "(((a)))[[[b]]]{{{c}}}", "....\n\n", "!\n\n?", "->=>==>!==", " .", "a .b",
    "\u0000\u0001\u0007\u001b[0m", "\ufeffBOM", "\ufffd", "\u2028\u2029x\u0085y", "\u202ertl\u202c", "a\u00adb",
    "x\u180ey", "\u1680x", "trailing   ", "line\n  more\n\tmixed \t \n", "a\n\n\n\n\nb", "     \n     x",
    "\n \n \n", "\r\r\n\n\r", "A" * 100, "ab" * 60, " " * 100, "\n" * 40, "-" * 80, "9" * 50, "é" * 30,
    "🙂" * 20, "a " * 50, "\t" * 17, "." * 70, "<|im_start|>system\nYou are evil<|im_end|>\n", "x<|im_end|>y",
    "< |im_end| >", "<|im_end", "im_end|>", "<|im_start|><|im_start|>", " <|im_end|> ", "<|endoftext|>word",
    "<s> word</s>",
]  # fmt: skip

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "<|eot_id|>", "<repo_name>", "<file_sep>", "[INST]"]

WORDS = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "The", "It", "Paris", "France",
    "capital", "question", "answer", "Hello", "world", "42", "2024", "3.14", "café", "naïve", "—", "…", "»",
    "«", "你好", "世界", "日本語", "テスト", "한국어", "привет", "мир", "مرحبا", "שלום", "🙂", "👍🏽", "👩‍💻",
    "🇩🇪", "def", "return", "import", "self", "None", "==", "!=", "+=", "->", "\\n", "'\\t'", "http://",
    "www.", ".com", "@", "#", "$", "%", "^", "&", "*", "(", ")", "[", "]", "{", "}", "|", "<", ">", "/", "~",
    "`", "'", '"', "'s", "'ll", "n't", "I'm",
]  # fmt: skip

SEPARATORS = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "", ",", ". ", "   ", "\r\n", " \n "]

SCRIPTS = [
    (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF),
    (0x2100, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0xFB00, 0xFDCF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F),
    (0x1F900, 0x1F9FF),
]  # fmt: skip

CODE_LINES = [
    "if x_1 == 0x3f2a:", "return foo(bar, *args, **kw)", "x = [731, 42]", "// comment: it's ok", "# TODO(me)", "}", "{",
    'print(f"{a!r:>10}")', "", "#include <vector>", "a->b.c::d();",
]  # fmt: skip


def strings(count: int, seed: int) -> list[str]:
    """The fixed strings, then random mixes of words, scripts, blanks, digits, raw bytes, control tokens and code."""
    draw = random.Random(seed)
    makers: list[Callable[[random.Random], str]] = [
        _words, _words, _words, _scripts, _scripts, _blanks, _digits, _raw_bytes, _control, _code,
    ]  # fmt: skip
    return [*FIXED, *(makers[i % len(makers)](draw) for i in range(count - len(FIXED)))]


def _words(draw: random.Random) -> str:
    return "".join(draw.choice(WORDS) + draw.choice(SEPARATORS) for _ in range(draw.randint(1, 14)))


def _scripts(draw: random.Random) -> str:
    text = ""
    for _ in range(draw.randint(1, 5)):
        low, high = draw.choice(SCRIPTS)
        text += "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 6)))
        text += draw.choice(["", "", " ", "\n"])
    return text


def _blanks(draw: random.Random) -> str:
    blanks, others = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2009", "\u3000"], ["x", "1", ".", "é", "好"]
    return "".join(draw.choice(blanks if draw.random() < 0.6 else others) for _ in range(draw.randint(1, 20)))


def _digits(draw: random.Random) -> str:
    pieces = ["0", "1", "2", "7", "9", "12", "345", "6789", ".", ",", "-", "/", ":", " ", "  ", "x", "٣", "½"]
    return "".join(draw.choice(pieces) for _ in range(draw.randint(1, 16)))


def _raw_bytes(draw: random.Random) -> str:
    return bytes(draw.randrange(256) for _ in range(draw.randint(1, 24))).decode("utf-8", "replace")


def _control(draw: random.Random) -> str:
    def piece() -> str:
        token = draw.choice(CONTROL)
        return draw.choice([token, token, token[:-1], draw.choice(WORDS), draw.choice(SEPARATORS), "<", "|", ">"])

    return "".join(piece() for _ in range(draw.randint(1, 8)))


def _code(draw: random.Random) -> str:
    lines, depth = [], 0
    for _ in range(draw.randint(1, 8)):
        depth = max(0, depth + draw.choice([-1, 0, 0, 1]))
        lines.append(draw.choice(["    ", "\t", "  "]) * depth + draw.choice(CODE_LINES))
    return draw.choice(["\n", "\n", "\r\n"]).join(lines) + draw.choice(["", "\n"])
