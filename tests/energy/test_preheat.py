"""For how long a card is heated up until its temperature has settled."""

from __future__ import annotations

from pytest_gpuenergy.energy import LEAST_PAUSE_S, Preheat, Settling

COLD = Settling(50.0, 60.0, 0.5, 0.4, 0.004, 0.001)
SETTLED = Settling(60.0, 60.2, 0.5, 0.4, 0.004, 0.001)


def seconds(preheat: Preheat, settling: Settling | None = COLD, most_s: int = 100) -> int:
    """How long it goes on."""
    for now_s in range(most_s):
        if not preheat.goes_on(float(now_s), settling):
            return now_s
    return most_s


def test_a_cold_card_is_heated_for_as_long_as_allowed() -> None:
    assert seconds(Preheat(20.0, lambda _: None)) == 20


def test_a_settled_card_is_not_heated() -> None:
    assert seconds(Preheat(20.0, lambda _: None), SETTLED) == 0


def test_a_card_that_may_yet_get_warmer_is_heated() -> None:
    unknown = Settling(60.0, 60.2, 3.0, 3.0, 0.004, 0.001)
    assert seconds(Preheat(20.0, lambda _: None), unknown) == 20


def test_an_error_that_heating_does_not_reduce_is_no_reason_to_heat() -> None:
    inexact = Settling(60.0, 60.2, 3.0, 0.4, 0.004, 0.001)
    assert seconds(Preheat(20.0, lambda _: None), inexact) == 0


def test_a_card_without_a_temperature_is_not_heated() -> None:
    assert seconds(Preheat(20.0, lambda _: None), None) == 0


def test_zero_seconds_are_none() -> None:
    assert seconds(Preheat(0.0, lambda _: None)) == 0


def test_the_seconds_are_for_all_runs_together() -> None:
    preheat = Preheat(20.0, lambda _: None)
    assert [seconds(preheat), seconds(preheat)] == [20, 0]


def test_a_pause_gives_its_seconds_back() -> None:
    preheat = Preheat(20.0, lambda _: None)
    seconds(preheat)
    preheat.paused(12.0)
    assert seconds(preheat) == 12


def test_a_short_pause_gives_nothing_back() -> None:
    preheat = Preheat(20.0, lambda _: None)
    seconds(preheat)
    preheat.paused(LEAST_PAUSE_S)
    assert seconds(preheat) == 0


def test_a_long_pause_gives_no_more_than_all() -> None:
    preheat = Preheat(20.0, lambda _: None)
    preheat.paused(1000.0)
    assert seconds(preheat) == 20


def test_the_time_left_is_announced_every_five_seconds() -> None:
    told: list[float] = []
    seconds(Preheat(12.0, told.append))
    assert told == [11.0, 6.0, 1.0]


def test_a_heating_up_of_less_than_a_second_is_not_announced() -> None:
    told: list[float] = []
    preheat = Preheat(12.0, told.append)
    preheat.goes_on(0.0, COLD)
    preheat.goes_on(0.9, COLD)
    preheat.goes_on(1.0, SETTLED)
    assert told == []
