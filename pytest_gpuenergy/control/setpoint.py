"""What a card is set to: one value, whether it is asked for, enforced or restored."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import TYPE_CHECKING

from pytest_gpuenergy.record.identity import setpoint_folder

if TYPE_CHECKING:
    from pytest_gpuenergy.record.measurement import Measurement


@dataclass(frozen=True)
class Setpoint:
    """The settings of a card that matter to time and energy.

    Asked for, None leaves a setting as it is; enforced, None is what the card does not report.

    Attributes:
        power_limit_w: the power limit.
        sm_clock_mhz: what the SM clock is locked to.
        index: place of the power limit in the GPU's cap table, 1 = lowest; None when it is not from
            there.
        unavailable: why this card cannot take it; None when it can.
    """

    power_limit_w: float | None = None
    _: KW_ONLY
    sm_clock_mhz: int | None = None
    index: int | None = None
    unavailable: str | None = None

    @classmethod
    def asked_for(cls, measurement: Measurement) -> Setpoint:
        """The one that was asked for when ``measurement`` was made."""
        return cls(measurement.power_limit_w, index=measurement.cap_index)

    @classmethod
    def enforced_for(cls, measurement: Measurement) -> Setpoint:
        """What the card enforced when ``measurement`` was made."""
        return cls(measurement.enforced_power_limit_w)

    @property
    def label(self) -> str:
        """As in item ids: ``300W``, ``1500MHz``, ``300W-1500MHz``, or ``current``."""
        parts = []
        if self.power_limit_w is not None:
            parts.append(f"{self.power_limit_w:g}W")
        if self.sm_clock_mhz is not None:
            parts.append(f"{self.sm_clock_mhz}MHz")
        return "-".join(parts) or "current"

    @property
    def folder(self) -> str:
        """As in the classic CSV tree, see `setpoint_folder`."""
        return setpoint_folder(self.label, self.index)

    @property
    def order(self) -> tuple[float, float]:
        """Sorts by power limit, then by clock, the lowest first and an untouched one before it."""
        return (
            -inf if self.power_limit_w is None else self.power_limit_w,
            -inf if self.sm_clock_mhz is None else self.sm_clock_mhz,
        )


CURRENT = Setpoint()
"""Leaves the card as it is."""

UNKNOWN = Setpoint()
"""What a card enforces that does not report it."""
