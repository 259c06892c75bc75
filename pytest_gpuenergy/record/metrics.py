"""The figures by which kernels and runs are compared."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """A figure of one launch; lower is better."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def label(self) -> str:
        """The metric's name for people."""
        return "EDP" if self is Metric.EDP else self.value

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return _UNITS[self]

    @property
    def field(self) -> str:
        """The attribute of a `Measurement`, `Window` or `Reading` that holds the figure."""
        return _FIELDS[self]


METRICS = tuple(Metric)
_UNITS = {Metric.TIME: "ms", Metric.ENERGY: "mJ", Metric.EDP: "mJ·ms"}
_FIELDS = {Metric.TIME: "time_ms", Metric.ENERGY: "energy_mj", Metric.EDP: "edp_mj_ms"}
