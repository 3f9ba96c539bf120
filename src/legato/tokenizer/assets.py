"""All that a model knows about text, as one value that fits into an engine file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from legato.core.errors import CheckpointError
from legato.tokenizer import gguf

__all__ = ["TextAssets", "assets_from_folder", "assets_from_gguf"]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextAssets:
    """Tokenizer, chat template and end tokens of one model.

    tokenizer_json: text of a `tokenizer.json` of the `tokenizers` library.
    chat_template: Jinja source, None where the model has none.
    eos_token_ids: every id that ends generation.
    add_bos: encoding a plain text begins with the begin token.
    template_tokens: bos_token, eos_token and so on, as chat templates name them.
    """

    tokenizer_json: str
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    generation_config: dict[str, Any] = field(default_factory=dict)
    template_tokens: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return _dump(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TextAssets":
        fields = json.loads(text)
        fields["eos_token_ids"] = tuple(fields["eos_token_ids"])
        return cls(**fields)


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def assets_from_gguf(metadata: Mapping[str, Any]) -> TextAssets:
    """Assets from GGUF metadata (key to value; arrays as lists). Raises CheckpointError by key."""
    gguf.check_arrays(metadata)
    document = gguf.tokenizer_document(metadata)
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError("GGUF: tokenizer.chat_template is not a text")
    bos = gguf.optional_id(metadata, "bos")
    return TextAssets(
        tokenizer_json=_dump(document),
        chat_template=template,
        bos_token_id=bos,
        eos_token_ids=gguf.end_token_ids(metadata),
        add_bos=_begins_with(document["post_processor"], bos),
        generation_config={},
        template_tokens=gguf.template_tokens(metadata),
    )


def assets_from_folder(path: Path) -> TextAssets:
    """Assets from a Hugging Face folder. `tokenizer.json` is required; the other files may be missing.

    Whether plain text gets a begin token is decided by the post-processor in `tokenizer.json`; `add_bos_token` in
    `tokenizer_config.json` has no say (as in transformers 5).
    """
    document = _tokenizer_document(path)
    settings = {**_read_object(path / "special_tokens_map.json"), **_read_object(path / "tokenizer_config.json")}
    named = _named_tokens(settings)
    _add_missing_tokens(document, settings, named)
    ids = document["model"].get("vocab", {})
    ids = {**(ids if isinstance(ids, dict) else {}), **{t["content"]: t["id"] for t in document["added_tokens"]}}
    generation = _read_object(path / "generation_config.json")
    ends = _end_ids(generation, path / "generation_config.json")
    if not ends:
        config = _read_object(path / "config.json")
        inner = config.get("text_config")
        ends = _end_ids(config, path / "config.json")
        ends = ends or _end_ids(inner if isinstance(inner, dict) else {}, path / "config.json")
    if named.get("eos_token") in ids:
        ends = [*ends, ids[named["eos_token"]]]
    bos = ids.get(named.get("bos_token", ""))
    return TextAssets(
        tokenizer_json=_dump(document),
        chat_template=_chat_template(path, settings),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        add_bos=_begins_with(document.get("post_processor"), bos),
        generation_config=generation,
        template_tokens=named,
    )


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON object from a file; {} where there is no such file."""
    if not file.exists():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds no JSON object")
    return value


def _tokenizer_document(path: Path) -> dict[str, Any]:
    file = path / "tokenizer.json"
    if not file.exists():
        for other in ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json"):
            if (path / other).exists():
                raise CheckpointError(
                    f"{file} is missing and {other} alone is not supported: make it once with transformers, "
                    f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
                )
        raise CheckpointError(f"{file} is missing")
    document = _read_object(file)
    try:
        Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises no narrower class
        raise CheckpointError(f"{file}: {error}") from error
    return {**document, "added_tokens": document.get("added_tokens") or []}


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and so on; each is a text or an object with "content"."""
    named = {}
    for name in _NAMED_TOKENS:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _add_missing_tokens(document: dict[str, Any], settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Adds what `tokenizer_config.json` lists and `tokenizer.json` does not: fine-tunes often patch only the first."""
    added = {token["id"]: token for token in document["added_tokens"]}
    listed = settings.get("added_tokens_decoder") or {}
    for key, token in listed.items() if isinstance(listed, dict) else ():
        id = int(key) if key.isdecimal() else -1
        if id >= 0 and id not in added and isinstance(token, dict) and isinstance(token.get("content"), str):
            added[id] = {
                "id": id,
                "content": token["content"],
                "single_word": bool(token.get("single_word", False)),
                "lstrip": bool(token.get("lstrip", False)),
                "rstrip": bool(token.get("rstrip", False)),
                "normalized": bool(token.get("normalized", True)),
                "special": bool(token.get("special", False)) or token["content"] in named.values(),
            }
    document["added_tokens"] = [added[id] for id in sorted(added)]


def _end_ids(config: Mapping[str, Any], file: Path) -> list[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(id, int) and not isinstance(id, bool) and id >= 0 for id in ids):
        raise CheckpointError(f"{file}: eos_token_id {value!r} is not a token id or a list of them")
    return ids


def _chat_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    """Looked for in chat_template.jinja, chat_template.json, tokenizer_config.json, in this order."""
    jinja = path / "chat_template.jinja"
    if jinja.exists():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{jinja}: {error}") from error
    template = _read_object(path / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{path}: chat_template is neither a text nor a list with a 'default' entry")
    return template


def _begins_with(post_processor: Any, bos: int | None) -> bool:
    """Whether a post-processor puts the begin token first."""
    if bos is None or not isinstance(post_processor, dict):
        return False
    kind = post_processor.get("type")
    if kind == "Sequence":
        return any(_begins_with(part, bos) for part in post_processor.get("processors", ()))
    if kind == "TemplateProcessing":
        first = (post_processor.get("single") or [{}])[0].get("SpecialToken")
        special = post_processor.get("special_tokens", {})
        return first is not None and bos in special.get(first["id"], {}).get("ids", ())
    if kind in ("BertProcessing", "RobertaProcessing"):
        return bool(post_processor["cls"][1] == bos)
    return False
