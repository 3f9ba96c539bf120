"""Sampling parameters that change nothing, to be varied with `dataclasses.replace`."""

from legato.core.types import SlotReset

__all__ = ["PLAIN"]

PLAIN = SlotReset(
    slot=0,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    seed=11,
    choice=0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    num_logprobs=-1,
    min_position=0,
    end_token_ids=(),
    prompt=(),
    output=(),
)
