"""The remaining time of a long run."""

from __future__ import annotations

from pytest_gpuenergy.pytest_plugin import Progress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run(interval_s: float, item_s: list[float], total: int, skipped: int = 0) -> list[str | None]:
    """The line after each item; the first ``skipped`` items are skipped."""
    clock = Clock()
    progress = Progress(interval_s, clock)
    lines = []
    for number, seconds in enumerate(item_s):
        clock.now_s += seconds
        lines.append(progress.finish(total, skipped=number < skipped))
    return lines


def test_the_time_left_follows_from_the_items_so_far() -> None:
    assert run(0.0, [60.0, 60.0], 4) == [
        "gpuenergy: 1 of 4 items, about 3 min 0 s left",
        "gpuenergy: 2 of 4 items, about 2 min 0 s left",
    ]


def test_what_the_first_item_waited_for_does_not_count_again() -> None:
    *_, last = run(0.0, [60.0, 10.0, 10.0], 10)
    assert last == "gpuenergy: 3 of 10 items, about 70 s left"


def test_an_interval_passes_between_two_lines() -> None:
    told = [line is not None for line in run(25.0, [10.0] * 9, 100)]
    assert told == [False, False, True] * 3


def test_the_last_item_leaves_nothing_to_tell() -> None:
    assert run(0.0, [1.0], 1) == [None]


def test_items_that_were_skipped_do_not_make_it_hopeful() -> None:
    *_, last = run(0.0, [0.0, 0.0, 30.0], 5, skipped=2)
    assert last == "gpuenergy: 3 of 5 items, about 60 s left"


def test_while_all_are_skipped_nothing_is_known() -> None:
    assert run(0.0, [1.0, 1.0], 5, skipped=2) == [None, None]
