"""A `tokenizer.json` (the format of the `tokenizers` library) from the metadata of a GGUF file.

GGUF stores the vocabulary, token types, merges or scores, and a name for the rule that cuts text into words
before merging (`tokenizer.ggml.pre`). The cut rules below are written as the `tokenizers` library spells them.
A name that is not in the table is refused: a wrong rule gives wrong ids with no other sign of it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from legato.core.errors import CheckpointError

__all__ = ["check_arrays", "end_token_ids", "optional_id", "template_tokens", "tokenizer_document"]

# Token types of `tokenizer.ggml.token_type`.
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6

# The arrays that are read here, and what each may hold.
_ARRAYS: dict[str, tuple[type, ...]] = {
    "tokenizer.ggml.tokens": (str,),
    "tokenizer.ggml.token_type": (int,),
    "tokenizer.ggml.merges": (str,),
    "tokenizer.ggml.scores": (float, int),
}

_SPACE = "\u2581"  # how sentencepiece vocabularies write a space

# Alternatives that the rules are made of.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"{_LEAD}{_UPPER}*{_LOWER}+", rf"{_LEAD}{_UPPER}+{_LOWER}*")

_DIGIT, _DIGITS, _TRIPLE = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|{_TRIPLE}|{_SIGNS}|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|{_DIGIT}|{_SIGNS}|{_BLANKS}"
_QWEN35 = rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|{_DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|{_DIGIT}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|{_TRIPLE}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
_DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _BLANKS
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

# Rules of each `tokenizer.ggml.pre`, applied in turn: matches and what lies between them become separate words.
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), (_GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (_DIGIT, _GPT2)
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "smaug-bpe", "dbrx"), (_LLAMA3,)
    ),
    **dict.fromkeys(("chatglm-bpe", "glm4"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), (_QWEN2,)),
    "qwen35": (_QWEN35,),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), (_TRIPLE, _CJK, _DEEPSEEK3)),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", _DIGIT),
    "falcon": (r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "default": (r"[\p{P}$+<=>^~|]+", _GPT2, _DIGITS, r"[0-9][0-9][0-9]"),
}

# Words that are whole tokens are not built from merges.
_WHOLE_WORDS_FIRST = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken", "glm4"}
)
# Without tokenizer.ggml.add_bos_token a text begins with the begin token.
_BEGIN_BY_DEFAULT = _WHOLE_WORDS_FIRST - {"glm4"}

# Texts of tokens that end a turn or a document. Files often name only one of them.
_END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
    }
)


def check_arrays(metadata: Mapping[str, Any]) -> None:
    """CheckpointError for an array that holds something of another type. All other functions here rely on it."""
    for key, types in _ARRAYS.items():
        values = metadata.get(key, [])
        if not isinstance(values, list):
            raise CheckpointError(f"GGUF: {key} is not an array of {types[0].__name__}")
        if not set(map(type, values)) <= {*types}:  # at once: a vocabulary has 10^5 values
            index = next(i for i, value in enumerate(values) if type(value) not in types)
            raise CheckpointError(f"GGUF: {key}[{index}] {values[index]!r} is no {types[0].__name__}")


def tokenizer_document(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a `tokenizer.json` holds. Raises CheckpointError for a tokenizer model or `pre` that is not known."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        parts = _byte_level(metadata)
    elif model == "llama":
        parts = _sentencepiece(metadata)
    elif model is None:
        raise CheckpointError("GGUF: tokenizer.ggml.model is missing")
    else:
        raise CheckpointError(f"GGUF: tokenizer.ggml.model {model!r} is not supported (supported: gpt2, llama)")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata),
        "post_processor": _post_processor(metadata),
        **parts,
    }


def template_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Named tokens that chat templates may use: bos_token, eos_token, pad_token, unk_token."""
    tokens = _tokens(metadata)
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: optional_id(metadata, key) for name, key in names.items()}
    return {name: tokens[id] for name, id in ids.items() if id is not None}


def optional_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """The id `tokenizer.ggml.<name>_token_id`, checked against the vocabulary; None where the key is missing."""
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in metadata:
        return None
    id, size = metadata[key], len(_tokens(metadata))
    if type(id) is not int or not 0 <= id < size:
        raise CheckpointError(f"GGUF: {key} {id!r} is not an id of the vocabulary of {size} tokens")
    return id


def end_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end generation: the ones the file names, and control tokens with a well-known end text."""
    named = (optional_id(metadata, name) for name in ("eos", "eot", "eom"))
    ids = [id for id in named if id is not None]
    tokens, special = _tokens(metadata), _special_ids(metadata)
    texts = _END_TEXTS
    if {"<|return|>", "<|call|>"} <= {tokens[id] for id in special}:
        texts = texts - {"<|end|>"}  # in the harmony format this closes a message, not the turn
    ids += sorted(id for id in special if tokens[id] in texts)
    return tuple(dict.fromkeys(ids))


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    return _array(metadata, "tokenizer.ggml.tokens")


def _array(metadata: Mapping[str, Any], key: str) -> list[Any]:
    values: list[Any] = metadata.get(key, [])
    if not values:
        raise CheckpointError(f"GGUF: {key} is missing or empty")
    return values


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"GGUF: {key} {value!r} is neither true nor false")
    return value


def _token_types(metadata: Mapping[str, Any]) -> list[int]:
    tokens = _tokens(metadata)
    if "tokenizer.ggml.token_type" not in metadata:
        return [1] * len(tokens)
    types = _array(metadata, "tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise CheckpointError(f"GGUF: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    return types


def _special_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Control and unknown tokens, and end tokens whatever type the file gives them."""
    tokens = _tokens(metadata)
    return [
        id for id, type in enumerate(_token_types(metadata)) if type in (_UNKNOWN, _CONTROL) or tokens[id] in _END_TEXTS
    ]


def _added_tokens(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens that are looked for in the text before it is cut into words."""
    tokens, special = _tokens(metadata), set(_special_ids(metadata))
    return [
        {
            "id": id,
            "content": tokens[id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": id in special,
        }
        for id, type in enumerate(_token_types(metadata))
        if id in special or type == _USER_DEFINED
    ]


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for id, token in enumerate(_tokens(metadata)):
        if token in vocabulary:
            raise CheckpointError(f"GGUF: tokenizer.ggml.tokens holds {token!r} twice ({vocabulary[token]} and {id})")
        vocabulary[token] = id
    return vocabulary


def _byte_level(metadata: Mapping[str, Any]) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise CheckpointError(f"GGUF: tokenizer.ggml.pre {pre!r} is not supported (supported: {known})")
    merges = _array(metadata, "tokenizer.ggml.merges")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False} for rule in _SPLITS[pre]
    ]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": _vocabulary(metadata),
            "merges": _pairs(merges),
        },
    }


def _pairs(merges: Sequence[str]) -> list[list[str]]:
    pairs = [entry.split(" ", 1) for entry in merges]
    for index, pair in enumerate(pairs):
        if len(pair) != 2 or "" in pair:
            raise CheckpointError(f"GGUF: tokenizer.ggml.merges[{index}] {merges[index]!r} is not two tokens")
    return pairs


def _sentencepiece(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A sentencepiece BPE vocabulary: pieces merge by score, bytes stand for what the vocabulary lacks."""
    vocabulary = _vocabulary(metadata)
    types = _token_types(metadata)
    for byte in range(256):
        id = vocabulary.get(f"<0x{byte:02X}>")
        if id is None or types[id] != _BYTE:
            raise CheckpointError(f"GGUF: tokenizer.ggml.tokens has no byte token <0x{byte:02X}>")
    prefix = _flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    to_piece = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    to_text = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    unknown = optional_id(metadata, "unknown")
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": _SPACE}, to_piece] if prefix else [to_piece],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                to_text,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _tokens(metadata)[0 if unknown is None else unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges_from_scores(metadata, vocabulary),
        },
    }


def _merges_from_scores(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[list[str]]:
    """Every way to build a piece from two others, best resulting piece first.

    Sentencepiece merges pieces of equal score from left to right, which a list of merges cannot say. Runs of one
    character (vocabularies have runs of spaces) come out the same with the longest first; other ties are refused.
    """
    scores = _array(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(vocabulary):
        raise CheckpointError(f"GGUF: tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary)} tokens")
    normal = {token for (token, id), type in zip(vocabulary.items(), _token_types(metadata), strict=True) if type == 1}
    merges = [
        (-scores[vocabulary[token]], -len(token), token, cut)
        for token in normal
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    merges.sort()
    for (score, _, token, _), (next_score, _, next_token, _) in pairwise(merges):
        if score == next_score and token != next_token and len({*token, *next_token}) > 1:
            raise CheckpointError(f"GGUF: tokenizer.ggml.scores ranks {token!r} and {next_token!r} equally")
    return [[token[:cut], token[cut:]] for _, _, token, cut in merges]


def _post_processor(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Adds the begin (and end) token around a text, where the file asks for it."""
    sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    default = sentencepiece or metadata.get("tokenizer.ggml.pre") in _BEGIN_BY_DEFAULT
    around = {}
    for name, asked in (("bos", default), ("eos", False)):
        if _flag(metadata, f"tokenizer.ggml.add_{name}_token", asked):
            id = optional_id(metadata, name)
            if id is None:
                raise CheckpointError(f"GGUF: tokenizer.ggml.add_{name}_token without {name}_token_id")
            around[name] = {"id": _tokens(metadata)[id], "ids": [id], "tokens": [_tokens(metadata)[id]]}
    if not around:
        return None
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if "bos" in around:
        single.insert(0, {"SpecialToken": {"id": around["bos"]["id"], "type_id": 0}})
    if "eos" in around:
        single.append({"SpecialToken": {"id": around["eos"]["id"], "type_id": 0}})
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token["id"]: token for token in around.values()},
    }
