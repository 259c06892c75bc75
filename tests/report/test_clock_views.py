"""Setpoints with clocks in every view: their order, ties, and what clocks save over caps."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.record import (
    METRICS,
    Measurement,
    Metric,
    WorkloadInfo,
    clock_label,
    limit_label,
    setpoint_order,
    setpoints,
)
from pytest_gpuenergy.report import (
    best_lines,
    best_of_each,
    idle_caps,
    json_document,
    markdown,
    summary,
    tidy_csv,
    write_classic_csv,
)

Make = Callable[..., Any]
CAPS, CLOCKS = (None, 3, 5), (None, 990, 1500)
IN_ORDER = (
    *("450W-990MHz", "450W-1500MHz", "450W"),
    *("700W-990MHz", "700W-1500MHz", "700W"),
    *("990MHz", "1500MHz", "current"),
)


@pytest.fixture
def plane(at_clock: Make) -> list[Measurement]:
    """A kernel at three power limits and three clocks, in no order."""
    rows = [at_clock(1, cap, clock) for cap in CAPS for clock in CLOCKS]
    random.Random(1).shuffle(rows)
    return rows


def best_of(rows: list[Measurement]) -> Any:
    """The best of rows of one workload."""
    (found,) = best_of_each(rows)
    return found


def test_setpoints_are_ordered_by_limit_and_then_by_clock(plane):
    assert setpoints(plane) == IN_ORDER
    titles = [line for line in summary(plane, emulated=False) if line.startswith("case1 at ")]
    assert [line.split()[2].rstrip(",") for line in titles] == list(IN_ORDER)


def test_a_label_consists_of_a_limit_and_a_clock(plane):
    parts = {m.cap: (limit_label(m), clock_label(m)) for m in plane}
    assert parts["450W-990MHz"] == ("450W", "990MHz")
    assert parts["1500MHz"] == ("current", "1500MHz")
    assert parts["700W"] == ("700W", "unlocked")
    assert parts["current"] == ("current", "unlocked")


@given(st.permutations(IN_ORDER))
def test_the_order_of_setpoints_is_not_that_of_the_run(labels):
    def row(label: str) -> Measurement:
        watts, _, clock = label.rpartition("-") if "MHz" in label else (label, "", "")
        limit_w = float(watts[:-1]) if watts.endswith("W") else None
        return Measurement(
            node_id=label,
            workload=WorkloadInfo("case1", {}, 1, 1),
            kernel=None,  # type: ignore[arg-type]
            outcome="correct",
            cap=label,
            power_limit_w=limit_w,
            enforced_power_limit_w=limit_w or 700.0,
            sm_clock_mhz=int(clock[:-3]) if clock else None,
        )

    assert setpoints(map(row, labels)) == IN_ORDER
    assert [m.cap for m in sorted(map(row, labels), key=setpoint_order)] == list(IN_ORDER)


@pytest.mark.parametrize(
    ("tied", "words"),
    [
        ([(3, 990)], "450W-990MHz"),
        ([(3, 990), (5, 990)], "any cap, 990MHz"),
        ([(3, 990), (3, 1500)], "450W, any clock up to 1500 MHz"),
        ([(5, 1500), (5, None)], "700W, any clock from 1500 MHz"),
        ([(3, 990), (3, 1500), (3, None)], "450W, any clock"),
        ([(cap, clock) for cap in (3, 5) for clock in CLOCKS], "any setpoint"),
        ([(5, 1500), (3, None)], "450W, 700W-1500MHz"),
        (
            [(3, 990), (3, 1500), (3, None), (5, 990), (5, 1500)],
            "450W-990MHz, 450W-1500MHz, 450W and 2 more",
        ),
    ],
)
def test_setpoints_within_noise_are_a_rectangle_where_they_are_one(at_clock, tied, words):
    places = [(cap, clock) for cap in (3, 5) for clock in CLOCKS]
    rows = [at_clock(1, *place, energy_mj=100.0 if place in tied else 200.0) for place in places]
    assert best_of(rows).caps == words


def test_clocks_alone_within_noise_are_a_range(at_clock):
    rows = [at_clock(1, None, clock) for clock in (1500, 1800)]
    rows.append(at_clock(1, None, 990, energy_mj=200.0))
    assert best_of(rows).caps == "any clock from 1500 MHz"


def test_the_classic_tree_has_columns_by_cap_and_then_by_clock(plane, report, tmp_path):
    rows = [replace(m, energy_mj=100.0 + place) for place, m in enumerate(plane)]
    write_classic_csv(report(*rows), tmp_path)
    folders = {path.parent.name for path in tmp_path.glob("case1/*/results.csv")}
    assert {"powercap3-990MHz", "powercap5", "powercap_1500MHz", "powercap_current"} < folders
    _, line = (tmp_path / "case1/all.csv").read_text().splitlines()
    energies = [float(cell) for cell in line.split(",")[1:][1::3] if cell]
    by_label = {m.cap: m.energy_mj for m in rows}
    outside = [label for label in IN_ORDER if label not in ("450W", "700W")]
    assert energies == [by_label[label] for label in ("450W", "700W", *outside)]


def test_the_tidy_table_has_a_column_for_each_setting(frugal_clock, report):
    table = list(csv.DictReader(io.StringIO(tidy_csv(report(*frugal_clock)))))
    settings = ("cap", "power_limit_w", "sm_clock_mhz", "locked_sm_clock_min_mhz")
    assert [table[0][name] for name in settings] == ["450W", "450.0", "", ""]
    assert [table[3][name] for name in settings] == ["700W-1500MHz", "700.0", "1500", "1500"]
    assert (table[3]["effective_sm_clock_mhz"], table[3]["best_of"]) == ("1500.0", "energy edp")


def test_a_cap_that_holds_back_without_a_lock_is_not_idle(at_clock):
    rows = [
        at_clock(1, 3, 990, cap_binding=False),
        at_clock(1, 3, cap_binding=True),
        at_clock(1, 5, 990, cap_binding=False),
        at_clock(1, 5, cap_binding=False),
    ]
    assert idle_caps(rows) == ["700W"]


def test_of_many_setpoints_only_those_among_the_best_have_tables(at_clock):
    rows = [
        at_clock(rank, cap, clock, time_ms=0.1 * rank + 100 / (clock or 1980), energy_mj=50.0 + cap)
        for rank in range(1, 7)
        for cap in (3, 4)
        for clock in (990, 1500, None)
    ]
    lines = list(summary(rows, emulated=False))
    assert [line.split(",")[0] for line in lines if line.startswith("case1 at")] == [
        *("case1 at 450W-990MHz", "case1 at 450W-1500MHz", "case1 at 450W"),
        "case1 at 575W",
    ]
    assert lines[-1] == ("2 tables of setpoints that are not among the best are only in the report")


@pytest.fixture
def frugal_clock(at_clock: Make) -> list[Measurement]:
    """Two kernels at two caps, and at a clock that saves a tenth of the energy for 1 % of time."""
    return [
        at_clock(1, 3, time_ms=0.55, energy_mj=90.0),
        at_clock(1, 5, time_ms=0.50, energy_mj=100.0),
        at_clock(2, 5, time_ms=0.60, energy_mj=110.0),
        at_clock(1, 5, 1500, time_ms=0.505, energy_mj=81.0),
        at_clock(2, 5, 1500, time_ms=0.62, energy_mj=95.0),
    ]


def test_what_the_best_clock_saves_has_an_interval(frugal_clock):
    saving = best_of(frugal_clock).savings[Metric.ENERGY]
    assert saving.change == pytest.approx(-0.1)
    assert saving.low is not None
    assert saving.high is not None
    assert -0.11 < saving.low < -0.102 < -0.098 < saving.high < -0.09
    assert (saving.clock_kernel, saving.clock_cap, saving.cap_cap) == (
        "k01",
        "700W-1500MHz",
        "450W",
    )


def test_without_a_lock_or_without_unlocked_clocks_there_is_no_saving(at_clock):
    assert best_of([at_clock(1, 3), at_clock(1, 5)]).savings == {}
    assert best_of([at_clock(1, 3, 990), at_clock(1, 5, 990)]).savings == {}


def test_figures_without_intervals_save_without_an_interval(measured):
    locked = replace(measured(1, 3, energy_mj=80.0), cap="450W-990MHz", sm_clock_mhz=990)
    saving = best_of([measured(1, 3), locked]).savings[Metric.ENERGY]
    assert (saving.change, saving.low, saving.high) == (pytest.approx(-0.2), None, None)


@pytest.mark.slow
def test_the_interval_of_the_saving_holds_although_the_best_are_chosen(at_clock):
    rng = np.random.default_rng(1)
    sd, runs, held = 0.01, 300, 0
    true = [100.0] * 6 + [90.0] * 6
    for _ in range(runs):
        rows = [
            at_clock(
                rank,
                energy_mj=float(energy * np.exp(sd * rng.standard_normal())),
                clock=990 if energy < 100 else None,
                half=1.96 * sd,
                trials=at_clock().trials * 30,
            )
            for rank, energy in enumerate(true)
        ]
        saving = best_of(rows).savings[Metric.ENERGY]
        held += saving.low <= -0.1 <= saving.high
    assert held / runs >= 0.95


def test_savings_are_in_the_terminal_the_markdown_and_the_json(frugal_clock, report):
    words = "-10.0 % (-10.3 % to -9.7 %): k01 at 700W-1500MHz, not k01 at 450W"
    lines = list(best_lines(frugal_clock, emulated=True))
    assert "best setpoint" in lines[1]
    assert lines[3] == "best locked clock over best cap without one (emulated)"
    assert words in lines[5]
    text = markdown(report(*frugal_clock))
    assert "| best locked clock over best cap without one | time | energy | EDP |" in text
    assert words in text
    (best,) = json.loads(json_document(report(*frugal_clock)))["best"]
    assert [one["metric"] for one in best["clock_savings"]] == list(METRICS)
    assert best["clock_savings"][1]["change"] == pytest.approx(-0.1)
    assert best["energy"]["caps"] == ["700W-1500MHz"]


def test_a_saving_with_a_flag_is_marked(frugal_clock):
    rows = [replace(m, validity=("host_gaps",)) if m.sm_clock_mhz else m for m in frugal_clock]
    assert "not k01 at 450W !" in "\n".join(best_lines(rows, emulated=False))
