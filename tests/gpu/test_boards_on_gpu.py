"""The kernels that all boards measure, on a real GPU."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.engine import Subject, board_kernels, open_station
from pytest_gpuenergy.record import Metric

pytestmark = pytest.mark.gpu


def test_the_kernels_of_boards_are_right_and_repeatable():
    with open_station("auto") as station:
        harness = station.harness()
        for one in board_kernels(station.device):
            subject = Subject("board", one.kernel.label)
            found = harness.measure_kernel(one.kernel, one.workload, subject)
            assert found.outcome == "correct", found.error
            again = harness.measure_again(one.kernel, one.workload, subject)
            assert again.time_ms == pytest.approx(found.time_ms, rel=0.01)
            estimate = again.estimate(Metric.ENERGY)
            assert estimate is not None
            # A card that has not settled has wide intervals: 4 % on an H100 without a preheating.
            assert estimate.relative_half_width < 0.06
