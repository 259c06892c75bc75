"""A report next to an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.record import Interval, KernelInfo, Window
from pytest_gpuenergy.report import differences
from pytest_gpuenergy.support import ReportError

Make = Callable[..., Any]


def test_each_metric_is_told_then_and_now(report: Make, measured: Make) -> None:
    before = measured(energy_mj=80.0, energy_mj_ci95=Interval(79.0, 81.0))
    found = {str(one.metric): one for one in differences(report(measured()), report(before))}
    assert list(found) == ["time", "energy", "edp"]
    assert found["time"].change == 0.0
    assert found["energy"].values == (80.0, 100.0)
    assert found["energy"].intervals == (Interval(79.0, 81.0), None)
    assert found["energy"].change == pytest.approx(0.25)


def test_only_what_both_have_measured_is_compared(
    report: Make, measured: Make, failed: Make
) -> None:
    now = report(measured(1), measured(2), failed(3), measured(4))
    before = report(measured(1), failed(2), measured(3))
    assert {one.now.kernel.label for one in differences(now, before)} == {"k01"}


def test_caps_and_cache_states_are_not_mixed(report: Make, measured: Make) -> None:
    before = report(measured(1, 1), measured(1, 3, cache="cold"))
    assert list(differences(report(measured(1, 3)), before)) == []


def test_another_kernel_under_the_same_label_is_told(report: Make, measured: Make) -> None:
    before = measured(kernel=KernelInfo("k01", "f" * 64, "record", 1))
    assert not next(differences(report(measured()), report(before))).same_kernel


def test_a_change_from_nothing_is_no_number(report: Make, measured: Make) -> None:
    before = measured(edp_mj_ms=0.0)
    *_, edp = differences(report(measured()), report(before))
    assert edp.change is None


def test_emulated_and_real_figures_are_not_shown_side_by_side(report: Make, measured: Make) -> None:
    with pytest.raises(ReportError, match="compare runs of the same kind"):
        list(differences(report(measured()), report(measured(), emulated=False)))


def test_changes_are_also_told_relative_to_what_all_have_in_common(
    report: Make, measured: Make
) -> None:
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
