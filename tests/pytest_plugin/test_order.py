"""The order of items: what is interleaved, how evenly, and what stays in place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.pytest_plugin import ItemPlace, interleave

Item = tuple[int, int, int]
COUNTS = st.integers(1, 9)


def table(kernels: int, caps: int, group: int = 0) -> list[Item]:
    return [(group, kernel, cap) for kernel in range(kernels) for cap in range(caps)]


def mixed(items: list[Item]) -> list[Item]:
    return interleave(items, lambda item: ItemPlace(*item))


def test_one_kernel_steps_from_both_ends_of_the_caps():
    assert [cap for _, _, cap in mixed(table(1, 5))] == [0, 4, 1, 3, 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4))))
def test_no_item_is_lost_or_doubled(items):
    assert Counter(mixed(items)) == Counter(items)


@given(COUNTS, COUNTS)
def test_each_round_has_every_kernel_once(kernels, caps):
    order = mixed(table(kernels, caps))
    for turn in range(caps):
        played = order[turn * kernels : (turn + 1) * kernels]
        assert sorted(kernel for _, kernel, _ in played) == list(range(kernels))


@given(COUNTS, COUNTS)
def test_each_round_has_all_caps_equally_often(kernels, caps):
    order = mixed(table(kernels, caps))
    for turn in range(caps):
        counts = Counter(cap for _, _, cap in order[turn * kernels : (turn + 1) * kernels])
        present = [counts[cap] for cap in range(caps)]
        assert max(present) - min(present) <= 1


@given(st.integers(2, 9), st.integers(0, 9))
def test_no_cap_or_kernel_comes_late_on_average(caps, more):
    """The mean position of each cap and kernel is within one round of the middle of the run."""
    kernels = caps + more
    order = mixed(table(kernels, caps))
    middle = (len(order) - 1) / 2
    for part, count in ((1, kernels), (2, caps)):
        for value in range(count):
            places = [k for k, item in enumerate(order) if item[part] == value]
            assert abs(sum(places) / len(places) - middle) <= kernels


def test_groups_are_not_mixed_with_each_other():
    order = mixed(table(2, 3, group=0) + table(3, 2, group=1))
    assert [group for group, _, _ in order] == [0] * 6 + [1] * 6


@pytest.mark.parametrize("lonely", [0, 3, 6])
def test_items_without_a_place_stay_and_part_what_is_around_them(lonely):
    items: list[Item | None] = [*table(2, 3)]
    items.insert(lonely, None)
    order = interleave(items, lambda item: item and ItemPlace(*item))
    assert order[lonely] is None
    assert set(order[:lonely]) == set(items[:lonely])
