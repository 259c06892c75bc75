"""The functions of `pynvml` that this package uses, answered by emulated cards."""
# ruff: noqa: N802, N815 -- pynvml's names

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.devices.emulated import governor
from pytest_gpuenergy.devices.emulated.card import Card
from pytest_gpuenergy.devices.emulated.nvml_base import Handle, reads
from pytest_gpuenergy.devices.emulated.nvml_identity import IdentityFunctions
from pytest_gpuenergy.devices.emulated.nvml_power import PowerFunctions
from pytest_gpuenergy.devices.emulated.state import CardState

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
