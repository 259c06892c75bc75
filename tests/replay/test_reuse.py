"""Distances at which memory is used again, and the copies that reproduce them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pytest_gpuenergy.replay import Reuse, ReuseSpan, ReuseStack, copies

LIMIT_BYTES = 60
PLACES = 24

spans = st.builds(ReuseSpan, st.integers(0, PLACES - 1), st.integers(0, 8))
tensors = st.lists(
    st.builds(Reuse, st.integers(1, 1000), st.integers(0, 100_000)), min_size=1, max_size=6
)


def distance_by_bytes(used: list[ReuseSpan], span: ReuseSpan) -> float:
    """What `ReuseStack` should find, from the history of each single byte."""
    own = set(range(span.address, span.address + span.size_bytes))
    total = 0
    for byte in own:
        since: set[int] = set()
        for one in reversed(used):
            touched = set(range(one.address, one.address + one.size_bytes))
            if byte in touched:
                break
            since |= touched
        else:
            since |= set(range(-LIMIT_BYTES, 0))  # never used
        total += min(LIMIT_BYTES, len(since - own))
    return min(LIMIT_BYTES, len(own) + total // len(own)) if own else 0


def test_what_was_never_used_is_as_far_as_can_be():
    assert ReuseStack(LIMIT_BYTES).distance_bytes(ReuseSpan(0, 8)) == LIMIT_BYTES


def test_what_was_used_last_has_the_distance_of_its_own_size():
    stack = ReuseStack(LIMIT_BYTES)
    stack.use(ReuseSpan(0, 8))
    assert stack.distance_bytes(ReuseSpan(0, 8)) == 8
    assert stack.distance_bytes(ReuseSpan(2, 3)) == 3


def test_memory_used_twice_in_between_counts_once():
    stack = ReuseStack(LIMIT_BYTES)
    for span in (ReuseSpan(0, 4), ReuseSpan(10, 5), ReuseSpan(10, 5), ReuseSpan(12, 6)):
        stack.use(span)
    assert stack.distance_bytes(ReuseSpan(0, 4)) == 4 + 8


def test_what_was_used_at_the_same_time_is_not_in_between():
    stack = ReuseStack(LIMIT_BYTES)
    for span in (ReuseSpan(0, 3), ReuseSpan(1, 1)):
        stack.use(span)
    assert stack.distance_bytes(ReuseSpan(0, 1)) == 1 + 1


@given(st.lists(spans, max_size=12), spans)
def test_distances_are_those_of_single_bytes(used, span):
    stack = ReuseStack(LIMIT_BYTES)
    for one in used:
        stack.use(one)
    assert stack.distance_bytes(span) == distance_by_bytes(used, span)


@given(tensors)
def test_a_tensor_that_comes_back_later_has_no_fewer_copies(found):
    numbers = copies(found, 50)
    ordered = sorted(zip(found, numbers, strict=True), key=lambda one: one[0].distance_bytes)
    assert [number for _, number in ordered] == sorted(numbers)
    assert all(1 <= number <= 50 for number in numbers)


@given(tensors)
def test_the_tensor_that_comes_back_last_has_its_distance(found):
    numbers = copies(found, 10**6)
    last = max(range(len(found)), key=lambda index: (found[index].distance_bytes, index))
    others = [number for index, number in enumerate(numbers) if index != last]
    replayed_bytes = sum(
        one.size_bytes * min(numbers[last], number)
        for one, number in zip(found, numbers, strict=True)
    )
    missed_bytes = abs(replayed_bytes - found[last].distance_bytes)
    as_few_as_can_be = numbers[last] == max([1, *others])
    assert as_few_as_can_be or missed_bytes <= found[last].size_bytes / 2


def test_an_activation_stays_and_a_weight_does_not():
    assert copies([Reuse(8, 8), Reuse(4, 150), Reuse(8, 30)], 256) == [1, 32, 2]
