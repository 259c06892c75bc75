"""The functions of `pynvml` that this package uses, answered by emulated cards."""
# ruff: noqa: N802, N815 -- pynvml's names

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.emulator import governor
from pytest_gpuenergy.emulator.card import Card
from pytest_gpuenergy.emulator.nvml_base import Handle, reads
from pytest_gpuenergy.emulator.nvml_identity import IdentityFunctions
from pytest_gpuenergy.emulator.nvml_power import PowerFunctions
from pytest_gpuenergy.emulator.state import CardState

__all__ = ["EmulatedNvml", "Handle"]

_SUPPORTED_REASONS = (
    governor.GPU_IDLE
    | governor.SW_POWER_CAP
    | governor.HW_SLOWDOWN
    | governor.SW_THERMAL_SLOWDOWN
    | governor.HW_POWER_BRAKE
)


class EmulatedNvml(IdentityFunctions, PowerFunctions):
    """`pynvml` for emulated cards: same names, arguments, units, structures and errors.

    Constants, structures and error classes are those of `pynvml`. A function of `pynvml` that is
    not emulated raises ``NVMLError_FunctionNotFound``, as it does with an old driver. Each call
    takes as much virtual time as on a card: 3.5 ms for the energy counter, microseconds for others.

    Args:
        states: the cards, in the order of their indices.
    """

    @reads()
    def nvmlDeviceGetTemperature(self, _state: CardState, card: Card, sensor: int) -> int:
        """Temperature of the GPU in degrees Celsius."""
        if sensor != self.pynvml.NVML_TEMPERATURE_GPU:
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        return round(card.temperature_c)

    @reads()
    def nvmlDeviceGetClockInfo(self, state: CardState, card: Card, kind: int) -> int:
        """Current clock in MHz; the video clock equals the graphics clock."""
        if kind == self.pynvml.NVML_CLOCK_MEM:
            return state.profile.memory_clock_mhz
        return card.point.clock_mhz

    @reads()
    def nvmlDeviceGetMaxClockInfo(self, state: CardState, _card: Card, kind: int) -> int:
        """Maximum clock in MHz."""
        if kind == self.pynvml.NVML_CLOCK_MEM:
            return state.profile.memory_clock_mhz
        return state.profile.max_clock_mhz

    @reads()
    def nvmlDeviceGetSupportedMemoryClocks(self, state: CardState, _card: Card) -> list[int]:
        """The only memory clock in MHz."""
        return [state.profile.memory_clock_mhz]

    @reads()
    def nvmlDeviceGetSupportedGraphicsClocks(
        self, state: CardState, _card: Card, memory_mhz: int
    ) -> list[int]:
        """Graphics clocks in MHz at a memory clock, the highest first."""
        if memory_mhz != state.profile.memory_clock_mhz:
            raise self.error("NVML_ERROR_NOT_FOUND")
        if not state.profile.sm_clocks_mhz:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        return [*state.profile.sm_clocks_mhz]

    @reads(cost_us=1000)
    def nvmlDeviceSetGpuLockedClocks(
        self, state: CardState, _card: Card, least_mhz: int, most_mhz: int
    ) -> None:
        """Lock the SMs to a range of clocks; the supported ones next to its ends are taken."""
        clocks_mhz = state.profile.sm_clocks_mhz
        if not clocks_mhz:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        if type(least_mhz) is not int or type(most_mhz) is not int:
            raise TypeError(f"clocks must be integers, not {least_mhz!r} and {most_mhz!r}")
        if not 0 < least_mhz <= most_mhz < 1 << 32:
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        ends = (min(clocks_mhz, key=lambda mhz: abs(mhz - end)) for end in (least_mhz, most_mhz))
        with state.change() as card:
            card.lock_clocks((next(ends), next(ends)))

    @reads(cost_us=1000)
    def nvmlDeviceResetGpuLockedClocks(self, state: CardState, _card: Card) -> None:
        """Unlock the SMs, whoever has locked them."""
        if not state.profile.sm_clocks_mhz:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        with state.change() as card:
            card.lock_clocks(None)

    @reads()
    def nvmlDeviceGetCurrentClocksEventReasons(self, _state: CardState, card: Card) -> int:
        """Bits of the reasons for the current clocks."""
        return card.point.event_reasons

    @reads()
    def nvmlDeviceGetSupportedClocksEventReasons(self, _state: CardState, _card: Card) -> int:
        """Bits of the reasons that can occur."""
        return _SUPPORTED_REASONS

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons
    nvmlDeviceGetSupportedClocksThrottleReasons = nvmlDeviceGetSupportedClocksEventReasons

    @reads(cost_us=20)
    def nvmlDeviceGetComputeRunningProcesses(self, _state: CardState, card: Card) -> list[Any]:
        """Processes on the card: the owner of the load, and those of faults."""
        pids = {fault.pid for fault in card.active_faults("foreign_process")}
        if card.load is not None:
            pids.add(card.load.owner.pid)
        return [
            self.pynvml.nvmlFriendlyObject(
                {
                    "pid": pid,
                    "usedGpuMemory": 600 << 20,
                    "gpuInstanceId": 0xFFFFFFFF,
                    "computeInstanceId": 0xFFFFFFFF,
                }
            )
            for pid in sorted(pid for pid in pids if pid is not None)
        ]

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses
    nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses

    @reads()
    def nvmlDeviceGetUtilizationRates(self, _state: CardState, card: Card) -> Any:
        """A ``c_nvmlUtilization_t`` in percent; memory: the share of time that depends on it."""
        rates = self.pynvml.c_nvmlUtilization_t()
        if card.load is not None:
            rates.gpu, rates.memory = 100, round(100 * card.load.demand.memory_time)
        return rates
