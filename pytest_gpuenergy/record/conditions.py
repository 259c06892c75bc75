"""The state of a card before and after a measurement."""

from __future__ import annotations

from msgspec import Struct

from pytest_gpuenergy.record.amounts import Whole


class Conditions(Struct, frozen=True, gc=False):
    """The state of the card at one moment; None for what it does not report."""

    temperature_c: Whole | None
    sm_clock_mhz: Whole | None
    memory_clock_mhz: Whole | None
    event_reasons: Whole | None
    power_limit_mw: Whole | None
