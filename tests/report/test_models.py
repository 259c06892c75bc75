"""Runs on several GPU models, and what one run has left on several hosts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, compare
from pytest_gpuenergy.record import AnchorCheck, Measurement, Metric
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
    standings,
    tidy_csv,
    write_classic_csv,
)

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


def test_each_model_is_a_report_of_its_own(mixed: Mixed) -> None:
    large, small = by_model(mixed.report)
    assert (large.run.gpu_name, large.measurements) == ("NVIDIA H200", mixed.large)
    assert (small.run.gpu_name, small.run.host) == ("NVIDIA A30", "other")
    assert small.measurements == mixed.small
    assert by_model(large) == [large]


def test_no_best_is_between_models(mixed: Mixed) -> None:
    best = [one for part in by_model(mixed.report) for one in standings(part.measurements)]
    assert [one.time.kernels for one in best] == [("k01",), ("k03",)]
    assert json_document(mixed.report).count('"near_front"') == 2
    assert markdown(mixed.report).count("# NVIDIA ") == 2
    fronts = [line for line in tidy_csv(mixed.report).splitlines() if ",front" in line]
    assert len(fronts) == 2  # k01 and k03


def test_each_row_names_its_model_and_no_table_has_two(mixed: Mixed, tmp_path: Path) -> None:
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


def test_the_gate_compares_no_measurement_with_another_model(mixed: Mixed) -> None:
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


def test_hosts_of_one_run_merge_even_of_several_models(mixed: Mixed) -> None:
    parts = by_model(mixed.report)
    merged = merge(parts)
    assert merged.measurements == (*mixed.large, *mixed.small)
    assert merged.stations == mixed.report.stations


def test_flags_that_only_one_host_knows_are_kept(run_info: Make, measured: Make) -> None:
    plain, flagged = measured(1, started="10:00"), measured(1, started="10:00").flagged("drift")
    check = AnchorCheck("n", "case1", "k01", "450W", "drift", "09:00", "11:00", gpu_uuid="GPU-1")
    here = Report(run_info(started="9"), (plain,))
    there = Report(run_info(started="8"), (flagged,), (check,))
    again = Report(run_info(started="8"), (flagged,), (check,))
    merged = merge([here, there, again])
    assert merged.measurements == (flagged,)
    assert merged.anchors == (check,)


def test_of_an_item_run_on_two_hosts_the_later_measurement_counts(
    run_info: Make, measured: Make
) -> None:
    early = Report(run_info(started="9"), (measured(1, started="10:00", energy_mj=50.0),))
    late = Report(run_info(started="8"), (measured(1, started="10:05", energy_mj=60.0),))
    assert merge([early, late]).measurements[0].energy_mj == 60.0


def test_durations_are_read_from_whole_lines(
    tmp_path: Path, run_info: Make, measured: Make
) -> None:
    folder = RunFolder.create(tmp_path, run_info())
    one = measured(1, wall_s=2.5)
    folder.append(one)
    folder.append(measured(2))  # not known
    with folder.measurements_path.open("ab") as lines:
        lines.write(b'{"node_id": "cut off", "wal')
    assert durations_s(folder) == {one.node_id: 2.5}
    assert durations_s(RunFolder(tmp_path / "none")) == {}


def test_only_figures_of_one_model_are_shown_side_by_side(mixed: Mixed, run_info: Make) -> None:
    first, other = mixed.large
    moved = replace(mixed.report, measurements=(replace(first, gpu_uuid="GPU-2"), other))
    assert {one.before.kernel.label for one in differences(mixed.report, moved)} == {"k02"}
    small = Report(run_info(gpu_name="NVIDIA A30", gpu_uuid="GPU-3"), mixed.large)
    assert list(differences(mixed.report, small)) == []
    assert pairs(small, mixed.report) == []


def test_of_several_models_in_a_baseline_the_same_one_is_shown(mixed: Mixed) -> None:
    first, _ = mixed.large
    both = replace(
        mixed.report, measurements=(first, replace(first, gpu_uuid="GPU-2", time_ms=9.0))
    )
    for model in by_model(both):
        found = next(differences(model, both))
        assert found.values == (model.measurements[0].time_ms,) * 2
