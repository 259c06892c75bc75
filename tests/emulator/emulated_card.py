"""An emulated card with its NVML, for short tests."""

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.emulator import (
    CardState,
    Demand,
    EmulatedNvml,
    Fault,
    Load,
    Owner,
    find_profile,
)


class Card:
    """The first of so many emulated cards of a profile."""

    def __init__(self, profile: str = "h200", count: int = 1) -> None:
        self.states = [CardState(find_profile(profile), index) for index in range(count)]
        self.state = self.states[0]
        self.nvml: Any = EmulatedNvml(self.states)
        self.nvml.nvmlInit()
        self.handle = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def ask(self, name: str, *arguments: object, **named: object) -> Any:
        """Return the answer of the function ``nvmlDeviceGet...`` of this name."""
        return getattr(self.nvml, f"nvmlDeviceGet{name}")(self.handle, *arguments, **named)

    def field(self, number: int, scope: int = 0) -> Any:
        return self.ask("FieldValues", [(number, scope)])[0]

    def set_limit(self, limit_mw: object) -> None:
        self.nvml.nvmlDeviceSetPowerManagementLimit(self.handle, limit_mw)

    def inject(self, what: str, value: object = True) -> str:
        return self.state.inject(Fault.of(what, value))

    def load(self, power_w: float = 420.0) -> None:
        with self.state.change() as card:
            card.start(Load(Owner.me(), Demand(20e-6, power_w, 0.1)))

    def sleep(self, seconds: float) -> None:
        self.state.spend(round(seconds * 1e9))

    def runs(self) -> float:
        """Return the number of runs of the load so far."""
        card = self.state.spend(0)
        assert card.load is not None
        return card.load.runs_at(card.now_ns)
