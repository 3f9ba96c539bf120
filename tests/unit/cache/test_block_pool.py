import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.cache.block_pool import BlockPool
from legato.cache.prefix import PrefixIndex


def test_free_blocks_and_used_ones_add_up():
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    assert sorted(blocks) == [0, 1, 2]
    assert (pool.num_free, pool.num_used) == (0, 3)
    pool.free(blocks[1])
    assert (pool.num_free, pool.num_used) == (1, 2)
    assert pool.allocate() == blocks[1]


def test_an_empty_pool_gives_nothing():
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(IndexError):
        pool.allocate()


def test_a_block_cannot_be_freed_twice():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.free(block)
    with pytest.raises(ValueError, match="already free"):
        pool.free(block)


def prefixes(count):
    index = PrefixIndex()
    return [index.extend(index.root(-1, ""), bytes([i])) for i in range(count)]


def test_a_shared_block_is_free_when_the_last_owner_leaves():
    pool, (prefix,) = BlockPool(2), prefixes(1)
    block = pool.allocate()
    pool.keep(block, prefix)
    assert pool.take(prefix) == block
    pool.free(block)
    assert (pool.references(block), pool.num_used, pool.num_cached) == (1, 1, 0)
    pool.free(block)
    assert (pool.num_used, pool.num_free, pool.num_cached) == (0, 2, 1)
    with pytest.raises(ValueError, match="already free"):
        pool.free(block)
    assert pool.take(prefix) == block
    assert (pool.references(block), pool.num_cached) == (1, 0)


def test_blank_blocks_go_first_then_the_least_recently_used():
    pool, names = BlockPool(4), prefixes(3)
    blocks = [pool.allocate() for _ in names]
    for block, prefix in zip(blocks, names, strict=True):
        pool.keep(block, prefix)
        pool.free(block)
    pool.free(pool.take(names[0]))  # used again
    assert pool.allocate() not in blocks
    assert [pool.allocate() for _ in names] == [blocks[1], blocks[2], blocks[0]]
    assert not any(pool.holds(prefix) for prefix in names)
    with pytest.raises(IndexError):
        pool.allocate()


def test_one_block_holds_a_prefix():
    pool, (prefix, other) = BlockPool(3), prefixes(2)
    first, second = pool.allocate(), pool.allocate()
    pool.keep(first, prefix)
    pool.keep(second, prefix)
    pool.keep(first, other)
    assert not pool.holds(other), "a block holds one prefix"
    assert pool.take(prefix) == first
    pool.free(second)
    assert pool.num_cached == 0, "the second one is blank"
    with pytest.raises(KeyError):
        pool.take(other)
    with pytest.raises(ValueError, match="holds nothing"):
        pool.keep(second, other)


def test_a_pool_has_blocks():
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["allocate", "keep", "take", "free"]), st.integers(0, 5), st.integers(0, 3))),
)
def test_counts_follow_a_plain_model(num_blocks, operations):
    pool, names = BlockPool(num_blocks), prefixes(4)
    counts, held, freed = [0] * num_blocks, {}, []  # held: prefix to block; freed: cached blocks by time
    for operation, choice, number in operations:
        block, prefix = choice % num_blocks, names[number]
        if operation == "allocate" and 0 in counts:
            block = pool.allocate()
            assert counts[block] == 0
            if block in freed:
                assert freed.pop(0) == block
                assert all(count or b in freed or b == block for b, count in enumerate(counts)), "a blank one is left"
                held = {p: b for p, b in held.items() if b != block}
            counts[block] = 1
        elif operation == "keep" and counts[block]:
            pool.keep(block, prefix)
            if prefix not in held and block not in held.values():
                held[prefix] = block
        elif operation == "take" and prefix in held:
            block = pool.take(prefix)
            assert block == held[prefix]
            freed = [b for b in freed if b != block]
            counts[block] += 1
        elif operation == "free" and counts[block]:
            pool.free(block)
            counts[block] -= 1
            if counts[block] == 0 and block in held.values():
                freed.append(block)
        assert [pool.references(b) for b in range(num_blocks)] == counts
        assert [pool.holds(p) for p in names] == [p in held for p in names]
        assert pool.num_free == counts.count(0)
        assert pool.num_cached == len(freed)
        assert pool.num_free + pool.num_used == pool.num_blocks


def test_pinned_blocks_are_handed_out_last_and_their_pins_end_with_them():
    pool, (a, b) = BlockPool(2), prefixes(2)
    blocks = [pool.allocate() for _ in range(2)]
    for block, prefix in zip(blocks, (a, b), strict=True):
        pool.keep(block, prefix)
    pool.pin(blocks[0])
    for block in blocks:
        pool.free(block)
    assert (pool.num_free, pool.num_free_unpinned, pool.num_pinned, pool.num_cached) == (2, 1, 1, 2)
    assert [pool.allocate(), pool.allocate()] == [blocks[1], blocks[0]]
    assert pool.num_pinned == 0
    assert pool.block_of(a) is None


def test_an_unpinned_block_counts_as_just_used():
    pool, known = BlockPool(3), prefixes(3)
    blocks = [pool.allocate() for _ in known]
    for block, prefix in zip(blocks, known, strict=True):
        pool.keep(block, prefix)
        pool.pin(block)
        pool.free(block)
    for block in (blocks[1], blocks[0]):
        pool.unpin(block)
    pool.unpin(blocks[0])
    assert [pool.allocate() for _ in blocks] == [blocks[1], blocks[0], blocks[2]]


def test_only_what_is_known_can_be_pinned():
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="holds no known prefix"):
        pool.pin(pool.allocate())
