"""Names that pytest and its other plugins see, and the hook that a project may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuenergy.record import Measurement

DEVICE_FIXTURE = "_gpuenergy_device"
POWERCAP_FIXTURE = "_gpuenergy_powercap"
"""Fixtures beneath ours: a project's own ``gpu`` or ``powercap`` is never mistaken for ours."""

RUN = "gpuenergy-run"
"""The plugin that measures in a pytest process, once it is loaded: a `run.RunPlugin`."""

EDP_MARKER, ENERGY_MARKER = BUDGET_MARKERS = ("edp_budget", "energy_budget")

FIGURES = "gpuenergy"
"""The JUnit property with an item's figures as text."""
BENCH = "bench"
"""The group of the options of this repository's benches."""


@pytest.hookspec
def pytest_gpuenergy_deselected(config: pytest.Config, measurement: Measurement) -> bool:  # type: ignore[empty-body]
    """Report whether an option of the project leaves out a kernel that the baseline has.

    It is called for kernels of the baseline that the run did not collect, such as those that an
    option ``--kernels`` left out of the parameters of a test. Without it, they are missing.
    """
