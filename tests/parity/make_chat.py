"""Writes tests/golden/chat_prompts.json.gz with transformers' `apply_chat_template`. Needs transformers."""

import gzip
import json
import sys
from pathlib import Path

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from legato.tokenizer.assets import TextAssets
from support.chat_cases import TALKS, TEMPLATES, tokenizers

GOLDEN = Path(__file__).parents[1] / "golden" / "chat_prompts.json.gz"


def prompts(assets: TextAssets) -> dict[str, list[int] | str]:
    """Per template and talk: ids, or the template's refusal."""
    backend = Tokenizer.from_str(assets.tokenizer_json)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **assets.template_tokens)
    found: dict[str, list[int] | str] = {}
    for template_name, template in TEMPLATES.items():
        for talk_name, talk in TALKS.items():
            try:
                ids = tokenizer.apply_chat_template(
                    talk, chat_template=template, add_generation_prompt=True, return_dict=False
                )
            except TemplateError as error:
                ids = str(error)
            found[f"{template_name} {talk_name}"] = ids
    return found


def main() -> None:
    value = {kind: prompts(assets) for kind, assets in tokenizers().items()}
    GOLDEN.write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
