"""The state of a card around a measurement."""

from __future__ import annotations

from msgspec import Struct


class Conditions(Struct, frozen=True, gc=False):
    """The state of the card at one moment; None where it does not tell."""

    temperature_c: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    event_reasons: int | None
    power_limit_mw: int | None
