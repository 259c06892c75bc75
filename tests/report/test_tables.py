"""Tables and figures for people to read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, Measurement, Window
from pytest_gpuenergy.report import (
    best_lines,
    best_of_each,
    check_sort,
    duration_lines,
    energy,
    figures,
    idle_caps,
    markdown,
    markdown_text,
    summary,
    time,
    words,
)
from pytest_gpuenergy.support import InputError

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
def test_times_have_three_digits_and_a_unit(time_ms, text):
    assert time(time_ms) == text


@pytest.mark.parametrize(
    ("energy_mj", "text"),
    [(0.05, "50.0 µJ"), (0.1, "0.100 mJ"), (7.6249, "7.62 mJ"), (1234.5, "1.23 J")],
)
def test_energies_have_three_digits_and_a_unit(energy_mj, text):
    assert energy(energy_mj) == text


def test_words_of_a_measurement(measured):
    item = measured(time_ms=0.0193, energy_mj=7.62)
    assert words(item) == "19.3 µs 7.62 mJ 0.147 mJ·ms"


def test_words_of_a_failed_kernel(failed):
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
@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=12))
def test_the_front_is_what_nothing_dominates(measured, figures):
    rows = [
        measured(k, time_ms=time_ms, energy_mj=energy_mj)
        for k, (time_ms, energy_mj) in enumerate(figures)
    ]
    (best,) = best_of_each(rows)
    assert {row.kernel.label for row in best.front} == {
        row.kernel.label for row in rows if not dominated(row, rows)
    }


def test_the_front_runs_from_fast_to_frugal(measured):
    rows = [measured(k, time_ms=t, energy_mj=4.0 - t) for k, t in enumerate((3.0, 1.0, 2.0))]
    (best,) = best_of_each(rows)
    assert [row.time_ms for row in best.front] == [1.0, 2.0, 3.0]


def test_groups_have_the_lowest_cap_and_the_best_rank_first(measured):
    items = [measured(1, 5, workload="case2"), measured(2, 5), measured(1, 1), measured(1, 5)]
    lines = [line.split()[:3] for line in summary(items, emulated=False)]
    titles = [line for line in lines if "at" in line]
    assert titles == [["case2", "at", "700W,"], ["case1", "at", "200W,"], ["case1", "at", "700W,"]]
    assert [line[1] for line in lines[-2:]] == ["k01", "k02"]


def test_the_summary_marks_the_front_and_shows_failures(measured, failed):
    slow = measured(2, time_ms=1.0, energy_mj=200.0, validity=("host_gaps",))
    title, _, *rows = summary([measured(1), slow, failed(3)], emulated=True)
    assert title == "case1 at 450W (emulated), 1000 FLOP/byte"
    assert rows[0].startswith("* k01 ")
    assert rows[1].startswith("  k02 ")
    assert rows[1].endswith("  host_gaps")
    assert "k03" in rows[2]
    assert "correctness: 1 of 4 elements" in rows[2]


def test_the_summary_of_a_real_gpu_does_not_say_emulated(measured):
    assert "emulated" not in "\n".join(summary([measured(1)], emulated=False))


def test_a_cap_that_held_nothing_back_is_told(measured):
    rows = [measured(1, cap_binding=False), measured(2, cap_binding=True)]
    *_, last = summary(rows, emulated=True)
    assert last == "  the cap had no effect on 1 of these 2 kernels"


def test_without_a_cap_nothing_is_said_of_it(measured):
    text = "\n".join(summary([measured(1, None, cap_binding=False)], emulated=True))
    assert "no effect" not in text


def test_of_many_kernels_only_the_front_is_listed(measured):
    rows = [measured(k, time_ms=1.0 + k, energy_mj=1.0 + k) for k in range(31)]
    lines = list(summary(rows, emulated=True))
    assert len(lines) == 4
    assert lines[-1] == "  30 kernels off the Pareto front are only in the report"


def test_a_cap_that_held_no_kernel_back_is_idle(measured):
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


def test_the_best_is_sought_over_all_kernels_and_caps(measured, failed):
    fast = measured(1, 5, time_ms=1.0, energy_mj=9.0)
    frugal = measured(2, 1, time_ms=3.0, energy_mj=4.0)
    balanced = measured(3, 3, time_ms=1.5, energy_mj=5.0)
    (best,) = best_of_each([fast, frugal, balanced, failed(4)])
    assert [tied.best for tied in best.ties.values()] == [fast, frugal, balanced]
    assert best.front == [fast, balanced, frugal]


def test_cold_and_hot_caches_are_never_mixed(measured):
    best = best_of_each([measured(1), measured(1, cache="cold")])
    assert [one.workload for one in best] == ["case1", "case1, cold"]


def test_the_best_of_each_workload_is_one_line(measured):
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


def test_a_flagged_best_is_marked(measured):
    *_, row, note = best_lines([measured(1, validity=("host_gaps",))], emulated=False)
    assert row.count("k01 at 450W !") == 3
    assert note == "  ! flagged (see validity)"


def test_without_figures_there_is_no_best(failed):
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


def test_a_best_within_noise_names_its_rivals_and_caps(measured):
    rows = [noisy(measured, 1, cap, edp) for cap, edp in ((1, 2.0), (3, 1.0), (5, 1.001))]
    rows += [noisy(measured, 3, cap, edp) for cap, edp in ((1, 2.1), (3, 1.2), (5, 1.002))]
    *_, row = best_lines(rows, emulated=False)
    cells = re.split(" {2,}", row.strip())
    assert cells[3] == "1.00 mJ·ms ±1 % k01, k03 within noise at any cap from 450 W"
    assert cells[4:] == ["any cap from 450 W", "1 to 3 of 6"]


def test_what_may_be_on_the_front_is_marked_apart(measured):
    rows = [noisy(measured, rank, 3, edp) for rank, edp in ((1, 1.0), (2, 1.001), (3, 2.0))]
    _, _, *lines = summary(rows, emulated=False)
    assert [line[:5] for line in lines] == ["* k01", "~ k02", "  k03"]


@given(st.text() | st.text("\n|`<>&*[]\\"))
def test_markdown_text_has_no_markup(text):
    written = markdown_text(text)
    assert not set(written) & set("|`*[]<>\\\n\r")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (15.0, "15.0"),
        (0.6, "0.600"),
        (118.4, "118"),
        (999.4, "999"),
        (999.6, "1000"),
        (12345.6, "12346"),
        (0.000529, "0.000529"),
        (0.0, "0.00"),
    ],
)
def test_figures_have_three_significant_digits(value, text):
    assert figures(value) == text


@given(st.floats(1e-12, 1e12))
def test_figures_keep_the_value_to_half_a_percent(value):
    assert float(figures(value)) == pytest.approx(value, rel=0.0051)


def test_shares_of_all_items_add_up(measured):
    items = [
        measured(1, wall_s=10.0, phases_s={"verify": 4.0, "measure": 5.0}),
        measured(2, wall_s=10.0, phases_s={"compile": 6.0}),
    ]
    lines = list(duration_lines(items))
    shares = {line.split()[0]: line.split()[-1] for line in lines[1:7]}
    assert lines[0] == "wall time of 2 items: 20 s"
    assert shares == {
        "compile": "30.0%",
        "verify": "20.0%",
        "load": "0.0%",
        "heat": "0.0%",
        "measure": "25.0%",
        "rest": "25.0%",
    }


def test_the_slowest_item_comes_first(measured):
    items = [measured(rank, wall_s=float(rank)) for rank in range(1, 9)]
    after = list(duration_lines(items))[8:]
    assert len(after) == 5
    assert after[0].split()[-1].endswith("[case1-k08-450W]")


def test_an_older_run_without_wall_times_has_nothing_to_tell(measured):
    assert list(duration_lines([measured(1)])) == []


SORTS = ("rank", "name", "time", "energy", "edp", "power", "gflops", "gflops_per_w")
LABELS = st.lists(st.tuples(st.text("k01-", max_size=50), st.booleans()), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LABELS, st.text("ab ", min_size=1), st.integers(30, 90))
def test_no_line_is_wider_than_the_terminal(measured, failed, labels, error, width):
    rows = [
        replace(m, kernel=replace(m.kernel, label=label))
        for label, works in labels
        for m in [measured(1, validity=("host_gaps",)) if works else failed(2, error=error)]
    ]
    assert all(len(line) <= width for line in summary(rows, emulated=True, width=width))


def test_columns_for_which_there_is_no_room_are_named(measured):
    _, *lines = summary([measured(1)], emulated=False, width=30)
    assert lines == [
        *("  kernel   time energy", "* k01    500 µs 100 mJ"),
        *("  no room for EDP mJ·ms, power", "    W, GFLOP/s, % peak, GB/s,", "    GFLOP/s/W"),
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_summary_has_the_width_of_the_terminal(width, measured, failed):
    long = measured(1, workload="w" * 90)
    flags = ("host_gaps", "temperature_drift", "sources_disagree")
    items = [long, measured(2, validity=flags), failed(3)]
    lines = [
        *summary(items, emulated=True, width=width),
        *best_lines(items, emulated=True, width=width),
    ]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(flag in text for flag in flags)
    assert "k02" in text


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("rank", ["k01", "k02", "k03", "k04"]),
        ("name", ["k01", "k02", "k03", "k04"]),
        ("time", ["k02", "k03", "k01", "k04"]),
        ("energy", ["k03", "k01", "k02", "k04"]),
        ("edp", ["k03", "k02", "k01", "k04"]),
        ("power", ["k03", "k01", "k02", "k04"]),
        ("gflops", ["k02", "k03", "k01", "k04"]),
        ("gflops_per_w", ["k03", "k01", "k02", "k04"]),
    ],
)
def test_the_best_is_first_and_what_failed_last(by, order, measured, failed):
    items = [
        failed(4),
        measured(3, time_ms=2.0, energy_mj=50.0),
        measured(1, time_ms=3.0, energy_mj=100.0),
        measured(2, time_ms=1.0, energy_mj=200.0),
    ]
    _, _, *rows = summary(items, emulated=False, sort=by)
    assert [row[2:5] for row in rows] == order


@pytest.mark.parametrize("text", ["Time", " EDP ", "gflops-per-w", "GFLOPS/W", "gflop/s"])
def test_a_key_is_understood_as_people_write_it(text):
    assert check_sort(text, "--sort") in SORTS


@given(st.text().filter(lambda text: not any(key in text.lower() for key in ("flop", *SORTS))))
def test_any_other_key_is_refused(text):
    with pytest.raises(InputError, match="is not understood: give rank, name, time"):
        check_sort(text, "--sort")


def test_markdown_marks_the_best_and_names_failures(report, measured, failed):
    slow = measured(2, time_ms=1.0, energy_mj=200.0, validity=("host_gaps",))
    text = markdown(report(measured(1), slow, failed(3)))
    assert "# NVIDIA H200 (emulated), run 20260102T030405-abcdef" in text
    assert "| **k01** | 500.00 | 200.0 | 100 | 50 | 10.00 |  |" in text
    assert "| k02 | 1000.00 | 200.0 | 200 | 200 | 5.00 | host_gaps |" in text
    assert "correctness: 1 of 4 elements of output is wrong." in text


def test_markdown_of_a_real_gpu_does_not_say_emulated(report, measured):
    assert "emulated" not in markdown(report(measured(1), emulated=False))


def test_every_row_of_a_markdown_table_has_as_many_cells(report, measured, failed):
    text = markdown(report(measured(1), failed(2, error="a | b")))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7, 8}  # the best, the kernels


def test_the_best_of_each_workload_comes_first(report, measured):
    frugal = measured(2, 1, time_ms=1.0, energy_mj=80.0)
    lines = markdown(report(measured(1, 5), frugal)).splitlines()
    row = next(line for line in lines if line.startswith("| case1 |"))
    assert row == (
        "| case1 | 500 µs (k01 at 700W) | 80.0 mJ (k02 at 200W) | 50.0 mJ·ms (k01 at 700W) "
        "| 700W | 2 |"
    )


def test_a_run_without_figures_says_so(report, failed):
    assert "Nothing was measured." in markdown(report(failed()))


def test_names_and_errors_cannot_become_markup(report, measured, failed):
    hostile = "</summary><img src=x onerror=alert(1)>\n\n# [x](javascript:1) | `a` **b**"
    text = markdown(report(measured(1, workload=hostile), failed(2, error=hostile)))
    assert "<img" not in text
    assert "](javascript" not in text
    assert "\n# [" not in text
    assert text.count("</summary>") == text.count("<details>") == 2
