"""A GPU claimed for a whole search, at one setpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.control import one_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.station import Station

LOCK_WAIT_S = 2.0
"""How long a search waits for a GPU that another run is using."""


@dataclass(frozen=True)
class Settings:
    """What GPUs are set to while they are claimed.

    Attributes:
        powercap: one power limit, as ``--powercap`` takes it.
        smclock: one clock, as ``--smclock`` takes it.
        allow_clocks: see `Station`.
    """

    powercap: str
    smclock: str
    allow_clocks: bool

    @property
    def writes(self) -> bool:
        """Whether they change anything of a card."""
        return any(word != "current" for word in (self.powercap, self.smclock))

    def __str__(self) -> str:
        words = [f"--powercap {self.powercap}", f"--smclock {self.smclock}"]
        return " and ".join(word for word in words if not word.endswith(" current"))


def claim(
    stack: ExitStack,
    device: Device,
    settings: Settings,
    tell: Callable[[str], None],
    *,
    lock_wait_s: float = LOCK_WAIT_S,
) -> Station:
    """Claim an opened GPU and hold it at a setpoint until the stack is closed.

    Args:
        stack: closed by the caller.
        device: to claim.
        settings: of the card.
        tell: called with sentences about settings that dead runs have left.
        lock_wait_s: see `Station`.

    Raises:
        InputError: the settings name several setpoints.
        DeviceError: it cannot be claimed, or not be set.
    """
    station = stack.enter_context(
        Station(device, lock_wait_s=lock_wait_s, allow_clocks=settings.allow_clocks)
    )
    for sentence in station.restored:
        tell(sentence)
    setpoint = one_setpoint(device, settings.powercap, Path.cwd(), settings.smclock)
    stack.enter_context(station.under(setpoint))
    return station
