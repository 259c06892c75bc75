"""What the functions of the emulated NVML share: initialization, handles, errors, faults."""
# ruff: noqa: N802, N815 -- pynvml's names

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.emulator.faults import ERRORS
from pytest_gpuenergy.emulator.state import CardState

FIRST_BUS = 0x18


@dataclass(frozen=True)
class Handle:
    """Stands for a device in calls; opaque."""

    index: int


def reads(
    cost_us: float = 1.0, spread: float = 0.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of a card one of a handle, which takes virtual time and suffers faults.

    Args:
        cost_us: mean virtual time of a call.
        spread: its relative standard deviation.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        name = body.__name__
        cost_ns = round(cost_us * 1000)

        @functools.wraps(body)
        def call(self: NvmlBase, handle: Handle, *args: Any, **options: Any) -> Any:
            state = self.state_of(handle)
            with state.mutex:
                card = state.spend(cost_ns, spread)
                if card.faults:
                    self.strike(state, name)
                return body(self, state, card, *args, **options)

        return call

    return decorate


class NvmlBase:
    """The library itself: users, handles, and everything in `pynvml` that is not a function.

    Args:
        states: the cards, in the order of their indices.
    """

    def __init__(self, states: Sequence[CardState]) -> None:
        import pynvml

        self.pynvml = pynvml
        self.states = tuple(states)
        self._users = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "pynvml":
            raise AttributeError(name)
        value = getattr(self.pynvml, name)
        if name.startswith("nvml") and callable(value) and not isinstance(value, type):

            def missing(*_: Any, **__: Any) -> Any:
                raise self.error("NVML_ERROR_FUNCTION_NOT_FOUND")

            return missing
        return value

    def error(self, constant: str) -> Exception:
        """The `pynvml` exception of an error constant."""
        error: Exception = self.pynvml.NVMLError(getattr(self.pynvml, constant))
        return error

    def strike(self, state: CardState, function: str, *, always: bool = True) -> None:
        """Raise the error that a fault makes of a call of ``function``, if any."""
        error = state.struck_by(function, always=always)
        if error is not None:
            raise self.error(ERRORS[error])

    def _initialized(self) -> None:
        if not self._users:
            raise self.error("NVML_ERROR_UNINITIALIZED")

    def state_of(self, handle: Handle) -> CardState:
        """The card of a handle."""
        self._initialized()
        if not isinstance(handle, Handle):
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        return self.states[handle.index]

    # -- library and system ----------------------------------------------------------------

    def nvmlInit(self) -> None:
        """Add a user of the library."""
        for state in self.states:
            self.strike(state, "nvmlInit", always=False)
        self._users += 1

    def nvmlShutdown(self) -> None:
        """Remove a user of the library."""
        self._initialized()
        self._users -= 1

    def nvmlErrorString(self, result: int) -> str:
        """What an error code means."""
        return str(self.pynvml.NVMLError(result))

    def nvmlSystemGetDriverVersion(self) -> str:
        """``emulated``: there is no driver."""
        self._initialized()
        return "emulated"

    def nvmlSystemGetNVMLVersion(self) -> str:
        """``emulated``: there is no library."""
        self._initialized()
        return "emulated"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        """CUDA 13.0, as 1000 major + 10 minor."""
        self._initialized()
        return 13000

    nvmlSystemGetCudaDriverVersion = nvmlSystemGetCudaDriverVersion_v2

    # -- handles ---------------------------------------------------------------------------

    def nvmlDeviceGetCount(self) -> int:
        """Number of cards."""
        self._initialized()
        return len(self.states)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        """Handle of the card with this index."""
        self._initialized()
        if not 0 <= index < len(self.states):
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        self.strike(self.states[index], "nvmlDeviceGetHandleByIndex")
        return Handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Handle:
        """Handle of the card with this UUID."""
        self._initialized()
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for index, state in enumerate(self.states):
            if state.uuid == wanted:
                return Handle(index)
        raise self.error("NVML_ERROR_NOT_FOUND")

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str | bytes) -> Handle:
        """Handle of the card at this PCI address, whose domain may be short or missing."""
        self._initialized()
        wanted = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).upper()
        for index in range(len(self.states)):
            address = pci_address(index)
            if wanted in (address, address[4:], address[9:]):
                return Handle(index)
        raise self.error("NVML_ERROR_NOT_FOUND")


def pci_address(index: int) -> str:
    """PCI address of the card with this index."""
    return f"00000000:{FIRST_BUS + index:02X}:00.0"
