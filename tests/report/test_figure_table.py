"""Tables of kernels: their width, and the order of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.report import (
    SORTS,
    Column,
    KernelRow,
    arranged,
    best_lines,
    check_sort,
    figure_table,
    summary,
)
from pytest_gpuenergy.support import InputError

Make = Callable[..., Any]
COLUMNS = (Column("time", 9, 1), Column("energy", 9, 0), Column("GFLOP/s/W", 9, 2))
CELLS = st.tuples(*[st.text("1.µms ", max_size=9)] * 3)
ROWS = st.builds(
    KernelRow, st.sampled_from("* "), st.text("k01-", max_size=50), CELLS, st.text("ab ,")
)
FAILED = st.builds(
    KernelRow, st.just(" "), st.text("k01-", max_size=50), note=st.text("ab ", min_size=1)
)


@given(st.lists(ROWS | FAILED, min_size=1, max_size=5), st.integers(30, 90))
def test_no_line_is_wider_than_the_terminal(rows: list[KernelRow], width: int) -> None:
    assert all(len(line) <= width for line in figure_table(COLUMNS, rows, width))


def test_what_there_is_no_room_for_is_said() -> None:
    rows = [KernelRow("*", "k01", ("1 µs", "1 mJ", "0.1"))]
    assert list(figure_table(COLUMNS, rows, 22)) == [
        *("  kernel time energy", "* k01    1 µs   1 mJ"),
        *("  no room for", "    GFLOP/s/W"),
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_summary_has_the_width_of_the_terminal(width: int, measured: Make, failed: Make) -> None:
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
def test_the_best_is_first_and_what_failed_last(
    by: str, order: list[str], measured: Make, failed: Make
) -> None:
    items = [
        failed(4),
        measured(3, time_ms=2.0, energy_mj=50.0),
        measured(1, time_ms=3.0, energy_mj=100.0),
        measured(2, time_ms=1.0, energy_mj=200.0),
    ]
    assert [m.kernel.label for m in arranged(items, by)] == order


@pytest.mark.parametrize("text", ["Time", " EDP ", "gflops-per-w", "GFLOPS/W", "gflop/s"])
def test_a_key_is_understood_as_people_write_it(text: str) -> None:
    assert check_sort(text, "--sort") in SORTS


@given(st.text().filter(lambda text: not any(key in text.lower() for key in ("flop", *SORTS))))
def test_any_other_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not understood: give rank, name, time"):
        check_sort(text, "--sort")
