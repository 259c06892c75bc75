"""The state of a card before and after a measurement."""

from __future__ import annotations

from msgspec import Struct


class Conditions(Struct, frozen=True, gc=False):
    """The state of the card at one moment; None for what it does not report."""

    temperature_c: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    event_reasons: int | None
    power_limit_mw: int | None
