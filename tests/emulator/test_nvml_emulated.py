"""The emulated NVML answers as pynvml does."""

from __future__ import annotations

import inspect
import os
from itertools import pairwise

import pynvml
import pytest

from pytest_gpuenergy.emulator import (
    PROFILES,
    CardState,
    Demand,
    EmulatedNvml,
    Load,
    Owner,
    find_profile,
)

SECOND_NS = 10**9


class Card:
    """One emulated card with its NVML, for short tests."""

    def __init__(self, profile: str = "h200", count: int = 1) -> None:
        self.states = [CardState(find_profile(profile), index) for index in range(count)]
        self.state = self.states[0]
        self.nvml = EmulatedNvml(self.states)
        self.nvml.nvmlInit()
        self.handle = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def ask(self, name: str, *arguments: object) -> object:
        return getattr(self.nvml, name)(self.handle, *arguments)

    def field(self, number: int, scope: int = 0) -> object:
        return self.nvml.nvmlDeviceGetFieldValues(self.handle, [(number, scope)])[0]

    def load(self, power_w: float = 420.0) -> None:
        with self.state.change() as card:
            card.start(Load(Owner.me(), Demand(20e-6, power_w, 0.1)))

    def sleep(self, seconds: float) -> None:
        self.state.spend(round(seconds * 1e9))


@pytest.fixture
def card() -> Card:
    return Card()


def functions() -> list[str]:
    return sorted(name for name in dir(EmulatedNvml) if name.startswith("nvml"))


@pytest.mark.parametrize("name", functions())
def test_every_function_is_one_of_pynvml_with_its_parameters(name: str) -> None:
    theirs = inspect.signature(inspect.unwrap(getattr(pynvml, name))).parameters.values()
    ours = list(inspect.signature(getattr(EmulatedNvml, name)).parameters.values())[1:]
    if [parameter.name for parameter in ours][:1] == ["state"] or "card" in str(ours):
        ours = ours[1:]  # the card in place of the handle
    required = [p for p in theirs if p.default is p.empty]
    assert len([p for p in ours if p.default is p.empty]) == len(required)


def test_nothing_answers_before_init() -> None:
    nvml = EmulatedNvml([CardState(find_profile("h200"))])
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetName(handle)


def test_constants_structures_and_errors_are_pynvmls(card: Card) -> None:
    assert card.nvml.NVML_TOTAL_POWER_SAMPLES == pynvml.NVML_TOTAL_POWER_SAMPLES
    assert card.nvml.NVMLError_NoPermission is pynvml.NVMLError_NoPermission
    assert card.nvml.c_nvmlFieldValue_t is pynvml.c_nvmlFieldValue_t
    assert not hasattr(card.nvml, "nvmlDeviceGetSomethingElse")


def test_what_is_not_emulated_is_a_missing_function(card: Card) -> None:
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        card.nvml.nvmlDeviceGetFanSpeed(card.handle)


def test_errors_have_words(card: Card) -> None:
    assert card.nvml.nvmlErrorString(4) == "Insufficient Permissions"


@pytest.mark.parametrize("handle", [None, 0, "GPU-1"])
def test_something_else_is_no_handle(card: Card, handle: object) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.nvml.nvmlDeviceGetName(handle)


def test_cards_are_found_by_index_uuid_and_address() -> None:
    card = Card(count=3)
    assert card.nvml.nvmlDeviceGetCount() == 3
    second = card.nvml.nvmlDeviceGetHandleByIndex(1)
    uuid = card.nvml.nvmlDeviceGetUUID(second)
    address = card.nvml.nvmlDeviceGetPciInfo(second).busId
    assert uuid == card.states[1].uuid
    assert card.nvml.nvmlDeviceGetHandleByUUID(uuid) == second
    assert card.nvml.nvmlDeviceGetHandleByUUID(uuid.encode()) == second
    for spelled in (address, address.lower(), address[4:], address.encode()):
        assert card.nvml.nvmlDeviceGetHandleByPciBusId(spelled) == second
    assert card.nvml.nvmlDeviceGetIndex(second) == 1
    assert card.nvml.nvmlDeviceGetMinorNumber(second) == 1


def test_what_is_not_there_is_not_found(card: Card) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.nvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.nvml.nvmlDeviceGetHandleByUUID("GPU-0")
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.nvml.nvmlDeviceGetHandleByPciBusId("00000000:FF:00.0")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_card_says_what_it_is(profile: str) -> None:
    card, gpu = Card(profile), find_profile(profile)
    major, minor = card.nvml.nvmlDeviceGetCudaComputeCapability(card.handle)
    assert f"sm_{major}{minor}" == gpu.architecture
    assert card.ask("nvmlDeviceGetName") == gpu.name
    assert card.nvml.nvmlDeviceGetMemoryInfo(card.handle).total == gpu.memory_mib << 20
    assert card.ask("nvmlDeviceGetPowerManagementDefaultLimit") == gpu.default_limit_w * 1000
    assert card.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM) == gpu.max_clock_mhz
    assert card.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM) == gpu.memory_clock_mhz
    assert card.ask("nvmlDeviceGetPersistenceMode") == pynvml.NVML_FEATURE_ENABLED
    assert card.ask("nvmlDeviceGetPowerManagementMode") == pynvml.NVML_FEATURE_ENABLED
    assert card.ask("nvmlDeviceGetVirtualizationMode") == 0


def test_versions_say_that_it_is_emulated(card: Card) -> None:
    assert card.nvml.nvmlSystemGetDriverVersion() == "emulated"
    assert card.nvml.nvmlSystemGetNVMLVersion() == "emulated"
    assert card.nvml.nvmlSystemGetCudaDriverVersion_v2() >= 12000


def test_memory_info_has_its_second_version(card: Card) -> None:
    memory = card.nvml.nvmlDeviceGetMemoryInfo(card.handle, version=pynvml.nvmlMemory_v2)
    assert memory.version == pynvml.nvmlMemory_v2
    assert memory.used + memory.free == memory.total


def test_mig_is_off_where_there_is_mig(card: Card) -> None:
    assert card.ask("nvmlDeviceGetMigMode") == [0, 0]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        Card("rtx4090").ask("nvmlDeviceGetMigMode")


def test_a_limit_within_the_constraints_is_set(card: Card) -> None:
    least, most = card.nvml.nvmlDeviceGetPowerManagementLimitConstraints(card.handle)
    assert (least, most) == (200_000, 700_000)
    for limit in (least, 333_333, most):
        card.nvml.nvmlDeviceSetPowerManagementLimit(card.handle, limit)
        assert card.ask("nvmlDeviceGetPowerManagementLimit") == limit
        assert card.ask("nvmlDeviceGetEnforcedPowerLimit") == limit


@pytest.mark.parametrize("limit", [0, 199_999, 700_001])
def test_a_limit_outside_them_is_an_invalid_argument(card: Card, limit: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.nvml.nvmlDeviceSetPowerManagementLimit(card.handle, limit)
    assert card.ask("nvmlDeviceGetPowerManagementLimit") == 700_000


def test_a_limit_is_an_integer(card: Card) -> None:
    with pytest.raises(TypeError, match="integer number of milliwatts"):
        card.nvml.nvmlDeviceSetPowerManagementLimit(card.handle, 300_000.0)


def test_the_counter_moves_every_100_ms_and_a_read_takes_milliseconds(card: Card) -> None:
    changes, last, begin_ns = [], None, card.state.spend(0).now_ns
    for _ in range(400):
        value = card.ask("nvmlDeviceGetTotalEnergyConsumption")
        if value != last:
            changes.append(card.state.spend(0).now_ns)
            last = value
    read_ms = (card.state.spend(0).now_ns - begin_ns) / 400 / 1e6
    period_ms = (changes[-1] - changes[1]) / (len(changes) - 2) / 1e6
    assert read_ms == pytest.approx(3.5, rel=0.02)
    assert period_ms == pytest.approx(100, rel=0.02)


def test_the_counter_counts_what_the_load_draws(card: Card) -> None:
    card.load(420.0)
    card.sleep(1.0)
    begin_mj = card.nvml.nvmlDeviceGetTotalEnergyConsumption(card.handle)
    begin_ns = card.state.spend(0).sensor_edge_ns()
    card.sleep(4.0)
    end_mj = card.nvml.nvmlDeviceGetTotalEnergyConsumption(card.handle)
    seconds = (card.state.spend(0).sensor_edge_ns() - begin_ns) / 1e9
    assert (end_mj - begin_mj) / 1e3 / seconds == pytest.approx(420, rel=0.006)


def test_all_sources_of_power_agree_in_a_steady_state(card: Card) -> None:
    card.load(420.0)
    card.sleep(3.0)
    kind, samples = card.nvml.nvmlDeviceGetSamples(card.handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    sampled = sum(sample.sampleValue.uiVal for sample in samples) / len(samples)
    usage = card.ask("nvmlDeviceGetPowerUsage")
    assert usage == pytest.approx(sampled, rel=0.003)
    assert card.field(pynvml.NVML_FI_DEV_POWER_AVERAGE).value.uiVal == pytest.approx(
        usage, rel=1e-6
    )
    assert card.field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal == pytest.approx(
        usage, rel=0.02
    )


def test_samples_are_119_at_most_20_ms_apart_and_only_new_ones_come(card: Card) -> None:
    card.sleep(1.0)
    _, samples = card.nvml.nvmlDeviceGetSamples(card.handle, 0, 0)
    stamps = [sample.timeStamp for sample in samples]
    assert len(stamps) == 119
    assert {b - a for a, b in pairwise(stamps)} == {20_000}
    assert stamps[-1] <= card.state.spend(0).now_ns // 1000
    _, newer = card.nvml.nvmlDeviceGetSamples(card.handle, 0, stamps[-3])
    assert [sample.timeStamp for sample in newer][:2] == stamps[-2:]
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.nvml.nvmlDeviceGetSamples(card.handle, 0, stamps[-1] + 10**9)


def test_other_samples_are_not_supported(card: Card) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        card.nvml.nvmlDeviceGetSamples(card.handle, pynvml.NVML_PROCESSOR_CLK_SAMPLES, 0)


def test_average_power_lags_a_second_and_instant_power_does_not(card: Card) -> None:
    card.load(500.0)
    card.sleep(0.45)
    assert card.ask("nvmlDeviceGetPowerUsage") < 350_000
    assert card.field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal > 480_000


def test_ga100_reads_no_average() -> None:
    a100 = Card("a100")
    a100.load(300.0)
    a100.sleep(0.3)
    assert a100.ask("nvmlDeviceGetPowerUsage") > 280_000


def test_field_values_have_types_and_their_own_return_codes(card: Card) -> None:
    values = card.nvml.nvmlDeviceGetFieldValues(
        card.handle,
        [
            pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
            (pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_POWER_SCOPE_MODULE),
            pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT,
            pynvml.NVML_FI_DEV_POWER_MAX_LIMIT,
            1,
        ],
    )
    assert [value.nvmlReturn for value in values] == [0, 3, 0, 0, 3]
    assert values[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert values[0].value.ullVal > 0
    assert values[2].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert (values[2].value.uiVal, values[3].value.uiVal) == (700_000, 700_000)
    assert values[1].fieldId == 186
    assert values[1].scopeId == pynvml.NVML_POWER_SCOPE_MODULE


def test_an_idle_card_says_so(card: Card) -> None:
    assert card.ask("nvmlDeviceGetCurrentClocksEventReasons") == 0x1
    assert card.nvml.nvmlDeviceGetUtilizationRates(card.handle).gpu == 0
    assert card.ask("nvmlDeviceGetComputeRunningProcesses") == []
    assert card.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM) < 500


def test_a_load_shows(card: Card) -> None:
    card.load(420.0)
    rates = card.nvml.nvmlDeviceGetUtilizationRates(card.handle)
    processes = card.nvml.nvmlDeviceGetComputeRunningProcesses_v3(card.handle)
    assert (rates.gpu, rates.memory) == (100, 10)
    assert [process.pid for process in processes] == [os.getpid()]
    assert card.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_GRAPHICS) == 1980
    assert card.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM) == 3201
    assert card.ask("nvmlDeviceGetCurrentClocksEventReasons") == 0


def test_a_cap_that_binds_lowers_power_and_clock_and_gives_the_reason(card: Card) -> None:
    card.nvml.nvmlDeviceSetPowerManagementLimit(card.handle, 300_000)
    card.load(420.0)
    card.sleep(1.5)
    assert 270_000 < card.nvml.nvmlDeviceGetPowerUsage(card.handle) <= 300_000
    assert card.nvml.nvmlDeviceGetClockInfo(card.handle, pynvml.NVML_CLOCK_SM) < 1900
    assert card.ask("nvmlDeviceGetCurrentClocksEventReasons") == 0x4
    assert card.ask("nvmlDeviceGetCurrentClocksThrottleReasons") == 0x4
    assert card.nvml.nvmlDeviceGetSupportedClocksEventReasons(card.handle) & 0x4


def test_temperature_is_the_gpus(card: Card) -> None:
    assert 25 <= card.nvml.nvmlDeviceGetTemperature(card.handle, 0) <= 45
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.nvml.nvmlDeviceGetTemperature(card.handle, 7)
