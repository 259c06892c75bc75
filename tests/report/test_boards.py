"""The gains of boards, and what is calibrated by them."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from functools import partial
from statistics import fmean

import pytest
from board_reports import board_measurement, report_on, run_of, simulated, station
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval
from pytest_gpuenergy.report import (
    Boards,
    Report,
    board_lines,
    calibrated_report,
    load_report,
    markdown,
    merge,
    page_data,
    tidy_csv,
    write_json,
)

GAINS = st.dictionaries(
    st.sampled_from([f"GPU-{number}" for number in range(8)]), st.floats(0.9, 1.1), min_size=2
)
RUNS = 600


def energies(report: Report) -> dict[str, float]:
    """The energy gain of each board that has one."""
    return {
        gain.gpu_uuid: gain.energy.value for gain in Boards(report).gains if gain.energy is not None
    }


@given(GAINS)
def test_gains_are_ratios_to_the_geometric_mean_of_the_boards(gains):
    mean = math.exp(fmean(map(math.log, gains.values())))
    found = energies(report_on(gains))
    assert found == pytest.approx({uuid: gain / mean for uuid, gain in gains.items()})
    assert math.prod(found.values()) == pytest.approx(1)


@given(GAINS, st.floats(1e-3, 1e3))
def test_gains_do_not_depend_on_what_the_kernels_take(gains, factor):
    report = report_on(gains)
    longer = tuple(
        board_measurement(
            m.gpu_uuid or "", m.kernel.label, energy_mj=(m.energy_mj or 0) * factor, error=0.001
        )
        if m.kernel.label == "scale"
        else m
        for m in report.board_checks
    )
    assert energies(replace(report, board_checks=longer)) == pytest.approx(energies(report))


MORE = partial(pytest.param, marks=[pytest.mark.slow, pytest.mark.thorough])


@pytest.mark.parametrize(("boards", "kernel_sd"), [(2, 0.0066), MORE(2, 0.002), MORE(8, 0.0066)])
def test_an_injected_gain_lies_within_its_interval(boards, kernel_sd):
    gains = {f"GPU-{number}": 1.04 if number == 0 else 1.0 for number in range(boards)}
    truth = 1.04 ** (1 - 1 / boards)
    draw, held = random.Random(20), 0
    for _ in range(RUNS):
        (gain, *_) = Boards(simulated(gains, draw, kernel_sd=kernel_sd)).gains
        assert gain.energy is not None
        held += gain.energy.low <= truth <= gain.energy.high
    assert held / RUNS >= 0.93


def test_the_gain_of_four_percent_is_told_from_none():
    gains = {"GPU-0": 1.04, "GPU-1": 1.0}
    draw = random.Random(4)
    lows = []
    for _ in range(RUNS):
        gain = Boards(simulated(gains, draw, kernel_sd=0.0066)).gains[0].energy
        assert gain is not None
        lows.append(gain.low)
    assert sum(low > 1 for low in lows) / RUNS > 0.9


def test_intervals_of_calibrated_energies_hold_what_the_mean_board_takes():
    gains = {"GPU-0": 1.04, "GPU-1": 1.0, "GPU-2": 0.98}
    mean = 10 * math.exp(fmean(map(math.log, gains.values())))
    draw, held, count = random.Random(5), 0, 0
    for _ in range(200):
        report = simulated(gains, draw, kernel_sd=0.0066, items=2)
        boards = Boards(report)
        for m in report.measurements:
            ends = boards.calibrated(m).energy_calibrated_mj_ci95
            assert ends is not None
            held += ends.low <= mean <= ends.high
            count += 1
    assert held / count >= 0.93


def test_kernels_whose_gains_disagree_widen_the_intervals():
    def width(odd: float) -> float:
        checks = [
            board_measurement(uuid, kernel, energy_mj=10 * gain, error=0.001)
            for uuid, kernel, gain in [
                ("GPU-0", "rotate", 1.0),
                ("GPU-0", "scale", 1.0),
                ("GPU-1", "rotate", 1.0),
                ("GPU-1", "scale", odd),
            ]
        ]
        gain = Boards(report_on({"GPU-0": 1, "GPU-1": 1}, checks=checks)).gains[0]
        assert gain.energy is not None
        return gain.energy.half_width

    assert width(1.1) > 1.5 * width(1.0)


def test_boards_of_different_models_are_never_compared():
    gains = {"GPU-0": 1.0, "GPU-1": 1.04, "GPU-2": 2.0, "GPU-3": 2.2}
    report = report_on(gains)
    stations = tuple(
        station(uuid, gpu_name="NVIDIA H200" if gain < 2 else "NVIDIA A30")
        for uuid, gain in gains.items()
    )
    found = energies(replace(report, stations=stations))
    assert found["GPU-1"] / found["GPU-0"] == pytest.approx(1.04)
    assert found["GPU-3"] / found["GPU-2"] == pytest.approx(1.1)
    assert found["GPU-0"] * found["GPU-1"] == pytest.approx(1)


@pytest.mark.parametrize(
    "other",
    [
        {"cap": "300W"},
        {"enforced_power_limit_w": 650.0},
        {"cache": "cold"},
        {"sm_clock_mhz": 1500.0},
    ],
)
def test_boards_are_compared_under_the_same_conditions_only(other):
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04})
    checks = tuple(replace(m, **other) if m.gpu_uuid == "GPU-1" else m for m in report.board_checks)
    assert Boards(replace(report, board_checks=checks)).gains == ()


def test_a_board_that_has_not_measured_all_kernels_is_left_out_and_says_why():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.02, "GPU-2": 1.3})
    checks = tuple(
        m.flagged("hw_power_brake") if (m.gpu_uuid, m.kernel.label) == ("GPU-2", "scale") else m
        for m in report.board_checks
    )
    report = replace(report, board_checks=checks)
    gains = Boards(report).gains
    assert [gain.left_out for gain in gains] == [None, None, "scale: hw_power_brake"]
    assert energies(report) == pytest.approx(energies(report_on({"GPU-0": 1.0, "GPU-1": 1.02})))
    (*_, line) = board_lines(report)
    assert line == "1 boards were not compared, such as GPU-2 at 700W: scale: hw_power_brake"


def test_the_last_good_measurement_of_a_kernel_counts():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04})
    odd = board_measurement("GPU-1", "scale", energy_mj=99.0)
    again = (odd, *report.board_checks, odd.flagged("drift"))
    assert energies(replace(report, board_checks=again)) == pytest.approx(energies(report))


def test_one_board_alone_has_no_gain():
    report = report_on({"GPU-0": 1.0})
    assert Boards(report).gains == ()
    assert [*board_lines(report)] == []
    assert "boards, relative" not in markdown(report)


def test_the_spread_is_told_where_it_is_widest():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.031})
    lines = [*board_lines(report)]
    assert lines[0] == (
        "boards (emulated): 2 of NVIDIA H200, spread 3.1 % in energy, 0.0 % in time at 700W"
    )
    assert "GPU-0 -1.5 [" in lines[1]


def test_runs_on_one_board_each_are_calibrated_once_they_are_merged():
    whole = report_on({"GPU-0": 1.0, "GPU-1": 1.04})
    runs = [
        Report(
            run_of([uuid], run_id=uuid),
            (),
            stations=(station(uuid),),
            board_checks=tuple(m for m in whole.board_checks if m.gpu_uuid == uuid),
        )
        for uuid in ("GPU-0", "GPU-1")
    ]
    assert energies(merge(runs)) == pytest.approx(energies(whole))


def items() -> list[object]:
    return [
        board_measurement(uuid, "k", energy_mj=10 * gain, error=0.001, node_id=f"item-{uuid}")
        for uuid, gain in [("GPU-0", 1.0), ("GPU-1", 1.04), ("GPU-9", 1.5)]
    ]


def test_raw_figures_stay_beside_calibrated_ones_in_the_tidy_table():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04}, *items())  # type: ignore[arg-type]
    rows = list(csv.DictReader(io.StringIO(tidy_csv(report))))
    assert [float(row["energy_mj"]) for row in rows] == pytest.approx([10, 10.4, 15])
    first, second, third = (row["energy_calibrated_mj"] for row in rows)
    assert float(first) == pytest.approx(float(second))
    assert float(first) == pytest.approx(10 * math.sqrt(1.04))
    assert third == ""
    raw = float(rows[0]["energy_mj_ci95_high"]) / float(rows[0]["energy_mj"])
    assert float(rows[0]["energy_calibrated_mj_ci95_high"]) / float(first) > raw


def test_an_extreme_interval_stays_finite():
    odd = board_measurement("GPU-1", "k", node_id="odd")
    odd = replace(odd, energy_mj_ci95=Interval(0.0, 1e300))
    found = Boards(report_on({"GPU-0": 1.0, "GPU-1": 1.04}, odd)).calibrated(odd)
    assert found.energy_calibrated_mj_ci95 is not None
    assert math.isfinite(found.energy_calibrated_mj_ci95.high)


def test_a_calibrated_report_says_what_could_not_be_calibrated():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04}, *items())  # type: ignore[arg-type]
    found = calibrated_report(report)
    assert [m.validity for m in found.measurements] == [(), (), ("uncalibrated",)]
    assert found.measurements[2].energy_mj == 15
    text = markdown(found, calibrated=True)
    assert "are calibrated: divided by the gain of the board" in text
    assert "1 of 3 figures are raw and marked uncalibrated" in text
    assert "boards, relative to the mean of their model" in text


def test_the_json_report_has_gains_and_calibrated_figures_and_reads_raw_ones(tmp_path):
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04}, *items())  # type: ignore[arg-type]
    write_json(report, tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    assert [gain["gpu_uuid"] for gain in document["boards"]] == ["GPU-0", "GPU-1"]
    assert [one["node_id"] for one in document["calibrated"]] == ["item-GPU-0", "item-GPU-1"]
    assert load_report(tmp_path / "r.json") == report


def test_the_page_offers_calibrated_figures_only_where_there_are_gains():
    report = report_on({"GPU-0": 1.0, "GPU-1": 1.04}, *items())  # type: ignore[arg-type]
    data = page_data(report)
    assert data["figures"]["energy_calibrated_mj"]["title"] == "energy, calibrated (mJ)"
    assert data["rows"][2]["energy_calibrated_mj"] is None
    assert data["boards"][1]["energy"] == pytest.approx(100 * (math.sqrt(1.04) - 1))
    alone = page_data(replace(report, board_checks=()))
    assert "energy_calibrated_mj" not in alone["figures"]
    assert "energy_calibrated_mj" not in alone["rows"][0]
