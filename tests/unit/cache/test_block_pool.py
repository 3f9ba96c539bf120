import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.cache.block_pool import BlockPool


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


def test_a_shared_block_is_free_when_the_last_owner_leaves():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    pool.free(block)
    assert (pool.references(block), pool.num_used) == (1, 1)
    pool.free(block)
    assert pool.num_used == 0
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share(block)


def test_a_pool_has_blocks():
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(["allocate", "share", "free"]), st.integers(0, 5))))
def test_counts_follow_a_plain_model(num_blocks, operations):
    pool, counts = BlockPool(num_blocks), [0] * num_blocks
    for operation, choice in operations:
        block = choice % num_blocks
        if operation == "allocate" and 0 in counts:
            block = pool.allocate()
            assert counts[block] == 0
            counts[block] = 1
        elif operation == "share" and counts[block]:
            pool.share(block)
            counts[block] += 1
        elif operation == "free" and counts[block]:
            pool.free(block)
            counts[block] -= 1
        assert [pool.references(b) for b in range(num_blocks)] == counts
        assert pool.num_free == counts.count(0)
        assert pool.num_free + pool.num_used == pool.num_blocks
