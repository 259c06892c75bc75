"""Baselines of runs on several boards and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from board_reports import board_measurement, report_on
from msgspec.structs import replace

from pytest_gpuenergy.gate import GateSettings, compare, update
from pytest_gpuenergy.report import Models, Report
from pytest_gpuenergy.support import InputError

Make = Callable[..., Any]
MODELS = {"GPU-1": "NVIDIA H200", "GPU-2": "NVIDIA H200", "GPU-3": "NVIDIA A30"}


@pytest.fixture
def on(run_info: Make, measured: Make) -> Callable[..., Report]:
    """A report with a kernel of rank N on the board GPU-N, for each number given."""

    def make(*numbers: int, time_ms: float = 0.5, **changes: Any) -> Report:
        stations = tuple(
            run_info(gpu_uuid=f"GPU-{n}", gpu_name=MODELS.get(f"GPU-{n}", "NVIDIA A30")).station
            for n in numbers
        )
        stations = tuple(replace(station, **changes) for station in stations)
        first = stations[0]
        run = run_info(gpu_uuid=first.gpu_uuid, gpu_name=first.gpu_name, software=first.software)
        found = tuple(measured(n, gpu_uuid=f"GPU-{n}", time_ms=time_ms) for n in numbers)
        return Report(run, found, stations=stations)

    return make


def test_a_run_on_some_gpus_of_the_baseline_replaces_their_figures(on):
    changed = update(on(1, 2, 3), on(3, time_ms=0.7))
    assert [m.kernel.label for m in changed.taken] == ["k03"]
    assert [m.kernel.label for m in changed.kept] == ["k01", "k02"]
    models = Models(changed.report)
    assert [models.of(m) for m in changed.report.measurements] == [*MODELS.values()]
    again = compare(changed.report, on(1, 2, 3), GateSettings())
    assert {one.identity.kernel for one in again.judgements} == {"k01", "k02", "k03"}


def test_figures_of_one_model_do_not_replace_those_of_another(on, measured):
    other = replace(on(3), measurements=(measured(1, gpu_uuid="GPU-3"),))
    changed = update(on(1, 3), other)
    assert [m.gpu_uuid for m in changed.report.measurements] == ["GPU-1", "GPU-3", "GPU-3"]


@pytest.mark.parametrize(
    ("numbers", "changes", "said"),
    [
        ((1, 4), {}, "board (GPU-3 and GPU-4)"),
        ((1, 2), {"software": {"driver": "9"}}, "driver (unknown and 9)"),
        ((1, 2), {"gpu_name": "NVIDIA L4"}, "GPU model (NVIDIA H200 or NVIDIA A30 and NVIDIA L4)"),
        ((2, 1), {"emulated": False}, "emulated or real (emulated and real)"),
    ],
)
def test_every_gpu_of_a_run_has_to_be_one_of_the_baselines(on, numbers, changes, said):
    with pytest.raises(InputError) as caught:
        update(on(1, 2, 3), on(*numbers, **changes))
    assert said in str(caught.value)


def test_the_gain_of_a_board_is_not_counted_twice():
    """The common shift of unchanged kernels is taken from raw figures, with gains or without."""
    before = report_on(
        {"GPU-0": 1.0, "GPU-1": 1.04},
        *(board_measurement("GPU-0", f"k{n}", energy_mj=10.0, error=0.001) for n in range(6)),
    )
    now = report_on(
        {"GPU-0": 1.0, "GPU-1": 1.04},
        *(
            replace(
                board_measurement("GPU-1", f"k{n}", energy_mj=10.4, error=0.001),
                node_id=f"board::k{n}-700W-GPU-0",
            )
            for n in range(6)
        ),
        gpu_uuid="GPU-1",
    )
    settings = GateSettings.parse(["energy:5%"], session_sd="", allow="board", strict=False)
    known = compare(before, now, settings)
    unknown = compare(replace(before, board_checks=()), replace(now, board_checks=()), settings)
    assert known == unknown
    assert known.shifts
