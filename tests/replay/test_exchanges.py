"""Traces of several ranks on one clock, and what the ranks exchanged."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.replay import TraceLaunch, merged
from pytest_gpuenergy.support import InputError

NAME = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(begin_us: float, duration_us: float, name: str = "gemm") -> TraceLaunch:
    return TraceLaunch(name, "kernel", begin_us, duration_us, phase="decode", step=1)


def exchange(begin_us: float, end_us: float) -> TraceLaunch:
    return kernel(begin_us, end_us - begin_us, NAME)


def test_the_rank_that_comes_first_waits_for_the_last():
    ranks = [[exchange(10, 60), exchange(100, 120)], [exchange(40, 60), exchange(95, 120)]]
    _, found = merged(ranks)
    clock = found.clocks[1]
    assert clock.error_us is not None
    assert abs(clock.offset_us) <= clock.error_us
    assert found.waiting_us(0) == pytest.approx(30 + clock.offset_us)
    assert found.waiting_us(1) == pytest.approx(5 - clock.offset_us)
    assert found.transfer_us(0) == pytest.approx(50 + 20 - found.waiting_us(0))


def test_exchanges_end_on_all_ranks_at_the_same_time():
    # Rank 1 always waits, so that the bounds allow it to be 900 µs later.
    first = [exchange(begin, begin + 6) for begin in (1000, 2000, 3000)]
    other = [exchange(begin - 900 - 50, begin + 6 - 50) for begin in (1000, 2000, 3000)]
    _, found = merged([first, other])
    clock = found.clocks[1]
    assert clock.offset_us == 50
    assert clock.spread_us == 0
    assert clock.error_us == pytest.approx(906)
    assert found.waiting_us(1) == 3 * 900
    assert found.waiting_us(0) == 0


def test_how_far_apart_most_exchanges_end_is_told():
    first = [exchange(begin, begin + 10) for begin in range(0, 4000, 100)]
    other = [exchange(one.begin_us, one.end_us + (5 if one.begin_us == 0 else 1)) for one in first]
    _, found = merged([first, other])
    assert (found.clocks[1].offset_us, found.clocks[1].spread_us) == (-1, 0)


def test_all_launches_are_there_with_their_rank_in_order():
    found, _ = merged([[kernel(0, 5), exchange(10, 60)], [kernel(1, 5), exchange(11, 60)]])
    assert [one.rank for one in found] == [0, 1, 0, 1]
    assert [one.name for one in found] == ["gemm", "gemm", NAME, NAME]


def test_without_an_exchange_nothing_tells_how_the_clocks_stand():
    _, found = merged([[kernel(0, 5)], [kernel(1, 5)]])
    assert (found.clocks[1].offset_us, found.clocks[1].error_us) == (0, None)
    assert not found.exchanges


@pytest.mark.parametrize("other", [[], [exchange(5, 9), exchange(12, 30)], [kernel(5, 9, "nccl")]])
def test_ranks_that_made_other_exchanges_are_refused(other):
    with pytest.raises(InputError, match="not of one run"):
        merged([[exchange(10, 60)], other])


times = st.integers(1, 1000)


@given(
    st.lists(st.tuples(times, times, times, times), min_size=1, max_size=20),
    st.integers(-(10**6), 10**6),
)
def test_the_true_offset_lies_within_the_error(exchanges, true_us):
    first, other, now = [], [], 0
    for pause, late, transfer, left in exchanges:
        begin, last = now + pause, now + pause + late
        first.append(exchange(begin, last + transfer))
        end = last + transfer + left
        other.append(exchange(last - true_us, end - true_us))
        now = end
    launches, found = merged([first, other])
    clock = found.clocks[1]
    assert clock.error_us is not None
    assert abs(clock.offset_us - true_us) <= clock.error_us + 1e-6
    assert len(launches) == 2 * len(exchanges)
    for one in found.exchanges:
        assert all(
            0 <= waiting <= took
            for waiting, took in zip(one.waiting_us, one.duration_us, strict=True)
        )
