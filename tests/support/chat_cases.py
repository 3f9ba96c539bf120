"""Tokenizers, templates and conversations whose prompts are compared with transformers' `apply_chat_template`."""

import json
from typing import Any

from legato.tokenizer.assets import TextAssets, assets_from_gguf
from support.tiny_tokenizers import CHATML, byte_level_metadata, sentencepiece_metadata

Conversation = list[dict[str, Any]]

_CONTROL = [
    "<s>", "</s>", "[INST]", "[/INST]", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
]  # fmt: skip

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = 'Be brief.' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if ns.last < 0 and message.role == 'user' %}
        {%- set ns.last = (messages | length) - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' ~ call.function | tojson ~ '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system, turns = messages[0]['content'] + '\\n\\n', messages[1:] %}
{%- else %}
    {%- set system, turns = '', messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, assistant, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message['content'] + '[/INST]' }}
    {%- else %}
        {%- generation %}{{- ' ' + message['content'] | trim + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""

PHI = """\
{% for message in messages %}
{{'<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n'}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}
"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "phi": PHI}

TALKS: dict[str, Conversation] = {
    "one": [{"role": "user", "content": "What is 12 + 30?"}],
    "system": [{"role": "system", "content": " Be kind.\n"}, {"role": "user", "content": "hello  world\n\n1234"}],
    "turns": [
        {"role": "user", "content": "  hello\nworld "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello 世界 🙂"},
        {"role": "user", "content": "héllo <b> & 'it''s' \"x\""},
    ],
    "empty": [{"role": "user", "content": ""}],
    "spaces": [
        {"role": "user", "content": "   "},
        {"role": "assistant", "content": "\n x"},
        {"role": "user", "content": "\t"},
    ],
}


def tokenizers() -> dict[str, TextAssets]:
    """The kinds of tokenizer.json that treat spaces beside control tokens differently."""
    byte_level, legacy = _byte_level(), _sentencepiece()
    return {
        "byte_level": byte_level,
        "rstrip": _changed(byte_level, added_tokens=[_stripping(token) for token in _part(byte_level, "added_tokens")]),
        "prepend": legacy,
        "metaspace_first": _metaspace(legacy, "first"),
        "metaspace_always": _metaspace(legacy, "always"),
    }


def _byte_level() -> TextAssets:
    metadata = byte_level_metadata("llama-bpe")
    extra = [token for token in _CONTROL if token not in metadata["tokenizer.ggml.tokens"]]
    metadata["tokenizer.ggml.tokens"] += extra
    metadata["tokenizer.ggml.token_type"] += [3] * len(extra)
    return _named(assets_from_gguf(metadata))


def _sentencepiece() -> TextAssets:
    metadata = sentencepiece_metadata()
    extra = [token for token in _CONTROL if token not in metadata["tokenizer.ggml.tokens"]]
    metadata["tokenizer.ggml.tokens"] += extra
    metadata["tokenizer.ggml.token_type"] += [3] * len(extra)
    metadata["tokenizer.ggml.scores"] += [0.0] * len(extra)
    return _named(assets_from_gguf(metadata))


def _named(assets: TextAssets) -> TextAssets:
    return _changed(assets, template_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def _metaspace(assets: TextAssets, scheme: str) -> TextAssets:
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return _changed(assets, normalizer=None, pre_tokenizer=step)


def _stripping(token: dict[str, Any]) -> dict[str, Any]:
    return {**token, "rstrip": token["content"] in ("<|user|>", "<|end|>"), "lstrip": token["content"] == "[/INST]"}


def _part(assets: TextAssets, name: str) -> Any:
    return json.loads(assets.tokenizer_json)[name]


def _changed(assets: TextAssets, template_tokens: dict[str, str] | None = None, **parts: Any) -> TextAssets:
    document = {**json.loads(assets.tokenizer_json), **parts}
    return TextAssets(
        tokenizer_json=json.dumps(document, ensure_ascii=False),
        chat_template=None,
        bos_token_id=assets.bos_token_id,
        eos_token_ids=assets.eos_token_ids,
        add_bos=assets.add_bos,
        template_tokens=template_tokens or assets.template_tokens,
    )
