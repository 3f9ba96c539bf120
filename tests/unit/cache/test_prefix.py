"""C08, C05: what a prefix is called never decides what it is, and what KV is computed under is part of it."""

import gc
import itertools
from array import array
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from legato.cache.host_tier import label_of
from legato.cache.prefix import PrefixIndex


def prefix(index, root, *blocks):
    found = index.root(*root)
    for block in blocks:
        found = index.extend(found, array("i", block).tobytes())
    return found


def two_bits(data):
    return bytes([sha256(data).digest()[0] & 3])


def test_equal_prefixes_are_one_object():
    index = PrefixIndex()
    assert prefix(index, (-1, "s"), [1, 2], [3, 4]) is not prefix(PrefixIndex(), (-1, "s"), [1, 2], [3, 4])
    kept = prefix(index, (-1, "s"), [1, 2], [3, 4])
    assert prefix(index, (-1, "s"), [1, 2], [3, 4]) is kept
    assert prefix(index, (-1, "s"), [1, 2]) is kept.parent


def test_all_that_kv_depends_on_makes_a_difference():
    index = PrefixIndex()
    cases = [
        ((-1, ""), [1, 2], [3, 4]),
        ((-1, ""), [3, 4], [1, 2]),
        ((-1, ""), [1, 2], [3, 5]),
        ((-1, ""), [1, 6], [3, 4]),
        ((-1, "a"), [1, 2], [3, 4]),
        ((-1, "b"), [1, 2], [3, 4]),
        ((-1, "?"), [1, 2], [3, 4]),
        ((-1, "\ud800"), [1, 2], [3, 4]),
        ((-1, "\udc00"), [1, 2], [3, 4]),
        ((0, ""), [1, 2], [3, 4]),
        ((1, "a"), [1, 2], [3, 4]),
    ]
    made = [prefix(index, *case) for case in cases]
    assert len({p.digest for p in made}) == len(made)


def test_the_polynomial_pair_differs():
    """Add 31 to one token and take 1 from the next: equal under a hash of the form 31 * h + t."""
    index = PrefixIndex()
    left, right = prefix(index, (-1, ""), [5, 40, 7]), prefix(index, (-1, ""), [5 + 1, 40 - 31, 7])
    assert left is not right
    assert left.digest != right.digest


@given(
    st.lists(
        st.tuples(
            st.tuples(st.sampled_from([-1, 0, 1]), st.sampled_from(["", "x"])),
            st.lists(st.integers(0, 1), max_size=5),
        ),
        min_size=2,
        max_size=40,
    )
)
def test_prefixes_are_equal_only_if_their_content_is(cases):
    """Under a digest of two bits, in which almost all collide."""
    index = PrefixIndex(two_bits)
    made = [prefix(index, root, *([bit] for bit in bits)) for root, bits in cases]
    for (left, a), (right, b) in itertools.combinations(zip(cases, made, strict=True), 2):
        if left != right:
            assert a is not b
    assert len(index) <= 4


ROOTS = st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(), max_size=12))


@given(ROOTS, ROOTS, st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4), max_size=3))
def test_c05_different_adapters_and_salts_share_no_prefix(left, right, blocks):
    """The same tokens under any two roots: one object for equal roots, another digest for different ones.

    An adapter is not its number written before the salt: what is moved from one to the other makes a difference.
    """
    index = PrefixIndex()
    for root in (right, (left[0], right[1]), (right[0], left[1]), (left[0], "\0" + left[1])):
        one, other = prefix(index, left, *blocks), prefix(index, root, *blocks)
        assert (one is other) == (left == root)
        assert (one.digest == other.digest) == (left == root)
        assert blocks == [] or (label_of(one) == label_of(other)) == (left == root)


def test_what_nobody_refers_to_is_forgotten():
    index = PrefixIndex()
    longest = prefix(index, (-1, ""), *([i] for i in range(50_000)))
    assert len(index) == 50_001
    middle = longest.parent
    del longest
    gc.collect()
    assert len(index) == 50_000
    del middle  # the whole chain goes, without deep recursion
    gc.collect()
    assert len(index) == 0
