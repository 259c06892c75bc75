"""The virtual clock that NVML readings and timelines of an emulated card share."""

from __future__ import annotations

from pytest_gpuenergy.emulator.state import CardState


class VirtualClock:
    """Reads and advances a card's virtual time. Nothing ever sleeps in real time."""

    def __init__(self, state: CardState) -> None:
        self._state = state

    def now_s(self) -> float:
        """Virtual seconds since the emulated card was powered on."""
        return self._state.now_ns() / 1e9

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` virtual seconds pass.

        Raises:
            ValueError: the duration is negative, too long or not a number.
        """
        if not 0 <= duration_s < 1e9:
            raise ValueError(f"cannot sleep for {duration_s!r} s")
        self._state.spend(round(duration_s * 1e9))
