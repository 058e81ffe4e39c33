"""The caching allocator: sizes of segments, which free block is taken, what is given back, by hand and at random."""

import itertools
import random

import pytest

from dsnb.prediction.replay.allocator import MIB, CachingAllocator, OutOfMemoryError


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11.5 * MIB, 12 * MIB, 12 * MIB),  # half a MiB is not split off a large block
        (100.25 * MIB, 100.25 * MIB, 102 * MIB),
    ],
)
def test_sizes_of_a_first_allocation(asked, allocated, reserved):
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_free_block_that_is_large_enough_is_taken_and_split():
    allocator = CachingAllocator()
    large, small, _ = (allocator.allocate(size * MIB) for size in (30, 12, 14))
    allocator.release(large)
    allocator.release(small)
    first = allocator.allocate(10 * MIB)
    assert first.place == small.place
    second = allocator.allocate(10 * MIB)
    assert second.place == large.place
    assert allocator.allocate(20 * MIB).place == (large.place[0], 10 * MIB)
    assert allocator.allocate(2 * MIB).place == (small.place[0], 10 * MIB)
    assert allocator.reserved == (30 + 12 + 14) * MIB
    assert allocator.peak_allocated == allocator.allocated == (10 + 10 + 20 + 2 + 14) * MIB


def test_small_and_large_allocations_share_no_segment():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(40 * MIB))
    allocator.allocate(1000)
    assert allocator.reserved == 42 * MIB


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_free_neighbours_are_one_block(order):
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB))
    blocks = [allocator.allocate(20 * MIB) for _ in range(3)]
    for one in order:
        allocator.release(blocks[one])
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 60 * MIB


def test_for_lack_of_memory_free_segments_are_given_back_but_none_that_is_partly_used():
    allocator = CachingAllocator(100 * MIB)
    whole, partly = allocator.allocate(40 * MIB), allocator.allocate(40 * MIB)
    allocator.release(partly)
    allocator.allocate(2 * MIB)
    allocator.release(whole)
    allocator.allocate(60 * MIB)  # only if the 40 are given back
    assert allocator.reserved == 100 * MIB
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(39 * MIB)
    assert allocator.allocate(38 * MIB).place[1] == 2 * MIB


@pytest.mark.parametrize("seed", range(5))
def test_blocks_never_overlap_and_everything_comes_back(seed):
    chance, allocator, held = random.Random(seed), CachingAllocator(), []
    for _ in range(2000):
        if held and chance.random() < 0.5:
            allocator.release(held.pop(chance.randrange(len(held))))
        else:
            held.append(allocator.allocate(int(10 ** chance.uniform(0, 8.5))))
        assert allocator.allocated == sum(one.size for one in held) <= allocator.reserved
    places = sorted((*one.place, one.size) for one in held)
    for (segment, offset, size), (next_segment, next_offset, _) in itertools.pairwise(places):
        assert segment < next_segment or offset + size <= next_offset
    for one in held:
        allocator.release(one)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_the_same_allocations_twice_reserve_no_more():
    allocator, sizes = CachingAllocator(), [3 * MIB, 50 * MIB, 700, 12 * MIB, 1.5 * MIB]
    for _ in range(3):
        blocks = [allocator.allocate(size) for size in sizes]
        assert allocator.reserved == (20 + 50 + 2) * MIB  # 12 and 1.5 fit behind 3
        for one in blocks:
            allocator.release(one)
