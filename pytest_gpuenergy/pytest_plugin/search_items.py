"""Kernels before and after a search, each an item; ``bench/test_search.py`` is this test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuenergy.pytest_plugin.energy_benchmark import EnergyBenchmark
    from pytest_gpuenergy.pytest_plugin.searches import ReadyVariant

__all__ = ["test_search"]


@pytest.mark.usefixtures("powercap")
def test_search(variant: ReadyVariant, energy_benchmark: EnergyBenchmark) -> None:
    """One kernel under one power cap."""
    measurement = energy_benchmark(variant.kernel, workload=variant.workload, label=variant.label)
    assert measurement.outcome == "correct"
