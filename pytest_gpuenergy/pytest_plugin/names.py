"""Names that pytest and its other plugins see."""

from __future__ import annotations

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
