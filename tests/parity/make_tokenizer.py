"""Writes the golden files of the tokenizer tests with llama.cpp's tokenizer. Needs llama-cpp-python.

    python tests/parity/make_tokenizer.py MODEL.gguf

tokenizer_smollm2.json.gz   ids of the default model's GGUF file, which is the argument
tokenizer_rules.json.gz     a small vocabulary whose pieces cross every border that a `pre` rule may cut at, and its
                            ids under each rule
tokenizer_sentencepiece.json.gz
                            a small sentencepiece vocabulary with byte fallback, and its ids
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from llama_cpp import Llama
from tokenizer_strings import CONTROL, strings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

GOLDEN = Path(__file__).parents[1] / "golden"

# Left out, since llama.cpp only approximates the models' own rules: tekken, gpt-4o and llama4 (combining marks),
# deepseek-coder (rare white space).
RULES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "glm4", "deepseek-v3", "falcon", "default")


def ids(model: Llama, texts: list[str], *, parse_special: bool) -> list[list[int]]:
    return [model.tokenize(text.encode(), add_bos=False, special=parse_special) for text in texts]


def write(name: str, value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    path = GOLDEN / name
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path}: {path.stat().st_size} bytes")


def smollm2(file: str) -> None:
    texts = strings(2200, seed=7)
    model = Llama(file, vocab_only=True, verbose=False)
    special = [text for text in texts if "<" in text]
    write(
        "tokenizer_smollm2.json.gz",
        {
            "strings": texts,
            "plain": ids(model, texts, parse_special=False),
            "with_control": special,
            "special": ids(model, special, parse_special=True),
        },
    )


def rule_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a BPE trained on whole strings, so that words, digits and blanks merge with each other."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(CONTROL) + 256 + 1800,
        special_tokens=CONTROL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(strings(6000, seed=1), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in model["merges"]]


def oracle(folder: str, pre: str, model: str, vocabulary: dict[str, Any]) -> Llama:
    """llama.cpp's tokenizer for a vocabulary."""
    file = str(Path(folder) / f"{pre}.gguf")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Llama(file, vocab_only=True, verbose=False)


def rules() -> None:
    tokens, merges = rule_vocabulary()
    types = [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL))
    vocabulary = {"tokens": tokens, "types": types, "merges": merges}
    texts = strings(420, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        found = {pre: ids(oracle(folder, pre, "gpt2", vocabulary), texts, parse_special=False) for pre in RULES}
    write("tokenizer_rules.json.gz", {**vocabulary, "strings": texts, "ids": found})


def sentencepiece_vocabulary() -> dict[str, Any]:
    """As Llama 2's: special tokens, bytes, pieces in merge order, single characters, runs of spaces of equal score."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=1500, limit_alphabet=200, max_token_length=12, show_progress=False)
    tokenizer.train_from_iterator((text.replace(" ", "\u2581") for text in strings(6000, seed=1)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    # No piece of a special token: llama.cpp would merge such pieces into the special token itself.
    pieces = [piece for piece in dict.fromkeys("".join(merge) for merge in model["merges"]) if "<" not in piece]
    letters = [token for token in sorted(model["vocab"]) if len(token) == 1 and token != "\0"]  # a C string there
    runs = [run for run in ("\u2581" * n for n in range(2, 17)) if run not in pieces]
    plain = [*pieces, *letters, *runs]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces) + len(letters))] + [-1e9] * len(runs)
    return {
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain],
        "types": [2, 3, 3] + [6] * 256 + [1] * len(plain),
        "scores": scores,
    }


def sentencepiece() -> None:
    vocabulary = sentencepiece_vocabulary()
    texts = strings(600, seed=5)
    with tempfile.TemporaryDirectory() as folder:
        model = oracle(folder, "default", "llama", vocabulary)
        plain = ids(model, texts, parse_special=False)
        special = ids(model, texts, parse_special=True)
    write("tokenizer_sentencepiece.json.gz", {**vocabulary, "strings": texts, "plain": plain, "special": special})


if __name__ == "__main__":
    smollm2(sys.argv[1])
    rules()
    sentencepiece()
