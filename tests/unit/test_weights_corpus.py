"""What fuzzing has found interesting, read again, and a few thousand new mutations of it."""

import random

import pytest

from fuzz import gguf_reader, safetensors_reader
from fuzz.fuzzer import CORPUS, MemoryFile, mutate, outcome

READERS = {"gguf": gguf_reader, "safetensors": safetensors_reader}
PLACES = {"gguf": 70, "safetensors": 12}  # at least so many different ends


@pytest.mark.parametrize("name", READERS)
def test_corpus(name: str) -> None:
    ends = {outcome(READERS[name].check, path) for path in (CORPUS / name).iterdir()}
    assert "good" in ends
    assert len(ends) >= PLACES[name]


@pytest.mark.parametrize("name", READERS)
def test_mutations(name: str) -> None:
    reader, rng = READERS[name], random.Random(1)
    pool = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    file = MemoryFile()
    for i in range(1000):
        raw = reader.make(rng) if i % 2 else rng.choice(pool)
        outcome(reader.check, file.write(mutate(rng, raw, pool, reader.WORDS)))
