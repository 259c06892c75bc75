"""A state of a card that shows in its effective clock."""

from __future__ import annotations

from msgspec import Struct

from pytest_gpuenergy.record.amounts import NotNegative


class ClockState(Struct, frozen=True, gc=False):
    """A level of the SM clock that a card kept for a while; NVML does not report it.

    ``name`` is the clock in words, ``share`` the part of the trials in which the card was in this
    state: 0 if only during the heat-up.
    """

    name: str
    clock_mhz: NotNegative
    share: NotNegative
