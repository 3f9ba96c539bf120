"""One uniform number per (seed, choice, position, attempt): a token never depends on what else is in the batch.

Philox4x32-10 from J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is the seed, the
counter is (position, choice, attempt, 0).
"""

__all__ = ["philox4x32", "uniform"]

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox on 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK32,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK32, (k1 + _KEY_STEPS[1]) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int, attempt: int = 0) -> float:
    """A multiple of 2^-24 in [0, 1), exact in float32.

    `seed` is any 64-bit integer (a negative one counts as its two's complement), `position` the absolute position of
    the token being sampled. `attempt` is 1 for a token that is sampled with a mask, and 0 without one.
    """
    key = (seed & _MASK32, (seed >> 32) & _MASK32)
    return (philox4x32((position, choice, attempt, 0), key)[0] >> 8) * 2.0**-24
