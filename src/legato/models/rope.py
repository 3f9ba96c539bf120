"""Rotary frequencies from the keys `rope_theta`, `rope_scaling` and `rope_parameters`, as transformers 5 reads them.

Formulas: Su et al. 2021 (default), Chen et al. 2023 (linear), Peng et al. 2023 (yarn, sections 3.2 to 3.4), and the
Llama 3.1 release (llama3). All are fixed at load; a frequency that depends on the sequence length is refused.
"""

import math
from collections.abc import Callable

from legato.models.config import Config
from legato.models.spec import Alibi, AxisRope, LongRope, Rope

__all__ = ["alibi", "axis_rope", "long_rope", "partial_rope", "rope", "ropes_by_type", "yarn_scale"]


def rope(c: Config, dim: int) -> Rope:
    """Rope over the first `dim` values of a head."""
    return _read(c, _section(c), dim, c.positive("rope_theta", 10_000.0))


def partial_rope(c: Config, head_dim: int, key: str, share: float) -> Rope:
    """Rope over a share of the head: `key`, beside the rope object or as `partial_rotary_factor` inside it."""
    share, base, s = c.positive(key, share), c.positive("rope_theta", 10_000.0), _section(c)
    if s is not None:
        share = s.positive("partial_rotary_factor", share)
    dim = int(head_dim * min(share, 2.0))
    if dim % 2 or not 0 < dim <= head_dim:
        raise c.error(key, f"is {share}, which gives no even part of a head of {head_dim}")
    return _read(c, s, dim, base)


def ropes_by_type(c: Config, dim: int) -> dict[str, Rope]:
    """One rope per layer type, each with its own object in `rope_parameters`."""
    both, result = c.section("rope_parameters"), {}
    for kind in ("full_attention", "sliding_attention"):
        result[kind] = _read(c, both.section(kind), dim, 10_000.0)
    both.finish()
    return result


def long_rope(c: Config, dim: int) -> Rope | LongRope:
    """Rope whose type may be `longrope`: two lists of divisors, for short and for long contexts (Ding et al. 2024)."""
    base, s = c.positive("rope_theta", 10_000.0), _section(c)
    if s is None or s.get("rope_type", s.get("type", "default")) != "longrope":
        return rope(c, dim)
    s.unused("rope_type", "type")
    s.only("partial_rotary_factor", 1.0)
    base = s.positive("rope_theta", base)
    old, limit = _original(c, s), c.integer("max_position_embeddings")
    factor = s.positive("factor", limit / old)
    attention = s.positive("attention_factor", 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(old)))
    short, long = (
        Rope(dim, tuple(f / d for f, d in zip(_default(dim, base), divisors, strict=True)), attention)
        for divisors in (s.numbers("short_factor", dim // 2), s.numbers("long_factor", dim // 2))
    )
    s.finish()
    return LongRope(short, long, old)


def axis_rope(c: Config, dim: int) -> AxisRope:
    """Plain frequencies shared out over position axes by `mrope_section`."""
    base, s = c.positive("rope_theta", 10_000.0), _section(c)
    if s is None:
        raise c.error("rope_scaling", "is missing")
    if s.get("type", "mrope") not in ("mrope", "default") or s.get("rope_type", "default") not in ("mrope", "default"):
        raise s.error("rope_type", "is not 'mrope'")
    sections = tuple(s.numbers("mrope_section", 3))
    base = s.positive("rope_theta", base)
    s.finish()
    return AxisRope(Rope(dim, _default(dim, base)), sections)


def yarn_scale(c: Config) -> float:
    """What yarn's `mscale_all_dim` multiplies attention scores with, in the families that apply it there; else 1."""
    s = _section(c)
    if s is None or s.positive("mscale_all_dim", None) is None:
        return 1.0
    return _mscale(s.positive("factor"), s.positive("mscale_all_dim")) ** 2


def alibi(heads: int) -> Alibi:
    """Slopes 2^(-8 i / n) for n heads, a power of two; more heads take every second of the next power (Press 2022)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return Alibi(tuple(slopes))


def _section(c: Config) -> Config | None:
    """The rope object under its new or its old key."""
    key = "rope_parameters" if "rope_parameters" in c else "rope_scaling"
    c.unused("rope_scaling", "original_max_position_embeddings")
    return c.section(key) if key in c else None


def _read(c: Config, s: Config | None, dim: int, base: float) -> Rope:
    """The rope that object `s` describes; without one a plain rope."""
    if s is None:
        return Rope(dim, _default(dim, base))
    base = s.positive("rope_theta", base)
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
    factor = s.positive("factor")
    return Rope(dim, tuple(f / factor for f in _default(dim, base)))


def _original(c: Config, s: Config) -> int:
    """Positions before scaling. A value beside the rope object wins over the one inside."""
    inside = s.integer("original_max_position_embeddings", c.integer("max_position_embeddings"))
    return c.integer("original_max_position_embeddings", inside)


def _llama3(c: Config, s: Config, dim: int, base: float) -> Rope:
    """Long waves are slowed by `factor`, short ones kept, those between blended by their turns in the old context."""
    factor, low, high = (s.positive(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise s.error("high_freq_factor", f"is {high}, not above low_freq_factor {low}")
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
    factor = s.positive("factor", c.integer("max_position_embeddings") / old)
    mscale, mscale_all = s.positive("mscale", None), s.positive("mscale_all_dim", None)
    if mscale and mscale_all:
        default = _mscale(factor, mscale) / _mscale(factor, mscale_all)
    else:
        default = _mscale(factor, 1.0)
    attention = s.positive("attention_factor", default)

    def dimension(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(s.positive("beta_fast", 32.0)), dimension(s.positive("beta_slow", 1.0))
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
