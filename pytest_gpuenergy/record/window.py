"""One window of a measurement, which its JSON calls a trial."""

from __future__ import annotations

from msgspec import Struct

from pytest_gpuenergy.record.amounts import AboveZero, NotNegative


class Window(Struct, frozen=True, gc=False):
    """One window between two edges (updates) of the energy source."""

    seconds: AboveZero
    joules: NotNegative
    launches: AboveZero
    busy_seconds: NotNegative

    @property
    def time_ms(self) -> float:
        """GPU time per launch."""
        return 1e3 * self.busy_seconds / self.launches

    @property
    def energy_mj(self) -> float:
        """Energy per launch."""
        return 1e3 * self.joules / self.launches

    @property
    def edp_mj_ms(self) -> float:
        """Energy-delay product per launch."""
        return self.energy_mj * self.time_ms
