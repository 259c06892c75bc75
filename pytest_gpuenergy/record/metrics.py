"""The figures of a kernel by which kernels and runs are compared."""

from __future__ import annotations

from typing import Literal, get_args

Metric = Literal["time", "energy", "edp"]
METRICS: tuple[Metric, ...] = get_args(Metric)
