"""Rotary frequencies from the keys `rope_theta`, `rope_scaling` and `rope_parameters`, as transformers 5 reads them.

Formulas: Su et al. 2021 (default), Chen et al. 2023 (linear), Peng et al. 2023 (yarn, sections 3.2 to 3.4), and the
Llama 3.1 release (llama3). All are fixed at load; a frequency that depends on the sequence length is refused.
"""

import math
from collections.abc import Callable

from legato.models.config import Config
from legato.models.spec import Rope

__all__ = ["rope"]


def rope(c: Config, dim: int) -> Rope:
    """Rope over the first `dim` values of a head."""
    base = c.number("rope_theta", 10_000.0)
    key = "rope_parameters" if "rope_parameters" in c else "rope_scaling"
    if key not in c:
        return Rope(dim, _default(dim, base))
    s = c.section(key)
    c.unused("rope_scaling", "original_max_position_embeddings")
    base = s.number("rope_theta", base)
    s.unused("type", "rope_type")
    kind = s.get("rope_type", s.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        raise s.error("rope_type", f"is {kind!r}, not one of {', '.join(_KINDS)}")
    result = _KINDS[kind](c, s, dim, base)
    s.finish()
    return result


def _default(dim: int, base: float) -> tuple[float, ...]:
    return tuple(base ** (-2.0 * i / dim) for i in range(dim // 2))


def _plain(c: Config, s: Config, dim: int, base: float) -> Rope:
    return Rope(dim, _default(dim, base))


def _linear(c: Config, s: Config, dim: int, base: float) -> Rope:
    factor = s.number("factor")
    return Rope(dim, tuple(f / factor for f in _default(dim, base)))


def _original(c: Config, s: Config) -> int:
    """Positions before scaling. A value beside the rope object wins over the one inside."""
    inside = s.integer("original_max_position_embeddings", c.integer("max_position_embeddings"))
    return c.integer("original_max_position_embeddings", inside)


def _llama3(c: Config, s: Config, dim: int, base: float) -> Rope:
    """Long waves are slowed by `factor`, short ones kept, those between blended by their turns in the old context."""
    factor, low, high = s.number("factor"), s.number("low_freq_factor"), s.number("high_freq_factor")
    old = _original(c, s)

    def scaled(f: float) -> float:
        turns = old * f / (2 * math.pi)
        if turns > high:
            return f
        if turns < low:
            return f / factor
        blend = (turns - low) / (high - low)
        return (1 - blend) * f / factor + blend * f

    return Rope(dim, tuple(scaled(f) for f in _default(dim, base)))


def _yarn(c: Config, s: Config, dim: int, base: float) -> Rope:
    """Dimensions that turn often keep their frequency, those that turn rarely are slowed, a ramp lies between."""
    old = _original(c, s)
    factor = s.number("factor", c.integer("max_position_embeddings") / old)
    mscale, mscale_all = s.number("mscale", None), s.number("mscale_all_dim", None)
    if mscale and mscale_all:
        default = _mscale(factor, mscale) / _mscale(factor, mscale_all)
    else:
        default = _mscale(factor, 1.0)
    attention = s.number("attention_factor", default)

    def dimension(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(s.number("beta_fast", 32.0)), dimension(s.number("beta_slow", 1.0))
    if s.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = (high - low) or 0.001

    def scaled(i: int, f: float) -> float:
        slowed = min(max((i - low) / span, 0.0), 1.0)
        return f / factor * slowed + f * (1 - slowed)

    return Rope(dim, tuple(scaled(i, f) for i, f in enumerate(_default(dim, base))), attention)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _dynamic(c: Config, s: Config, dim: int, base: float) -> Rope:
    raise s.error(
        "rope_type", "is 'dynamic', whose frequencies change with the sequence's length; that is not supported"
    )


_KINDS: dict[str, Callable[[Config, Config, int, float], Rope]] = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
}
