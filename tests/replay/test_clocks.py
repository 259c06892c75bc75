"""The host's clock on the profiler's: the true one is never further away than the error says."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.replay import Bracket, ClockError, ClockRead, align

START_NS = 1_790_857_026_123_456_789
FLOAT_US = 0.5
"""A 64-bit float of microseconds since 1970 cannot be more precise."""


class Truth(NamedTuple):
    """What the profiler's clock shows: a line over the host's."""

    begin_us: float
    rate: float

    def trace_us(self, host_ns: int) -> float:
        return self.begin_us + self.rate * (host_ns - START_NS) / 1e3


truths = st.builds(
    Truth,
    st.floats(-1e6, 5e12),
    st.floats(-4e-4, 4e-4).map(lambda drift: 1 + drift),
)
widths = st.floats(0.0, 200.0)
groups = st.lists(st.tuples(st.integers(1, 100_000), widths, widths), min_size=1, max_size=6)


def brackets_of(
    truth: Truth, groups: list[list[tuple[int, float, float]]], pause_ns: int, set_ns: int = 0
) -> list[Bracket]:
    """Reads in each group follow soon after one another; the host's clock is set after the first.

    The profiler does not see that it has been set.
    """
    found, now_ns, ahead_ns = [], START_NS, 0
    for number, group in enumerate(groups):
        if number:
            now_ns, ahead_ns = now_ns + pause_ns, set_ns
        for later_ns, before_us, after_us in group:
            at_us = truth.trace_us(now_ns)
            read = ClockRead(now_ns + ahead_ns, now_ns - START_NS)
            found.append(Bracket(read, at_us - before_us, at_us + after_us))
            now_ns += later_ns
    return found


@given(truths, groups, groups, st.integers(10**7, 10**10), st.floats(0, 1))
def test_the_true_time_lies_within_the_error(truth, begin, end, pause_ns, share):
    brackets = brackets_of(truth, [begin, end], pause_ns)
    found = align(brackets)
    first_ns, last_ns = brackets[0].read.host_ns, brackets[-1].read.host_ns
    for host_ns in (first_ns, last_ns, first_ns + round(share * (last_ns - first_ns))):
        assert abs(found.trace_us(host_ns) - truth.trace_us(host_ns)) <= found.error_us
    true_us = first_ns / 1e3 - truth.trace_us(first_ns)
    assert abs(found.offset_us - true_us) <= found.error_us + FLOAT_US


@given(truths, groups, groups, st.integers(10**7, 10**10))
def test_the_error_is_no_larger_than_the_first_and_last_bracket_leave_it(
    truth, begin, end, pause_ns
):
    brackets = brackets_of(truth, [begin, end], pause_ns)
    widest_us = max(brackets[end].end_us - brackets[end].begin_us for end in (0, -1))
    assert align(brackets).error_us <= widest_us / 2 + 0.1


def test_one_narrow_bracket_at_each_end_makes_the_error_small():
    wide, narrow = (1000, 150.0, 150.0), (1000, 1.0, 0.5)
    groups = [[wide, wide, narrow], [narrow, wide, wide]]
    found = align(brackets_of(Truth(0.0, 1.0), groups, 10**9))
    assert found.error_us < 1.0


def test_brackets_that_are_early_and_late_narrow_each_other():
    early, late = (1000, 0.0, 40.0), (1000, 40.0, 0.0)
    found = align(brackets_of(Truth(0.0, 1.0), [[early, late], [early, late]], 10**9))
    assert found.error_us < 1.0


@given(st.floats(-4e-4, 4e-4))
def test_a_drift_is_found(drift):
    group = [(1000, 1.0, 1.0)] * 3
    found = align(brackets_of(Truth(7.0, 1 / (1 + drift)), [group, group], 10**9))
    assert found.drift_ppm == pytest.approx(1e6 * drift, abs=3.0)


@given(st.integers(-900_000, 900_000))
def test_what_the_clock_was_set_by_is_part_of_the_error(set_ns):
    group = [(1000, 1.0, 1.0)] * 3
    found = align(brackets_of(Truth(0.0, 1.0), [group, group], 10**10, set_ns))
    assert found.error_us >= abs(set_ns) / 1e3


@given(st.integers(2 * 10**6, 10**12) | st.integers(-5 * 10**9, -2 * 10**6))
def test_a_clock_that_jumps_is_refused(set_ns):
    group = [(1000, 1.0, 1.0)] * 3
    brackets = brackets_of(Truth(0.0, 1.0), [group, group], 10**10, set_ns)
    with pytest.raises(ClockError):
        align(brackets)


def test_a_jump_that_the_trace_follows_is_refused_all_the_same():
    group = [(1000, 1.0, 1.0)] * 3
    brackets = brackets_of(Truth(0.0, 1.0), [group, group], 10**10)
    later = [
        one._replace(read=one.read._replace(monotonic_ns=one.read.monotonic_ns - 10**8))
        for one in brackets[3:]
    ]
    with pytest.raises(ClockError, match="only: one was set meanwhile"):
        align([*brackets[:3], *later])


def test_brackets_that_contradict_each_other_are_refused():
    group = [(1000, 1.0, 1.0)] * 3
    brackets = brackets_of(Truth(0.0, 1.0), [group, group], 10**9)
    wrong = brackets[1]._replace(begin_us=900.0, end_us=901.0)
    with pytest.raises(ClockError, match="contradict"):
        align([brackets[0], wrong, *brackets[2:]])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_reads_are_refused(count):
    brackets = brackets_of(Truth(0.0, 1.0), [[(1000, 1.0, 1.0)]], 0)[:count]
    with pytest.raises(ClockError, match="beginning and at an end"):
        align(brackets)
