"""Changes relative to what unchanged kernels have in common."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gate_shift_simulation import drawn, multiplied
from gate_simulation import Session, drawn_measurement
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.gate import (
    Comparison,
    GateSettings,
    Judgement,
    Verdict,
    compare,
    json_document,
    markdown,
    terminal,
)
from pytest_gpuenergy.record import Measurement, Metric, RunInfo
from pytest_gpuenergy.report import Report, load_report, write_json

RunMaker = Callable[..., RunInfo]
RESULTS = Path(__file__).parent.parent.parent / "bench/results/nvidia-h200-2026-11-22"
EDP_1 = GateSettings.parse(["edp:1%"])
STEADY = Session(0.0, 0.0)


def kernels(seed: int, unchanged: int = 8, edp: float = 1.0) -> list[Measurement]:
    """A kernel ``new`` whose text differs in every run, before kernels whose text does not."""
    measure = drawn_measurement(np.random.default_rng(seed))
    labels = ["new", *(f"k{number:02d}" for number in range(1, unchanged + 1))]
    texts = [f"text {seed}", *labels[1:]]
    made = [measure(label, STEADY, edp if label == "new" else 1.0) for label in labels]
    return [
        replace(one, kernel=replace(one.kernel, digest=text))
        for one, text in zip(made, texts, strict=True)
    ]


def times(rows: list[Measurement], edp: float) -> list[Measurement]:
    return [multiplied(row, edp) for row in rows]


@pytest.fixture
def compared(run_info: RunMaker) -> Callable[..., Comparison]:
    """Compare two lists of measurements, by default of two boards."""

    def make(
        base: list[Measurement],
        new: list[Measurement],
        limits: GateSettings = EDP_1,
        board: str = "GPU-2",
        **changes: object,
    ) -> Comparison:
        runs = run_info(run_id="base"), run_info(run_id="new", gpu_uuid=board, **changes)
        return compare(Report(runs[0], tuple(base)), Report(runs[1], tuple(new)), limits)

    return make


def of(comparison: Comparison, label: str) -> Judgement:
    (found,) = (one for one in comparison.judgements if one.identity.kernel == label)
    return found


@pytest.mark.parametrize("board", ["GPU-1", "GPU-2"])
def test_a_regression_is_found_beside_a_shift_in_the_other_direction(compared, board):
    new = times(kernels(2, edp=1.05), 0.95)  # better than before, but all others are more so
    found = compared(kernels(1), new, board=board)
    judgement = of(found, "new")
    assert judgement.verdict is Verdict.WORSE
    assert judgement.change is not None
    assert math.expm1(judgement.change.value) == pytest.approx(0.05, abs=0.01)
    assert {one.verdict for one in found.judgements if one.unchanged} <= {
        Verdict.SAME,
        Verdict.AMBIGUOUS,
    }


def test_a_shift_of_all_is_no_regression_of_a_changed_kernel(compared):
    found = compared(kernels(1), times(kernels(2), 1.05), GateSettings.parse(["edp:4%"]))
    assert of(found, "new").verdict is Verdict.SAME
    assert of(found, "new").reasons == ()  # neither is another board a doubt
    assert found.passed


def test_shift_and_scatter_are_printed_in_all_forms(compared):
    found = compared(kernels(1), times(kernels(2), 1.05))
    (shift,) = json.loads(json_document(found))["shifts"]
    assert shift["kernels"] == 8
    assert shift["change"] == pytest.approx(0.05, abs=0.01)
    assert 0.001 < shift["scatter"] < 0.01
    text = "8 unchanged kernels at current, another board (emulated) changed in common by EDP +"
    assert any(text in line and ", scatter 0." in line for line in terminal(found))
    assert text in markdown(found)
    judged = json.loads(json_document(found))["judgements"]
    assert {one["shift"] for one in judged} == {shift["change"]}
    assert [one["unchanged"] for one in judged] == [False, *[True] * 8]


def test_with_one_unchanged_kernel_all_is_as_without(compared):
    base, new = kernels(1, unchanged=1), times(kernels(2, unchanged=1), 1.05)
    found = compared(base, new)
    assert not found.shifts
    assert of(found, "new").reasons  # another board


def test_two_unchanged_kernels_show_what_another_board_does(compared):
    base, new = kernels(1, unchanged=2), times(kernels(2, unchanged=2, edp=1.5), 1.05)
    judgement = of(compared(base, new), "new")
    assert judgement.reasons == ()
    assert judgement.verdict is Verdict.WORSE


def half_widths(comparison: Comparison) -> dict[tuple[str, str], float]:
    return {
        (one.identity.kernel, one.metric): one.change.half_width
        for one in comparison.judgements
        if one.change is not None
    }


@given(
    st.integers(0, 2**32),
    st.integers(0, 14),
    st.floats(0.05, 1.0),
    st.sampled_from([1.0, 0.97, 1.04]),
    st.integers(1, 3),
)
def test_one_more_typical_reference_never_widens_an_interval(seed, unchanged, part, shift, changed):
    """Its change lies one standard deviation from the median, in turn on either side."""
    measure = drawn_measurement(np.random.default_rng(seed))
    steady = measure("x", STEADY, 1.0)
    run = a_run()

    def row(label: str, text: str, edp: float) -> Measurement:
        named = replace(steady, node_id=label, kernel=replace(steady.kernel, label=label))
        return multiplied(replace(named, kernel=replace(named.kernel, digest=text)), edp)

    def found(references: int) -> Comparison:
        labels = [f"k{number}" for number in range(references)]
        signs = [1 if number % 2 else -1 for number in range(references)]
        scatter = [shift * math.exp(part * 0.0054 * math.sqrt(2) * sign) for sign in signs]
        base = [row(f"c{number}", "before", 1.0) for number in range(changed)]
        new = [row(f"c{number}", "after", 1.0) for number in range(changed)]
        base += [row(label, label, 1.0) for label in labels]
        new += [row(label, label, edp) for label, edp in zip(labels, scatter, strict=True)]
        return compare(Report(run, tuple(base)), Report(run, tuple(new)), GateSettings.parse())

    fewer, more = found(unchanged), found(unchanged + 1)
    contradicted = {
        one.shift.metric: one.shift.contradicts for side in (fewer, more) for one in side.shifts
    }
    for place, half_width in half_widths(fewer).items():
        if place[0].startswith("c") and not contradicted.get(Metric(place[1])):
            assert half_widths(more)[place] <= half_width * (1 + 1e-9)


@pytest.mark.thorough
def test_more_references_at_five_caps_find_more():
    found = {
        count: [
            *drawn(
                np.random.default_rng(3),
                runs=12,
                kernels=1 + count,
                scatters=[0.003] * 5,
                edp=1.02,
                boards=1,
            )
        ]
        for count in (2, 6, 12)
    }
    widths = [np.mean([one.reach for one in outcomes]) for outcomes in found.values()]
    assert widths == sorted(widths, reverse=True)
    assert np.mean([one.found for one in found[12]]) > np.mean([one.found for one in found[2]])


def test_few_kernels_at_each_of_many_caps_show_the_scatter_together(compared):
    def at(cap: str, rows: list[Measurement]) -> list[Measurement]:
        return [replace(row, cap=cap, node_id=f"{row.node_id}-{cap}") for row in rows]

    def width(caps: int) -> float:
        base, new = [], []
        for cap in range(caps):
            base += at(f"{cap}W", kernels(2 * cap, unchanged=4))
            new += at(f"{cap}W", kernels(2 * cap + 1, unchanged=4))
        found = compared(base, new).judgements[0].change
        assert found is not None
        return found.half_width

    assert width(5) < 0.8 * width(1)


@pytest.mark.parametrize(
    "change",
    [
        {"validity": ("host_gaps",)},
        {"enforced_power_limit_w": 500.0},
        {"locked_sm_clock_max_mhz": 1500},
        {"energy_source": "instant power"},
        {"time_ms_ci95": None},
        {"cap": "300W"},
    ],
)
def test_a_kernel_in_doubt_is_not_taken_for_unchanged(compared, change):
    base, new = kernels(1, unchanged=2), kernels(2, unchanged=2)
    new[-1] = replace(new[-1], **change)
    assert not compared(base, new).shifts


def test_each_cap_has_a_shift_of_its_own(compared):
    def at(cap: str, rows: list[Measurement]) -> list[Measurement]:
        return [replace(row, cap=cap, node_id=f"{row.node_id}-{cap}") for row in rows]

    base = [*at("200W", kernels(1)), *at("300W", kernels(2))]
    new = [*at("200W", times(kernels(3), 1.05)), *at("300W", kernels(4))]
    found = {one.shift.place.cap: one.shift.change.value for one in compared(base, new).shifts}
    assert found == {
        "200W": pytest.approx(0.05, abs=0.01),
        "300W": pytest.approx(0.0, abs=0.01),
    }


def test_what_all_unchanged_kernels_lose_is_told_and_fails(compared):
    limits = GateSettings.parse(["time:5%"])
    found = compared(kernels(1), times(kernels(2), 1.2), limits, board="GPU-1")
    assert {one.verdict for one in found.judgements} == {Verdict.SAME}
    assert not found.passed
    (line,) = [line for line in terminal(found) if "did the driver" in line]
    assert "more than is usual between sessions on one board (±0.6 %)" in line
    assert line.endswith(
        "beyond the limit of 5 %: WORSE (did the driver, the compiler or the harness change?)"
    )
    lenient = GateSettings(limits.limits)
    assert compared(kernels(1), times(kernels(2), 1.2), lenient, board="GPU-1").passed


def test_energy_between_boards_shifts_by_percents_without_a_word(compared):
    limits = GateSettings.parse(["energy:5%"])
    found = compared(kernels(1), times(kernels(2), 0.9), limits)  # half of it energy
    assert found.passed
    assert not any("usual" in line for line in terminal(found))


def test_an_unchanged_kernel_that_falls_behind_the_others_is_worse(compared):
    new = kernels(2, unchanged=10)
    new[3] = multiplied(new[3], 1.2)
    found = compared(kernels(1, unchanged=10), new)
    assert of(found, "k03").verdict is Verdict.WORSE
    (judged,) = found.shifts
    assert abs(judged.shift.change.value) < 0.01
    assert judged.shift.scatter < 0.01


@pytest.mark.parametrize(
    ("board", "edp", "verdict"),
    [
        ("GPU-1", 1.1, Verdict.WORSE),
        ("GPU-2", 1.1, Verdict.AMBIGUOUS),
        ("GPU-1", 0.9, Verdict.BETTER),
        ("GPU-2", 0.9, Verdict.SAME),
    ],
)
def test_what_another_board_does_to_a_kernel_of_another_kind_is_no_verdict(
    compared, board, edp, verdict
):
    """Scaling 64 MiB took 8 to 10 % more energy on two of four H200s, beside convolutions."""
    new = kernels(2, unchanged=8)
    new[3] = multiplied(new[3], edp)
    found = compared(kernels(1, unchanged=8), new, board=board)
    assert of(found, "k03").verdict is verdict


def test_kernels_that_truly_changed_do_not_hide_behind_the_scatter_they_cause(compared):
    new = kernels(2, unchanged=12)
    new[1:6] = times(new[1:6], 1.2)  # as a new compiler may do
    found = compared(kernels(1, unchanged=12), new)
    worse = {one.identity.kernel for one in found.judgements if one.verdict is Verdict.WORSE}
    assert worse == {"k01", "k02", "k03", "k04", "k05"}
    assert any("without 5 that lie apart" in line for line in terminal(found))


def test_a_scatter_that_sessions_do_not_explain_is_told(compared):
    new = kernels(2, unchanged=12)
    new[1:] = [multiplied(row, 1 + place / 60) for place, row in enumerate(new[1:])]
    found = compared(kernels(1, unchanged=12), new, board="GPU-1")
    assert any("with a scatter of more than 1.5 %" in line for line in terminal(found))
    assert of(found, "k12").verdict is Verdict.WORSE


@given(st.integers(0, 2**32), st.floats(0.7, 1.4), st.randoms(use_true_random=False))
def test_relative_changes_depend_neither_on_the_shift_nor_on_the_order(seed, factor, random):
    run = a_run()
    base, new = kernels(seed), kernels(seed + 1)

    def changes(rows: list[Measurement]) -> dict[str, tuple[float, float]]:
        other = replace(run, gpu_uuid="GPU-2")
        found = compare(Report(run, tuple(base)), Report(other, tuple(rows)), EDP_1)
        return {
            one.identity.kernel: (one.change.low, one.change.high)
            for one in found.judgements
            if one.change is not None
        }

    plain, shifted = changes(new), changes(times(random.sample(new, len(new)), factor))
    assert set(plain) == set(shifted)
    for label, ends in plain.items():
        assert shifted[label] == pytest.approx(ends, abs=1e-9)


def test_boards_are_compared_without_being_allowed(capsys, tmp_path):
    base, new = RESULTS / "other-board.json", RESULTS / "report.json"
    out = tmp_path / "gate.json"
    main(["compare", str(base), str(new), "--fail", "edp:5%", "--json", str(out), "--md", "-"])
    document = json.loads(out.read_text(encoding="utf-8"))
    (shift,) = document["shifts"]
    assert shift["change"] == pytest.approx(-0.043, abs=0.003)
    assert 0.005 < shift["scatter"] < 0.008
    assert not any("board" in reason for one in document["judgements"] for reason in one["reasons"])
    clean = [one for one in document["judgements"] if not one["reasons"]]
    assert len(clean) == 26
    assert {one["verdict"] for one in clean} == {"SAME"}
    assert "another board changed in common by EDP -4.3 %" in capsys.readouterr().out


def test_a_real_regression_is_found_on_another_board(capsys, tmp_path):
    new = load_report(RESULTS / "report.json")
    label = "case3-k09"
    rows = [
        multiplied(replace(row, kernel=replace(row.kernel, digest="another")), 1.04)
        if f"{row.workload.name}-{row.kernel.label}" == label
        else row
        for row in new.measurements
    ]
    changed = tmp_path / "changed.json"
    write_json(replace(new, measurements=tuple(rows)), changed)
    arguments = ["compare", str(RESULTS / "other-board.json"), str(changed), "--fail", "edp:0%"]
    assert main(arguments) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.endswith("WORSE")]
    assert [line.split()[0] for line in failed] == [f"{label}-current"]
