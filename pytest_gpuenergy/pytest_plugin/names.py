"""Names that pytest and its other plugins see."""

from __future__ import annotations

DEVICE_FIXTURE = "_gpuenergy_device"
POWERCAP_FIXTURE = "_gpuenergy_powercap"
"""What our fixtures stand on, so that a project's own ``gpu`` or ``powercap`` is never ours."""

BUDGET_MARKER = "edp_budget"

FIGURES = "gpuenergy"
"""The JUnit property that holds an item's figures in words."""
