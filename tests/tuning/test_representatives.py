"""The choice of representatives, as properties of any search."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from pytest_gpuenergy.tuning import BANDS, Contender, Representative, representatives

TIMES = st.floats(min_value=1e-3, max_value=1e3)


@st.composite
def searches(draw: st.DrawFn, min_size: int = 0) -> list[Contender]:
    times = draw(st.lists(TIMES, min_size=min_size, max_size=120))
    return [
        Contender(time_ms, (f"trace{number}", f"kernel{draw(st.integers(0, 200))}"))
        for number, time_ms in enumerate(times)
    ]


def hundred() -> list[Contender]:
    """101 different trials that take 1, 2, .. 101 ms, so that percentile q is at place q."""
    return [Contender(float(place), (f"t{place}",)) for place in range(1, 102)]


def distinct_count(trials: list[Contender]) -> int:
    seen: set[str] = set()
    count = 0
    for trial in sorted(trials, key=lambda trial: trial.time_ms):
        count += seen.isdisjoint(trial.identities)
        seen.update(trial.identities)
    return count


def test_bands_are_the_fastest_and_those_around_each_percentile():
    picks = representatives(hundred(), 25)
    places = {band: [pick.index for pick in picks if pick.band == band] for band in BANDS}
    assert places == {
        "fastest": [0, 1, 2, 3, 4],
        "p10": [8, 9, 10, 11, 12],
        "p25": [23, 24, 25, 26, 27],
        "p50": [48, 49, 50, 51, 52],
        "p75": [73, 74, 75, 76, 77],
    }


def test_bands_that_meet_share_nothing():
    picks = representatives(hundred()[:26], 25)
    assert Counter(pick.band for pick in picks) == dict.fromkeys(BANDS, 5)
    assert len({pick.index for pick in picks}) == 25


def test_a_count_that_does_not_divide_favours_the_earlier_bands():
    counts = Counter(pick.band for pick in representatives(hundred(), 7))
    assert [counts[band] for band in BANDS] == [2, 2, 1, 1, 1]


def test_a_rejected_trial_is_replaced_by_the_next_nearest_and_nothing_else_changes():
    before = representatives(hundred(), 25)
    after = representatives(hundred(), 25, rejected=[50])
    assert set(before) - set(after) == {Representative(50, "p50")}
    assert set(after) - set(before) == {Representative(47, "p50")}


def test_equal_kernels_are_one_and_the_fastest_of_them_counts():
    trials = [
        Contender(2.0, ("a", "k")),
        Contender(1.0, ("b", "k")),
        Contender(3.0, ("b", "other")),
    ]
    assert [pick.index for pick in representatives(trials, 25)] == [1]


@given(searches(), st.integers(0, 25))
def test_there_are_as_many_as_wanted_or_as_there_are(trials, count):
    assert len(representatives(trials, count)) == min(count, distinct_count(trials)) or (
        # Later bands have no part in very small counts.
        count < len(BANDS)
    )


@given(searches(), st.integers(0, 25))
def test_none_is_chosen_twice_nor_its_like(trials, count):
    picks = representatives(trials, count)
    identities = [identity for pick in picks for identity in trials[pick.index].identities]
    assert len(set(identities)) == len(identities)


@given(searches(), st.integers(1, 25))
def test_they_are_sorted_and_begin_with_the_fastest(trials, count):
    times = [trials[pick.index].time_ms for pick in representatives(trials, count)]
    assert times == sorted(times)
    if trials:
        assert times[0] == min(trial.time_ms for trial in trials)


@given(searches(min_size=1), st.data())
def test_the_order_of_the_trials_does_not_matter(trials, data):
    trials = [
        Contender(number + trial.time_ms, trial.identities) for number, trial in enumerate(trials)
    ]
    times = sorted({trial.time_ms for trial in trials})
    trials = [next(t for t in trials if t.time_ms == time_ms) for time_ms in times]
    shuffled = data.draw(st.permutations(trials))
    assert {(trials[p.index], p.band) for p in representatives(trials, 25)} == {
        (shuffled[p.index], p.band) for p in representatives(shuffled, 25)
    }


@given(searches(min_size=1), st.data())
def test_the_rejected_are_never_chosen(trials, data):
    rejected = data.draw(st.sets(st.integers(0, len(trials) - 1)))
    assert rejected.isdisjoint(pick.index for pick in representatives(trials, 25, rejected))
