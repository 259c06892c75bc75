"""A language model's calls and whole steps, each an item; ``bench/test_replay.py`` is this test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuenergy.engine import Replayable
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.pytest_plugin.replays import Bound

__all__ = ["test_replay"]


@pytest.mark.usefixtures("powercap")
def test_replay(
    replayable: Replayable, joules_per_token: Bound | None, energy_benchmark: EnergyBenchmark
) -> None:
    """One call, or one whole step, under one power cap."""
    measurement = energy_benchmark(replayable)
    assert measurement.outcome == "correct"
    if joules_per_token is not None and (problem := joules_per_token.exceeded_by(measurement)):
        pytest.fail(problem, pytrace=False)
