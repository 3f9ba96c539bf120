"""Beam search in a request: its own fields, and those that mean nothing to it."""

from collections.abc import Mapping
from typing import Any

from legato.core.errors import RequestError
from legato.core.types import BeamOptions

__all__ = ["beam_options"]

MAX_BEAMS = 32
MAX_CANDIDATES = 1024  # next tokens of a beam that are ranked
MAX_LENGTH_PENALTY = 10.0  # and at least its negative, so that scores stay finite

# Fields that beam search does not read, with the values that ask for nothing. A seed changes no answer of it.
_UNREAD: Mapping[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stop": ("", []),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logprob_token_ids": ([],),
    "prompt_logprobs": (),
    "echo": (False,),
}


def beam_options(fields: Mapping[str, Any]) -> BeamOptions | None:
    """What the fields of a body say of beam search; None without `use_beam_search`.

    RequestError names a field that is out of range, or that would have no effect.
    """
    if not fields.get("use_beam_search"):
        for name in ("length_penalty", "early_stopping"):
            if fields.get(name) is not None:
                raise RequestError(f"{name} needs use_beam_search: true", param=name)
        return None
    for name, neutral in _UNREAD.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise RequestError(f"{name} is not supported with use_beam_search", param=name)
    width = fields.get("n") or 1
    if not 1 <= width <= MAX_BEAMS:
        raise RequestError(f"n must be between 1 and {MAX_BEAMS} with use_beam_search, got {width}", param="n")
    if width * (1 + len(fields.get("stop_token_ids") or ())) > MAX_CANDIDATES:
        raise RequestError(
            f"stop_token_ids holds too many ids for use_beam_search: n times their number may be {MAX_CANDIDATES}",
            param="stop_token_ids",
        )
    penalty = fields.get("length_penalty")
    if penalty is not None and not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
        limits = f"between {-MAX_LENGTH_PENALTY:g} and {MAX_LENGTH_PENALTY:g}"
        raise RequestError(f"length_penalty must be {limits}, got {penalty}", param="length_penalty")
    return BeamOptions(width, 1.0 if penalty is None else penalty, fields.get("early_stopping") or False)
