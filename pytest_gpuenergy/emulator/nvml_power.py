"""What the emulated NVML reports of power limits, power and energy."""
# ruff: noqa: N802 -- pynvml's names

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from pytest_gpuenergy.emulator.card import TICK_NS, Card
from pytest_gpuenergy.emulator.nvml_base import NvmlBase, reads
from pytest_gpuenergy.emulator.state import CardState

_SAMPLES = 119  # what the ring buffer of an H200 holds


class PowerFunctions(NvmlBase):
    """Power limits, power and energy."""

    @reads()
    def nvmlDeviceGetPowerManagementLimit(self, _state: CardState, card: Card) -> int:
        """Requested limit in mW."""
        return card.limit_mw

    @reads()
    def nvmlDeviceGetEnforcedPowerLimit(self, _state: CardState, card: Card) -> int:
        """Limit in force in mW."""
        return card.enforced_mw

    @reads()
    def nvmlDeviceGetPowerManagementDefaultLimit(self, state: CardState, _card: Card) -> int:
        """Default limit in mW."""
        return round(state.profile.default_limit_w * 1000)

    @reads()
    def nvmlDeviceGetPowerManagementLimitConstraints(
        self, state: CardState, _card: Card
    ) -> list[int]:
        """Minimum and maximum limit in mW."""
        return [
            round(state.profile.min_limit_w * 1000),
            round(state.profile.max_limit_w * 1000),
        ]

    @reads(cost_us=1000)
    def nvmlDeviceSetPowerManagementLimit(self, state: CardState, _card: Card, limit: int) -> None:
        """Request a limit in mW."""
        profile = state.profile
        if type(limit) is not int:
            raise TypeError(f"the limit must be an integer number of milliwatts, not {limit!r}")
        if not profile.min_limit_w * 1000 <= limit <= profile.max_limit_w * 1000:
            raise self.error("NVML_ERROR_INVALID_ARGUMENT")
        with state.change() as card:
            card.set_limit(limit)

    # -- power and energy ------------------------------------------------------------------

    @reads(cost_us=3500, spread=0.04)
    def nvmlDeviceGetTotalEnergyConsumption(self, _state: CardState, card: Card) -> int:
        """Energy counter in mJ."""
        if not card.profile.sensor.has_counter:
            raise self.error("NVML_ERROR_NOT_SUPPORTED")
        return card.counter_mj()

    @reads()
    def nvmlDeviceGetPowerUsage(self, _state: CardState, card: Card) -> int:
        """Power in mW, averaged over this GPU model's window."""
        return _power(card, card.profile.sensor.average_window_ms)

    @reads(cost_us=2.2)
    def nvmlDeviceGetFieldValues(
        self, state: CardState, card: Card, fields: Sequence[int | tuple[int, int]]
    ) -> Any:
        """An array of ``c_nvmlFieldValue_t``, each with its own ``nvmlReturn``."""
        values = (self.pynvml.c_nvmlFieldValue_t * len(fields))()
        missing = {fault.field for fault in card.active_faults("field_missing")}
        for value, wanted in zip(values, fields, strict=True):
            value.fieldId, value.scopeId = wanted if isinstance(wanted, tuple) else (wanted, 0)
            value.timestamp = card.now_ns // 1000
            self._fill(value, state, card, value.fieldId in missing)
        return values

    def _fill(self, value: Any, state: CardState, card: Card, missing: bool) -> None:
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

    @reads(cost_us=100)
    def nvmlDeviceGetSamples(
        self, _state: CardState, card: Card, sampling_type: int, last_seen_us: int
    ) -> tuple[int, list[Any]]:
        """Value type, and up to 119 samples after ``last_seen_us``: mW every 20 ms."""
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


def _power(card: Card, window_ms: float) -> int:
    return card.mean_power_mw(card.sensor_edge_ns(), round(window_ms * 1e6))
