"""The figures of a kernel by which kernels and runs are compared."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """A figure of one launch; less is better."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def label(self) -> str:
        """The metric in words."""
        return "EDP" if self is Metric.EDP else self.value

    @property
    def unit(self) -> str:
        """The figure's unit."""
        return _UNITS[self]

    @property
    def field(self) -> str:
        """The attribute that holds the figure in a `Measurement`, a `Window` or a `Reading`."""
        return _FIELDS[self]


METRICS = tuple(Metric)
_UNITS = {Metric.TIME: "ms", Metric.ENERGY: "mJ", Metric.EDP: "mJ·ms"}
_FIELDS = {Metric.TIME: "time_ms", Metric.ENERGY: "energy_mj", Metric.EDP: "edp_mj_ms"}
