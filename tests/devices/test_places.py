"""Where the sets of buffers lie."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import (
    MAX_PLACEMENTS,
    PAGE_BYTES,
    placements,
    pool_bytes,
    scattered_offsets,
    set_layout,
)

MIB = 1 << 20
SIZES = st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=24)


@given(st.integers(0, 1 << 36))
def test_small_buffers_take_many_places_and_large_ones_little_memory(set_bytes: int) -> None:
    sets = placements(set_bytes)
    assert 1 <= sets <= MAX_PLACEMENTS
    assert sets == 1 or sets * set_bytes <= 256 * MIB
    assert sets == MAX_PLACEMENTS or (sets + 1) * set_bytes > 256 * MIB


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 4 * MIB), max_size=6))
def test_buffers_of_a_piece_do_not_overlap_and_large_ones_have_their_own(
    sizes: dict[str, int],
) -> None:
    found = set_layout(sizes)
    assert sorted(name for piece in found for name in piece) == sorted(sizes)
    for piece in found:
        assert len(piece) == 1 or all(sizes[name] < MIB for name in piece)
        spans = sorted((at, at + sizes[name]) for name, at in piece.items())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert all(at % 512 == 0 for at in piece.values())
    assert len(found) <= 1 + sum(size >= MIB for size in sizes.values())


@given(SIZES, st.integers(0, 1 << 38), st.integers(0))
def test_scattered_pieces_lie_in_the_pool_on_pages_of_their_own(
    sizes: list[int], free_bytes: int, seed: int
) -> None:
    pool = pool_bytes(sizes, free_bytes)
    found = scattered_offsets(sizes, pool, np.random.default_rng(seed))
    spans = sorted((at, at + size) for at, size in zip(found, sizes, strict=True))
    assert all(at % PAGE_BYTES == 0 for at in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[0][0] >= 0
    assert spans[-1][1] <= pool


@given(SIZES, st.integers(0, 1 << 38))
def test_a_pool_leaves_memory_to_others(sizes: list[int], free_bytes: int) -> None:
    needed = sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)
    more = pool_bytes(sizes, free_bytes) - needed
    assert 0 <= more <= max(0, free_bytes - needed) / 4
    assert more <= 3 << 30


def test_places_are_anywhere_and_differ_from_process_to_process() -> None:
    sizes = [3 * MIB] * MAX_PLACEMENTS
    pool = pool_bytes(sizes, 1 << 37)
    found = [scattered_offsets(sizes, pool, np.random.default_rng(seed)) for seed in range(200)]
    assert len({tuple(places) for places in found}) == 200
    first = np.array([places[0] for places in found]) / pool
    assert abs(first.mean() - 0.5) < 0.1
    assert abs(first.std() - 12**-0.5) < 0.05


def test_nothing_takes_no_memory() -> None:
    assert pool_bytes([], 1 << 37) == 0
    assert scattered_offsets([], 0, np.random.default_rng(0)) == []
