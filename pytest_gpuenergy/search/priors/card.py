"""What a card can do at most, and how much power its parts draw, for estimates of bottlenecks."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, PROFILES, GpuProfile


@dataclass(frozen=True)
class Card:
    """A card during a search.

    Attributes:
        profile: of its model; of a similar one if that is not known.
        limit_w: power limit that it enforces; None if it does not say.
    """

    profile: GpuProfile
    limit_w: float | None = None

    @classmethod
    def of(cls, device: Device) -> Card:
        """The card of a device, as it is now."""
        return cls(_profile_of(device), enforced_setpoint(device).power_limit_w)

    @property
    def cycles_per_s(self) -> float:
        """Of a multiprocessor, at most."""
        return self.profile.max_clock_mhz * 1e6


def _profile_of(device: Device) -> GpuProfile:
    by_name = [one for one in PROFILES.values() if one.name == device.name]
    alike = [one for one in PROFILES.values() if one.architecture == device.architecture]
    return [*by_name, *alike, DEFAULT_PROFILE][0]
