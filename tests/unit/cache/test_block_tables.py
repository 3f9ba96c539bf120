from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.cache.block_tables import KvBlocks
from legato.core.types import NO_BLOCK
from support.scripted import full_group, window_group


def blocks_of(*windows, block_size=4, num_blocks=8, max_chunk=64, chunk_align=1):
    groups = [full_group() if window is None else window_group(window) for window in windows]
    return KvBlocks(groups, block_size, num_blocks, max_chunk, chunk_align)


def used(kv):
    return [pool.num_used for pool in kv.pools]


def test_blocks_are_taken_as_positions_need_them():
    kv = blocks_of(None)
    tables = kv.new_tables()
    for positions, blocks in ((0, 0), (1, 1), (4, 1), (5, 2), (3, 2), (32, 8)):
        assert kv.grow(tables, positions)
        assert used(kv) == [blocks]
    assert not kv.grow(tables, 33)
    kv.release(tables)
    assert used(kv) == [0]


def test_nothing_is_taken_when_one_group_is_short():
    kv = blocks_of(None, None)
    other = kv.new_tables()
    kv.grow(other, 16)
    kv.pools[1].allocate()
    tables = kv.new_tables()
    assert not kv.grow(tables, 16)
    assert used(kv) == [4, 5]
    assert kv.grow(tables, 12)


def test_slots_follow_the_table():
    kv = blocks_of(None)
    first, second = kv.new_tables(), kv.new_tables()
    kv.grow(first, 4)
    kv.grow(second, 4)
    kv.grow(first, 10)
    slots = array("q")
    kv.append_slots(slots, first, 0, 2, 10)
    blocks = first.groups[0]
    assert list(slots) == [blocks[p // 4] * 4 + p % 4 for p in range(2, 10)]


def test_blocks_behind_a_window_are_dropped():
    kv = blocks_of(None, 6)
    tables = kv.new_tables()
    kv.grow(tables, 20)
    kv.drop_behind_windows(tables, 13)  # the row at 13 sees 8..13
    assert list(tables.groups[1])[:3] == [NO_BLOCK, NO_BLOCK, tables.groups[1][2]]
    assert tables.groups[1][2] != NO_BLOCK
    assert used(kv) == [5, 3]
    kv.drop_behind_windows(tables, 13)
    assert used(kv) == [5, 3]
    kv.release(tables)
    assert used(kv) == [0, 0]


def test_a_sequence_alone_fits_the_pool():
    assert blocks_of(None).max_positions == 32
    assert blocks_of(4).max_positions is None
    assert blocks_of(None, 4).max_positions == 32
    # 7 blocks * 4 + 2 - 27 leaves chunks of 3; a window of 40 does not fit at all, so length is what is bounded.
    assert blocks_of(27).max_chunk == 3
    assert (blocks_of(40).max_positions, blocks_of(40).max_chunk) == (32, 64)
    assert (blocks_of(27, chunk_align=4).max_positions, blocks_of(27, chunk_align=4).max_chunk) == (32, 64)


@given(window=st.integers(1, 40), block_size=st.integers(1, 5), num_blocks=st.integers(1, 9), data=st.data())
def test_a_windowed_sequence_alone_never_runs_out(window, block_size, num_blocks, data):
    kv = blocks_of(window, block_size=block_size, num_blocks=num_blocks)
    tables, computed = kv.new_tables(), 0
    end = kv.max_positions or 200
    while computed < end:
        rows = data.draw(st.integers(1, min(kv.max_chunk, end - computed)))
        kv.drop_behind_windows(tables, computed)
        promised = kv.missing(tables, end)[0]
        before = kv.pools[0].num_used
        assert kv.grow(tables, computed + rows)
        assert kv.pools[0].num_used - before <= promised
        visible = range(max(0, computed - window + 1), computed + rows)
        assert all(tables.groups[0][p // block_size] != NO_BLOCK for p in visible)
        computed += rows
    kv.release(tables)
    assert kv.pools[0].num_used == 0


def test_missing_counts_what_may_still_be_taken():
    kv = blocks_of(None, 6, max_chunk=3)
    tables = kv.new_tables()
    assert kv.missing(tables, 20) == [5, 3]
    kv.grow(tables, 8)
    assert kv.missing(tables, 20) == [3, 1]
    assert kv.missing(tables, 4) == [0, 0]


def test_waste_counts_slots_without_a_position():
    kv = blocks_of(None, 6)
    tables = kv.new_tables()
    kv.grow(tables, 10)
    assert kv.slots_of(tables, 10) == (24, 20)
    kv.drop_behind_windows(tables, 10)  # sees 5.. : one block of the window group goes
    assert kv.slots_of(tables, 10) == (20, 16)


@pytest.mark.parametrize(("positions", "share"), [(0, 0.0), (16, 0.5), (32, 1.0)])
def test_usage_is_that_of_the_fullest_pool(positions, share):
    kv = blocks_of(None, None)
    kv.grow(kv.new_tables(), positions)
    assert kv.usage() == share
