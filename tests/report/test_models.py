"""Runs on several GPU models, and what one run has left on several hosts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, compare
from pytest_gpuenergy.record import AnchorCheck, Interval, KernelInfo, Measurement, Metric, Window
from pytest_gpuenergy.report import (
    Report,
    RunFolder,
    by_model,
    differences,
    durations_s,
    github_action_json,
    json_document,
    markdown,
    merge,
    pairs,
    tidy_csv,
    write_classic_csv,
)
from pytest_gpuenergy.support import ReportError

Make = Callable[..., Any]


@dataclass(frozen=True)
class Mixed:
    """A run of one workload on an H200 and an A30, each with two kernels."""

    report: Report
    large: tuple[Measurement, ...]
    small: tuple[Measurement, ...]


@pytest.fixture
def mixed(run_info: Make, measured: Make) -> Mixed:
    large = tuple(
        measured(rank, gpu_uuid="GPU-1", time_ms=0.5 * rank, energy_mj=100.0 * rank)
        for rank in (1, 2)
    )
    small = tuple(
        measured(rank, gpu_uuid="GPU-2", time_ms=1.0 * rank, energy_mj=90.0 * rank)
        for rank in (3, 4)
    )
    first = run_info()
    stations = (
        first.station,
        run_info(host="other", gpu_name="NVIDIA A30", gpu_uuid="GPU-2").station,
    )
    return Mixed(Report(first, large + small, stations=stations), large, small)


def test_each_model_is_a_report_of_its_own(mixed):
    large, small = by_model(mixed.report)
    assert (large.run.gpu_name, large.measurements) == ("NVIDIA H200", mixed.large)
    assert (small.run.gpu_name, small.run.host) == ("NVIDIA A30", "other")
    assert small.measurements == mixed.small
    assert by_model(large) == [large]


def test_no_best_is_between_models(mixed):
    best = json.loads(json_document(mixed.report))["best"]
    assert [one["time"]["kernels"] for one in best] == [["k01"], ["k03"]]
    assert markdown(mixed.report).count("# NVIDIA ") == 2
    fronts = [line for line in tidy_csv(mixed.report).splitlines() if ",front" in line]
    assert len(fronts) == 2  # k01 and k03


def test_each_row_names_its_model_and_no_table_has_two(mixed, tmp_path):
    rows = csv.DictReader(io.StringIO(tidy_csv(mixed.report)))
    models = {row["kernel_label"]: row["gpu_name"] for row in rows}
    assert models == dict.fromkeys(("k01", "k02"), "NVIDIA H200") | dict.fromkeys(
        ("k03", "k04"), "NVIDIA A30"
    )
    entries = json.loads(github_action_json(mixed.report))
    extras = {one["extra"].partition("\n")[0] for one in entries}
    assert extras == {"NVIDIA H200", "NVIDIA A30"}
    write_classic_csv(mixed.report, tmp_path)
    ranks = {
        path.parts[-3]: [line.partition(",")[0] for line in path.read_text().splitlines()[1:]]
        for path in tmp_path.glob("*/*/all.csv")
    }
    assert ranks == {"NVIDIA_H200": ["1", "2"], "NVIDIA_A30": ["3", "4"]}


def test_the_gate_compares_no_measurement_with_another_model(mixed):
    settings = GateSettings({Metric.EDP: 0.05})
    base = by_model(mixed.report)[0]
    found = compare(base, mixed.report, settings)
    assert {one.node_id for one in found.judgements} == {m.node_id for m in mixed.large}
    moved = tuple(
        Measurement(**{name: getattr(m, name) for name in m.__struct_fields__} | {"gpu_uuid": uuid})
        for m, uuid in zip(mixed.large, ("GPU-1", "GPU-2"), strict=True)
    )
    again = Report(mixed.report.run, moved, stations=mixed.report.stations)
    (why,) = [one.why for one in compare(base, again, settings).missing_in_base]
    assert why == "measured on NVIDIA H200 in the baseline, not on NVIDIA A30"


def test_hosts_of_one_run_merge_even_of_several_models(mixed):
    parts = by_model(mixed.report)
    merged = merge(parts)
    assert merged.measurements == (*mixed.large, *mixed.small)
    assert merged.stations == mixed.report.stations


def test_flags_that_only_one_host_knows_are_kept(run_info, measured):
    plain, flagged = measured(1, started="10:00"), measured(1, started="10:00").flagged("drift")
    check = AnchorCheck("n", "case1", "k01", "450W", "drift", "09:00", "11:00", gpu_uuid="GPU-1")
    here = Report(run_info(started="9"), (plain,))
    there = Report(run_info(started="8"), (flagged,), (check,))
    again = Report(run_info(started="8"), (flagged,), (check,))
    merged = merge([here, there, again])
    assert merged.measurements == (flagged,)
    assert merged.anchors == (check,)


def test_of_an_item_run_on_two_hosts_the_later_measurement_counts(run_info, measured):
    early = Report(run_info(started="9"), (measured(1, started="10:00", energy_mj=50.0),))
    late = Report(run_info(started="8"), (measured(1, started="10:05", energy_mj=60.0),))
    assert merge([early, late]).measurements[0].energy_mj == 60.0


def test_durations_are_read_from_whole_lines(tmp_path, run_info, measured):
    folder = RunFolder.create(tmp_path, run_info())
    one = measured(1, wall_s=2.5)
    folder.append(one)
    folder.append(measured(2))  # not known
    with folder.path_of("measurement").open("ab") as lines:
        lines.write(b'{"node_id": "cut off", "wal')
    assert durations_s(folder) == {one.node_id: 2.5}
    assert durations_s(RunFolder(tmp_path / "none")) == {}


def test_only_figures_of_one_model_are_shown_side_by_side(mixed, run_info):
    first, other = mixed.large
    moved = replace(mixed.report, measurements=(replace(first, gpu_uuid="GPU-2"), other))
    assert {one.before.kernel.label for one in differences(mixed.report, moved)} == {"k02"}
    small = Report(run_info(gpu_name="NVIDIA A30", gpu_uuid="GPU-3"), mixed.large)
    assert list(differences(mixed.report, small)) == []
    assert pairs(small, mixed.report) == []


def test_of_several_models_in_a_baseline_the_same_one_is_shown(mixed):
    first, _ = mixed.large
    both = replace(
        mixed.report, measurements=(first, replace(first, gpu_uuid="GPU-2", time_ms=9.0))
    )
    for model in by_model(both):
        found = next(differences(model, both))
        assert found.values == (model.measurements[0].time_ms,) * 2


def test_each_metric_is_told_then_and_now(report, measured):
    before = measured(energy_mj=80.0, energy_mj_ci95=Interval(79.0, 81.0))
    found = {str(one.metric): one for one in differences(report(measured()), report(before))}
    assert list(found) == ["time", "energy", "edp"]
    assert found["time"].change == 0.0
    assert found["energy"].values == (80.0, 100.0)
    assert found["energy"].intervals == (Interval(79.0, 81.0), None)
    assert found["energy"].change == pytest.approx(0.25)


def test_only_what_both_have_measured_is_compared(report, measured, failed):
    now = report(measured(1), measured(2), failed(3), measured(4))
    before = report(measured(1), failed(2), measured(3))
    assert {one.now.kernel.label for one in differences(now, before)} == {"k01"}


def test_caps_and_cache_states_are_not_mixed(report, measured):
    before = report(measured(1, 1), measured(1, 3, cache="cold"))
    assert list(differences(report(measured(1, 3)), before)) == []


def test_another_kernel_under_the_same_label_is_told(report, measured):
    before = measured(kernel=KernelInfo("k01", "f" * 64, "record", 1))
    assert not next(differences(report(measured()), report(before))).same_kernel


def test_a_change_from_nothing_is_no_number(report, measured):
    before = measured(edp_mj_ms=0.0)
    *_, edp = differences(report(measured()), report(before))
    assert edp.change is None


def test_emulated_and_real_figures_are_not_shown_side_by_side(report, measured):
    with pytest.raises(ReportError, match="compare runs of the same kind"):
        list(differences(report(measured()), report(measured(), emulated=False)))


def test_changes_are_also_told_relative_to_what_all_have_in_common(report, measured):
    def one(rank: int, factor: float, digest: str) -> Any:
        energy_mj = 100.0 * factor
        return measured(
            rank,
            energy_mj=energy_mj,
            kernel=KernelInfo(f"k{rank:02d}", digest, "record", rank),
            trials=(Window(1.0, 200.0, 2000, 1.0),) * 7,
            time_ms_ci95=Interval(0.498, 0.502),
            energy_mj_ci95=Interval(energy_mj * 0.995, energy_mj * 1.005),
            edp_mj_ms_ci95=Interval(energy_mj * 0.497, energy_mj * 0.503),
        )

    before = report(one(1, 1.0, "old"), *(one(rank, 1.0, str(rank)) for rank in range(2, 8)))
    now = report(one(1, 0.99, "new"), *(one(rank, 0.95, str(rank)) for rank in range(2, 8)))
    found = next(d for d in differences(now, before) if str(d.metric) == "energy")
    assert found.change == pytest.approx(-0.01)
    assert found.relative_change == pytest.approx(0.99 / 0.95 - 1)
    few = report(*now.measurements[:2])
    assert next(differences(few, before)).relative_change is None
