"""config.json with every read recorded: a key that nobody read, and that could change the result, is an error."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from legato.core.errors import CheckpointError

__all__ = ["Config"]

# Keys that do not change what a forward pass computes.
_IRRELEVANT_TEXT = """
_attn_implementation _flash_attn_2_enabled _model_name_or_path _name_or_path architectures attention_dropout
attention_probs_dropout_prob attn_implementation attn_pdrop auto_map bad_words_ids begin_suppress_tokens bos_token_id
chunk_size_feed_forward classifier_dropout cls_token_id decoder_start_token_id diversity_penalty do_sample dtype
early_stopping embd_pdrop embedding_dropout eos_token_id expert_capacity finetuning_task gradient_checkpointing
hidden_dropout hidden_dropout_prob id2label initializer_range is_decoder is_llama_config keys_to_ignore_at_inference
label2id length_penalty max_length max_new_tokens max_sequence_length min_length model_type neftune_noise_alpha
no_repeat_ngram_size num_beams num_labels num_return_sequences output_attentions output_hidden_states
output_router_logits pad_token_id prefix pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn
repetition_penalty resid_pdrop residual_dropout return_dict router_aux_loss_coef router_jitter_noise sep_token_id
suppress_tokens task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript
transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
use_flash_attention use_flash_attention_2 use_flash_attn
"""
_IRRELEVANT = frozenset(_IRRELEVANT_TEXT.split())

# Keys that are harmless while they hold one of these values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attn_logit_softcapping": (None,),
    "cross_attention_hidden_size": (None,),
    "final_logit_softcapping": (None,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "mlp_bias": (False,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
}

# Largest value of a key that things are counted by; any other integer may be as large as 32 bits hold.
_LARGEST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 4096),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "head_dim", "qk_rope_head_dim"), 1 << 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "altup_num_inputs"), 1 << 16),
}

_REQUIRED: Any = object()


class Config:
    """Typed reads of config.json. Messages name the file, the key and the architecture.

    A null value counts as absent, so that it falls back to the default.
    """

    def __init__(self, values: Mapping[str, Any], file: str, architecture: str, *, path: str = "") -> None:
        self._values = values
        self.file = file
        self._path = path
        self._read: set[str] = set()
        self.architecture = architecture

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def error(self, key: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {self.architecture}: key '{self._path}{key}' {message}")

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value as it is; `default` where it is absent or null."""
        self._read.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(key, "is missing")
        return default

    @overload
    def integer(self, key: str, default: int = ...) -> int: ...
    @overload
    def integer(self, key: str, default: None) -> int | None: ...
    def integer(self, key: str, default: int | None = _REQUIRED) -> int | None:
        """A positive integer (or the default, whatever that is)."""
        value = self.get(key, default)
        if key not in self:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(key, f"is {value!r}, not a positive integer")
        if value > _LARGEST.get(key, (1 << 31) - 1):
            raise self.error(key, f"is {value}, which is too large")
        return value

    def part(self, key: str, whole: str) -> int:
        """A positive integer that is at most that of the key `whole`."""
        value, most = self.integer(key), self.integer(whole)
        if value > most:
            raise self.error(key, f"is {value}, more than '{whole}' ({most})")
        return value

    def count(self, key: str) -> int:
        """An integer that may be 0."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, f"is {value!r}, not a count")
        return value

    @overload
    def number(self, key: str, default: float = ...) -> float: ...
    @overload
    def number(self, key: str, default: None) -> float | None: ...
    def number(self, key: str, default: float | None = _REQUIRED) -> float | None:
        """A finite number."""
        value = self.get(key, default)
        if key not in self:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise self.error(key, f"is {value!r}, not a finite number")
        return float(value)

    @overload
    def positive(self, key: str, default: float = ...) -> float: ...
    @overload
    def positive(self, key: str, default: None) -> float | None: ...
    def positive(self, key: str, default: float | None = _REQUIRED) -> float | None:
        value = self.number(key, default)
        if value is not None and value <= 0:
            raise self.error(key, f"is {value!r}, not above 0")
        return value

    def flag(self, key: str, default: Any = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not true or false")
        return value

    def choice(self, key: str, choices: Mapping[str, str], default: Any = _REQUIRED) -> str:
        """One of the keys of `choices`; returns what it maps to."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"is {value!r}, not one of {', '.join(sorted(choices))}")
        return choices[value]

    def entries(self, key: str, length: int, default: Any = _REQUIRED) -> Sequence[Any]:
        """A list with at least `length` entries; the rest is cut off."""
        value = self.get(key, default)
        if not isinstance(value, list | tuple) or len(value) < length:
            raise self.error(key, f"is not a list of {length} entries")
        return value[:length]

    def numbers(self, key: str, length: int) -> Sequence[Any]:
        """A list of at least `length` numbers above 0; the rest is cut off."""
        values = self.entries(key, length)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e300 for v in values):
            raise self.error(key, "holds something other than numbers above 0")
        return values

    def section(self, key: str) -> "Config":
        """A nested object, whose unread keys are errors too once its own `finish` is called."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "is not an object")
        return Config(value, self.file, self.architecture, path=f"{self._path}{key}.")

    def only(self, key: str, value: Any) -> None:
        """The key is absent or holds this value; anything else is not supported."""
        if self.get(key, value) != value:
            raise self.error(key, f"is {self._values[key]!r}; only {value!r} is supported")

    def unused(self, *keys: str) -> None:
        """Keys that this family has and that do not change its result."""
        self._read.update(keys)

    def finish(self) -> None:
        """Raise CheckpointError for a key that was not read and might matter."""
        for key, value in self._values.items():
            if key in self._read or key in _IRRELEVANT or value is None or value in _NEUTRAL.get(key, ()):
                continue
            raise self.error(key, "is not understood and could change the result")
