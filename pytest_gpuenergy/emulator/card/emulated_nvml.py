"""The functions of `pynvml` that this package uses, answered by emulated cards."""
# ruff: noqa: N802 -- pynvml's names

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_gpuenergy.emulator.card import governor
from pytest_gpuenergy.emulator.card.card_state import CardState
from pytest_gpuenergy.emulator.card.faults import ERRORS
from pytest_gpuenergy.emulator.card.physics import TICK_NS, EmulatedCard

_FIRST_BUS = 0x18  # the PCI bus of card 0; the others follow
_SAMPLES = 119  # what the ring buffer of an H200 holds
_SUPPORTED_REASONS = (
    governor.GPU_IDLE
    | governor.SW_POWER_CAP
    | governor.HW_SLOWDOWN
    | governor.SW_THERMAL_SLOWDOWN
    | governor.HW_POWER_BRAKE
)


_READINGS: dict[str, Callable[[CardState, EmulatedCard], Any]] = {
    "nvmlDeviceGetName": lambda state, _: state.profile.name,
    "nvmlDeviceGetUUID": lambda state, _: state.uuid,
    "nvmlDeviceGetIndex": lambda state, _: state.index,
    "nvmlDeviceGetMinorNumber": lambda state, _: state.index,
    "nvmlDeviceGetCudaComputeCapability": lambda state, _: state.profile.compute_capability,
    "nvmlDeviceGetNumGpuCores": lambda state, _: (
        state.profile.sm_count * state.profile.cores_per_sm
    ),
    "nvmlDeviceGetPersistenceMode": lambda *_: 1,  # NVML_FEATURE_ENABLED
    "nvmlDeviceGetPowerManagementMode": lambda *_: 1,
    "nvmlDeviceGetVirtualizationMode": lambda *_: 0,  # NVML_GPU_VIRTUALIZATION_MODE_NONE
    "nvmlDeviceGetPowerManagementLimit": lambda _, card: card.limit_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda _, card: card.enforced_mw,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda state, _: round(
        state.profile.default_limit_w * 1000
    ),
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda state, _: [
        round(state.profile.min_limit_w * 1000),
        round(state.profile.max_limit_w * 1000),
    ],
    "nvmlDeviceGetPowerUsage": lambda _, card: _power(card, card.profile.sensor.average_window_ms),
    "nvmlDeviceGetSupportedMemoryClocks": lambda state, _: [state.profile.memory_clock_mhz],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda _, card: card.point.event_reasons,
    "nvmlDeviceGetSupportedClocksEventReasons": lambda *_: _SUPPORTED_REASONS,
}
"""The functions that take nothing but a handle and read one thing."""
_ALIASES = {
    "nvmlSystemGetCudaDriverVersion": "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetPciInfo_v3": "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons": "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v2": "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses",
}


@dataclass(frozen=True)
class CardHandle:
    """An opaque handle of a card."""

    index: int


def _takes(cost_us: float = 1.0, spread: float = 0.0) -> Callable[[Callable[..., Any]], Any]:
    """Turn a method that is given a card into one that is given a handle, takes time and can fail.

    The arguments are the mean virtual time of a call and its relative standard deviation.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(body)
        def call(self: EmulatedNvml, handle: CardHandle, *args: Any, **options: Any) -> Any:
            answer = functools.partial(body, self)
            return self._call(
                body.__name__, answer, handle, *args, cost=(cost_us, spread), **options
            )

        return call

    return decorate


class EmulatedNvml:
    """`pynvml` for emulated cards: same names, arguments, units, structures and errors.

    Constants, structures and error classes are those of `pynvml`. A function of `pynvml` that is
    not emulated raises ``NVMLError_FunctionNotFound``, as it does with an old driver. Each call
    takes as much virtual time as on a card: 3.5 ms for the energy counter, microseconds for others.

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
        if name in _ALIASES:
            return getattr(self, _ALIASES[name])
        if name in _READINGS:
            return functools.partial(self._call, name, _READINGS[name])
        value = getattr(self.pynvml, name)
        if name.startswith("nvml") and callable(value) and not isinstance(value, type):

            def missing(*_: Any, **__: Any) -> Any:
                raise self.error("NVML_ERROR_FUNCTION_NOT_FOUND")

            return missing
        return value

    def error(self, constant: str) -> Exception:
        """Return the `pynvml` exception of an error constant."""
        error: Exception = self.pynvml.NVMLError(getattr(self.pynvml, constant))
        return error

    def _strike(self, state: CardState, function: str, *, always: bool = True) -> None:
        """Raise the error that an injected fault demands for a call of ``function``, if any."""
        error = state.error_to_raise(function, always=always)
        if error is not None:
            raise self.error(ERRORS[error])

    def _initialized(self) -> None:
        if not self._users:
            raise self.error("NVML_ERROR_UNINITIALIZED")

    def _call(
        self,
        name: str,
        answer: Callable[..., Any],
        handle: CardHandle,
        *args: Any,
        cost: tuple[float, float] = (1.0, 0.0),
        **options: Any,
    ) -> Any:
        """Return the answer of a function, after the virtual time that a call of it costs."""
        self._initialized()
        if not isinstance(handle, CardHandle):
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        state, (cost_us, spread) = self.states[handle.index], cost
        with state.mutex:
            card = state.spend(round(cost_us * 1000), spread)
            if card.faults:
                self._strike(state, name)
            return answer(state, card, *args, **options)

    # -- library and system ----------------------------------------------------------------

    def nvmlInit(self) -> None:
        """Add a user of the library."""
        for state in self.states:
            self._strike(state, "nvmlInit", always=False)
        self._users += 1

    def nvmlShutdown(self) -> None:
        """Remove a user of the library."""
        self._initialized()
        self._users -= 1

    def nvmlErrorString(self, result: int) -> str:
        """Return the text of an error code."""
        return str(self.pynvml.NVMLError(result))

    def nvmlSystemGetDriverVersion(self) -> str:
        """Return ``emulated``, since there is no driver."""
        self._initialized()
        return "emulated"

    def nvmlSystemGetNVMLVersion(self) -> str:
        """Return ``emulated``, since there is no library."""
        self._initialized()
        return "emulated"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        """Return the version of CUDA, 13.0, as 1000 major + 10 minor."""
        self._initialized()
        return 13000

    # -- handles ---------------------------------------------------------------------------

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of cards."""
        self._initialized()
        return len(self.states)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> CardHandle:
        """Return the handle of the card with this index."""
        self._initialized()
        if not 0 <= index < len(self.states):
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        self._strike(self.states[index], "nvmlDeviceGetHandleByIndex")
        return CardHandle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> CardHandle:
        """Return the handle of the card with this UUID."""
        self._initialized()
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for index, state in enumerate(self.states):
            if state.uuid == wanted:
                return CardHandle(index)
        raise self.error("NVML_ERROR_NOT_FOUND")

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str | bytes) -> CardHandle:
        """Return the handle of the card at this PCI address; its domain may be short or missing."""
        self._initialized()
        wanted = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).upper()
        for index in range(len(self.states)):
            address = _pci_address(index)
            if wanted in (address, address[4:], address[9:]):
                return CardHandle(index)
        raise self.error("NVML_ERROR_NOT_FOUND")

    # -- identity and memory ---------------------------------------------------------------

    @_takes()
    def nvmlDeviceGetPciInfo(self, state: CardState, _card: EmulatedCard) -> Any:
        """Return the PCI address and IDs, as an ``nvmlPciInfo_t``."""
        index = state.index
        info = self.pynvml.nvmlPciInfo_t()
        info.domain, info.bus, info.device = 0, _FIRST_BUS + index, 0
        info.pciDeviceId = state.profile.pci_device_id
        info.busId = _pci_address(index).encode()
        info.busIdLegacy = _pci_address(index)[4:].encode()
        return info

    @_takes()
    def nvmlDeviceGetMemoryInfo(
        self, state: CardState, card: EmulatedCard, version: int | None = None
    ) -> Any:
        """Return the memory in bytes, as a ``c_nvmlMemory_t`` or its second version."""
        memory = self.pynvml.c_nvmlMemory_v2_t() if version else self.pynvml.c_nvmlMemory_t()
        memory.total = state.profile.memory_mib << 20
        memory.used = (600 if card.load is None else 1200) << 20
        memory.free = memory.total - memory.used
        if version:
            memory.version, memory.reserved = version, 0
        return memory

    # -- modes -----------------------------------------------------------------------------

    @_takes()
    def nvmlDeviceGetMigMode(self, state: CardState, card: EmulatedCard) -> list[int]:
        """Return the current and the pending mode, which are off unless a fault sets them."""
        if not state.profile.has_mig:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        mode = int(any(card.active_faults("mig")))
        return [mode, mode]

    # -- power limits ----------------------------------------------------------------------

    @_takes(cost_us=1000)
    def nvmlDeviceSetPowerManagementLimit(
        self, state: CardState, _card: EmulatedCard, limit: int
    ) -> None:
        """Request a limit in mW."""
        profile = state.profile
        if type(limit) is not int:
            raise TypeError(f"the limit must be an integer number of milliwatts, not {limit!r}")
        if not profile.min_limit_w * 1000 <= limit <= profile.max_limit_w * 1000:
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        with state.change() as card:
            card.set_limit(limit)

    # -- power and energy ------------------------------------------------------------------

    @_takes(cost_us=3500, spread=0.04)
    def nvmlDeviceGetTotalEnergyConsumption(self, _state: CardState, card: EmulatedCard) -> int:
        """Return the energy counter in mJ."""
        if not card.profile.sensor.has_counter:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        return card.counter_mj()

    @_takes(cost_us=2.2)
    def nvmlDeviceGetFieldValues(
        self, state: CardState, card: EmulatedCard, fields: Sequence[int | tuple[int, int]]
    ) -> Any:
        """Return an array of ``c_nvmlFieldValue_t``, each with its own ``nvmlReturn``."""
        values = (self.pynvml.c_nvmlFieldValue_t * len(fields))()
        missing = {fault.field for fault in card.active_faults("field_missing")}
        for value, wanted in zip(values, fields, strict=True):
            value.fieldId, value.scopeId = wanted if isinstance(wanted, tuple) else (wanted, 0)
            value.timestamp = card.now_ns // 1000
            self._fill(value, state, card, value.fieldId in missing)
        return values

    def _fill(self, value: Any, state: CardState, card: EmulatedCard, missing: bool) -> None:
        names, profile = self.pynvml, state.profile
        answers: dict[int, Callable[[], int]] = {
            names.NVML_FI_DEV_POWER_AVERAGE: lambda: _power(card, 1000),
            names.NVML_FI_DEV_POWER_INSTANT: lambda: _power(card, profile.sensor.instant_window_ms),
            names.NVML_FI_DEV_POWER_MIN_LIMIT: lambda: round(profile.min_limit_w * 1000),
            names.NVML_FI_DEV_POWER_MAX_LIMIT: lambda: round(profile.max_limit_w * 1000),
            names.NVML_FI_DEV_POWER_DEFAULT_LIMIT: lambda: round(profile.default_limit_w * 1000),
            names.NVML_FI_DEV_POWER_CURRENT_LIMIT: lambda: card.enforced_mw,
            names.NVML_FI_DEV_POWER_REQUESTED_LIMIT: lambda: card.limit_mw,
        }
        value.nvmlReturn = names.NVML_SUCCESS
        counter = value.fieldId == names.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
        missing = missing or (counter and not profile.sensor.has_counter)
        if missing or value.scopeId != names.NVML_POWER_SCOPE_GPU:
            value.nvmlReturn = names.NVML_ERROR_NOT_SUPPORTED
        elif counter:
            value.valueType = names.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = card.counter_mj()
        elif value.fieldId in answers:
            value.valueType = names.NVML_VALUE_TYPE_UNSIGNED_INT
            value.value.uiVal = answers[value.fieldId]()
        else:
            value.nvmlReturn = names.NVML_ERROR_NOT_SUPPORTED

    @_takes(cost_us=100)
    def nvmlDeviceGetSamples(
        self, _state: CardState, card: EmulatedCard, sampling_type: int, last_seen_us: int
    ) -> tuple[int, list[Any]]:
        """Return the value type and up to 119 samples after ``last_seen_us``, in mW every 20 ms."""
        if sampling_type != self.pynvml.NVML_TOTAL_POWER_SAMPLES:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        last_ns = card.now_ns // TICK_NS * TICK_NS
        edges_ns = range(last_ns - _SAMPLES * TICK_NS, last_ns + 1, TICK_NS)
        energies_pj = [card.energy_pj(at_ns) for at_ns in edges_ns]
        samples = []
        for at_ns, (begin_pj, end_pj) in zip(edges_ns[1:], pairwise(energies_pj), strict=True):
            if at_ns // 1000 > last_seen_us:
                sample = self.pynvml.c_nvmlSample_t()
                sample.timeStamp = at_ns // 1000
                sample.sampleValue.uiVal = (end_pj - begin_pj) // TICK_NS
                samples.append(sample)
        if not samples:
            raise self.error("NVML_ERROR_NOT_FOUND")
        return int(self.pynvml.NVML_VALUE_TYPE_UNSIGNED_INT), samples

    # -- temperature, clocks, processes ----------------------------------------------------

    @_takes()
    def nvmlDeviceGetTemperature(self, _state: CardState, card: EmulatedCard, sensor: int) -> int:
        """Return the temperature of the GPU in degrees Celsius."""
        if sensor != self.pynvml.NVML_TEMPERATURE_GPU:
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        return round(card.temperature_c)

    @_takes()
    def nvmlDeviceGetClockInfo(self, state: CardState, card: EmulatedCard, kind: int) -> int:
        """Return the current clock in MHz; the video clock equals the graphics clock."""
        if kind == self.pynvml.NVML_CLOCK_MEM:
            return state.profile.memory_clock_mhz
        return card.point.clock_mhz

    @_takes()
    def nvmlDeviceGetMaxClockInfo(self, state: CardState, _card: EmulatedCard, kind: int) -> int:
        """Return the maximum clock in MHz."""
        if kind == self.pynvml.NVML_CLOCK_MEM:
            return state.profile.memory_clock_mhz
        return state.profile.max_clock_mhz

    @_takes()
    def nvmlDeviceGetSupportedGraphicsClocks(
        self, state: CardState, _card: EmulatedCard, memory_mhz: int
    ) -> list[int]:
        """Return the graphics clocks in MHz at a memory clock, the highest first."""
        if memory_mhz != state.profile.memory_clock_mhz:
            raise self.error("NVML_ERROR_NOT_FOUND")
        if not state.profile.sm_clocks_mhz:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        return [*state.profile.sm_clocks_mhz]

    @_takes(cost_us=1000)
    def nvmlDeviceSetGpuLockedClocks(
        self, state: CardState, _card: EmulatedCard, least_mhz: int, most_mhz: int
    ) -> None:
        """Lock the SMs to a range of clocks, whose ends are rounded to supported clocks."""
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

    @_takes(cost_us=1000)
    def nvmlDeviceResetGpuLockedClocks(self, state: CardState, _card: EmulatedCard) -> None:
        """Unlock the SMs, whoever locked them."""
        if not state.profile.sm_clocks_mhz:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        with state.change() as card:
            card.lock_clocks(None)

    @_takes(cost_us=20)
    def nvmlDeviceGetComputeRunningProcesses(
        self, _state: CardState, card: EmulatedCard
    ) -> list[Any]:
        """Return the processes on the card: the owner of the load and those that faults add."""
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

    @_takes()
    def nvmlDeviceGetUtilizationRates(self, _state: CardState, card: EmulatedCard) -> Any:
        """Return a ``c_nvmlUtilization_t`` in percent; memory is the share of time bound by it."""
        rates = self.pynvml.c_nvmlUtilization_t()
        if card.load is not None:
            rates.gpu, rates.memory = 100, round(100 * card.load.demand.memory_time)
        return rates


def _power(card: EmulatedCard, window_ms: float) -> int:
    return card.mean_power_mw(card.sensor_edge_ns(), round(window_ms * 1e6))


def _pci_address(index: int) -> str:
    """Return the PCI address of the card with this index."""
    return f"00000000:{_FIRST_BUS + index:02X}:00.0"
