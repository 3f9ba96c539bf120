"""A tiny Hugging Face folder with all that a model has: weights, tokenizer, chat template, generation config."""

import json
from pathlib import Path

import safetensors.numpy

from support.byte_level import ASSETS, CHATML, EOS, VOCAB
from support.tiny_models import tiny_array, tiny_config, tiny_shapes


def tiny_folder(path: Path) -> Path:
    """Writes it into a new folder and returns that."""
    path.mkdir()
    config = tiny_config("llama", vocab_size=VOCAB, eos_token_id=EOS)
    arrays = {name: tiny_array(name, shape) for name, shape in tiny_shapes(config).items()}
    safetensors.numpy.save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(ASSETS.tokenizer_json)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>"}))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7}))
    return path
