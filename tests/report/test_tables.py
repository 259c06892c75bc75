"""Tables and figures for people to read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.record import Interval, Measurement, Window
from pytest_gpuenergy.report import (
    ROWS_SHOWN,
    best_lines,
    best_of_each,
    energy,
    group,
    idle_caps,
    pareto,
    summary,
    time,
    words,
)

Make = Callable[..., Any]
FIGURES = st.integers(1, 6).map(float)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0.0193, "19.3 µs"),
        (0.999, "999 µs"),
        (0.9996, "1000 µs"),
        (1.0, "1.00 ms"),
        (12.345, "12.3 ms"),
        (2345.6, "2346 ms"),
    ],
)
def test_times_have_three_digits_and_a_unit(time_ms: float, text: str) -> None:
    assert time(time_ms) == text


@pytest.mark.parametrize(
    ("energy_mj", "text"),
    [(0.05, "50.0 µJ"), (0.1, "0.100 mJ"), (7.6249, "7.62 mJ"), (1234.5, "1.23 J")],
)
def test_energies_have_three_digits_and_a_unit(energy_mj: float, text: str) -> None:
    assert energy(energy_mj) == text


def test_words_of_a_measurement(measured: Make) -> None:
    item = measured(time_ms=0.0193, energy_mj=7.62)
    assert words(item) == "19.3 µs 7.62 mJ 0.147 mJ·ms"


def test_words_of_a_failed_kernel(failed: Make) -> None:
    assert words(failed()) == "correctness"


def dominated(row: Measurement, others: list[Measurement]) -> bool:
    """By definition: another row is no worse in both metrics and better in one."""

    def figures(m: Measurement) -> tuple[float, float]:
        assert m.time_ms is not None
        assert m.energy_mj is not None
        return m.time_ms, m.energy_mj

    mine = figures(row)
    return any(
        theirs[0] <= mine[0] and theirs[1] <= mine[1] and theirs != mine
        for theirs in map(figures, others)
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=12))
def test_the_front_is_what_nothing_dominates(
    measured: Make, figures: list[tuple[float, float]]
) -> None:
    rows = [
        measured(k, time_ms=time_ms, energy_mj=energy_mj)
        for k, (time_ms, energy_mj) in enumerate(figures)
    ]
    front = {row.kernel.label for row in pareto(rows)}
    assert front == {row.kernel.label for row in rows if not dominated(row, rows)}


def test_the_front_runs_from_fast_to_frugal(measured: Make) -> None:
    rows = [measured(k, time_ms=t, energy_mj=4.0 - t) for k, t in enumerate((3.0, 1.0, 2.0))]
    assert [row.time_ms for row in pareto(rows)] == [1.0, 2.0, 3.0]


def test_failed_kernels_are_never_on_the_front(failed: Make) -> None:
    assert pareto([failed(1), failed(2)]) == []


def test_groups_have_the_lowest_cap_and_the_best_rank_first(measured: Make) -> None:
    items = [measured(1, 5, workload="case2"), measured(2, 5), measured(1, 1), measured(1, 5)]
    groups = group(items)
    assert list(groups) == [("case2", "700W"), ("case1", "200W"), ("case1", "700W")]
    assert [m.kernel.rank for m in groups["case1", "700W"]] == [1, 2]


def test_the_summary_marks_the_front_and_shows_failures(measured: Make, failed: Make) -> None:
    slow = measured(2, time_ms=1.0, energy_mj=200.0, validity=("host_gaps",))
    title, _, *rows = summary([measured(1), slow, failed(3)], emulated=True)
    assert title == "case1 at 450W (emulated), 1000 FLOP/byte"
    assert rows[0].startswith("* k01 ")
    assert rows[1].startswith("  k02 ")
    assert rows[1].endswith("  host_gaps")
    assert "k03" in rows[2]
    assert "correctness: 1 of 4 elements" in rows[2]


def test_the_summary_of_a_real_gpu_does_not_say_emulated(measured: Make) -> None:
    assert "emulated" not in "\n".join(summary([measured(1)], emulated=False))


def test_a_cap_that_held_nothing_back_is_told(measured: Make) -> None:
    rows = [measured(1, cap_binding=False), measured(2, cap_binding=True)]
    *_, last = summary(rows, emulated=True)
    assert last == "  the cap had no effect on 1 of these 2 kernels"


def test_without_a_cap_nothing_is_said_of_it(measured: Make) -> None:
    text = "\n".join(summary([measured(1, None, cap_binding=False)], emulated=True))
    assert "no effect" not in text


def test_of_many_kernels_only_the_front_is_listed(measured: Make) -> None:
    rows = [measured(k, time_ms=1.0 + k, energy_mj=1.0 + k) for k in range(ROWS_SHOWN + 1)]
    lines = list(summary(rows, emulated=True))
    assert len(lines) == 4
    assert lines[-1] == f"  {ROWS_SHOWN} kernels off the Pareto front are only in the report"


def test_a_cap_that_held_no_kernel_back_is_idle(measured: Make) -> None:
    rows = [
        measured(1, 5, cap_binding=False),
        measured(1, 1, cap_binding=True),
        measured(2, 5, cap_binding=False),
        measured(1, 3, cap_binding=True),
        measured(2, 3, cap_binding=False),
        measured(2, 4, cap_binding=False),
        measured(1, None, cap_binding=False),  # no cap at all
        measured(1, 2, cap_binding=None),  # not measured
    ]
    assert idle_caps(rows) == ["575W", "700W"]


def test_the_best_is_sought_over_all_kernels_and_caps(measured: Make, failed: Make) -> None:
    fast = measured(1, 5, time_ms=1.0, energy_mj=9.0)
    frugal = measured(2, 1, time_ms=3.0, energy_mj=4.0)
    balanced = measured(3, 3, time_ms=1.5, energy_mj=5.0)
    (best,) = best_of_each([fast, frugal, balanced, failed(4)])
    assert [tied.best for tied in best.ties.values()] == [fast, frugal, balanced]
    assert best.front == [fast, balanced, frugal]


def test_cold_and_hot_caches_are_never_mixed(measured: Make) -> None:
    best = best_of_each([measured(1), measured(1, cache="cold")])
    assert [one.workload for one in best] == ["case1", "case1, cold"]


def test_the_best_of_each_workload_is_one_line(measured: Make) -> None:
    lines = list(best_lines([measured(1), measured(1, workload="case2")], emulated=True))
    least = ("500 µs", "100 mJ", "50.0 mJ·ms")
    assert lines[0] == "best of each workload (emulated)"
    assert [re.split(" {2,}", line.strip()) for line in lines[1:]] == [
        ["workload", "least time", "least energy", "least EDP", "best cap", "Pareto"],
        *(
            [name, *(f"{best} k01 at 450W" for best in least), "450W", "1 of 1"]
            for name in ("case1", "case2")
        ),
    ]


def test_a_flagged_best_is_marked(measured: Make) -> None:
    *_, row, note = best_lines([measured(1, validity=("host_gaps",))], emulated=False)
    assert row.count("k01 at 450W !") == 3
    assert note == "  ! flagged (see validity)"


def test_without_figures_there_is_no_best(failed: Make) -> None:
    assert list(best_lines([failed(1)], emulated=False)) == []


def noisy(measured: Make, rank: int, cap: int, edp: float, half_width: float = 0.01) -> Measurement:
    """A measurement whose time, energy and EDP have intervals of this relative half width."""
    time_ms, energy_mj = edp**0.5 / 10, edp**0.5 * 10
    made: Measurement = measured(
        rank,
        cap,
        time_ms=time_ms,
        energy_mj=energy_mj,
        trials=(Window(1.0, 200.0, 2000, 1.0),) * 7,
        **{
            f"{name}_ci95": Interval(value * (1 - half_width), value * (1 + half_width))
            for name, value in (
                ("time_ms", time_ms),
                ("energy_mj", energy_mj),
                ("edp_mj_ms", time_ms * energy_mj),
            )
        },
    )
    return made


def test_a_best_within_noise_names_its_rivals_and_caps(measured: Make) -> None:
    rows = [noisy(measured, 1, cap, edp) for cap, edp in ((1, 2.0), (3, 1.0), (5, 1.001))]
    rows += [noisy(measured, 3, cap, edp) for cap, edp in ((1, 2.1), (3, 1.2), (5, 1.002))]
    *_, row = best_lines(rows, emulated=False)
    cells = re.split(" {2,}", row.strip())
    assert cells[3] == "1.00 mJ·ms ±1 % k01, k03 within noise at any cap from 450 W"
    assert cells[4:] == ["any cap from 450 W", "1 to 3 of 6"]


def test_what_may_be_on_the_front_is_marked_apart(measured: Make) -> None:
    rows = [noisy(measured, rank, 3, edp) for rank, edp in ((1, 1.0), (2, 1.001), (3, 2.0))]
    _, _, *lines = summary(rows, emulated=False)
    assert [line[:5] for line in lines] == ["* k01", "~ k02", "  k03"]
