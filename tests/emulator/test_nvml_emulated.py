"""The emulated NVML answers as pynvml does."""

from __future__ import annotations

import inspect
import os
from itertools import pairwise

import pynvml
import pytest
from emulated_card import Card

from pytest_gpuenergy.emulator import (
    PROFILES,
    CardState,
    EmulatedNvml,
    find_profile,
)

SECOND_NS = 10**9


@pytest.fixture
def card() -> Card:
    return Card()


def functions() -> list[str]:
    return sorted(name for name in dir(EmulatedNvml) if name.startswith("nvml"))


@pytest.mark.parametrize("name", functions())
def test_every_function_is_one_of_pynvml_with_its_parameters(name):
    theirs = inspect.signature(inspect.unwrap(getattr(pynvml, name))).parameters.values()
    ours = list(inspect.signature(getattr(EmulatedNvml, name)).parameters.values())[1:]
    if [parameter.name for parameter in ours][:1] == ["state"] or "card" in str(ours):
        ours = ours[1:]  # the card in place of the handle
    required = [p for p in theirs if p.default is p.empty]
    assert len([p for p in ours if p.default is p.empty]) == len(required)


def test_nothing_answers_before_init():
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


def test_constants_structures_and_errors_are_pynvmls(card):
    assert card.nvml.NVML_TOTAL_POWER_SAMPLES == pynvml.NVML_TOTAL_POWER_SAMPLES
    assert card.nvml.NVMLError_NoPermission is pynvml.NVMLError_NoPermission
    assert card.nvml.c_nvmlFieldValue_t is pynvml.c_nvmlFieldValue_t
    assert card.nvml.nvmlErrorString(4) == "Insufficient Permissions"
    assert not hasattr(card.nvml, "nvmlDeviceGetSomethingElse")
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        card.ask("FanSpeed")


def test_cards_are_found_by_index_uuid_and_address():
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


def test_what_is_not_there_is_not_found(card):
    for handle in (None, 0, "GPU-1"):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            card.nvml.nvmlDeviceGetName(handle)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.nvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.nvml.nvmlDeviceGetHandleByUUID("GPU-0")
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.nvml.nvmlDeviceGetHandleByPciBusId("00000000:FF:00.0")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_card_says_what_it_is(profile):
    card, gpu = Card(profile), find_profile(profile)
    major, minor = card.ask("CudaComputeCapability")
    assert f"sm_{major}{minor}" == gpu.architecture
    assert card.ask("Name") == gpu.name
    assert card.ask("MemoryInfo").total == gpu.memory_mib << 20
    assert card.ask("PowerManagementDefaultLimit") == gpu.default_limit_w * 1000
    assert card.ask("MaxClockInfo", pynvml.NVML_CLOCK_SM) == gpu.max_clock_mhz
    assert card.ask("MaxClockInfo", pynvml.NVML_CLOCK_MEM) == gpu.memory_clock_mhz
    assert card.ask("PersistenceMode") == pynvml.NVML_FEATURE_ENABLED
    assert card.ask("PowerManagementMode") == pynvml.NVML_FEATURE_ENABLED
    assert card.ask("VirtualizationMode") == 0


def test_versions_say_that_it_is_emulated(card):
    assert card.nvml.nvmlSystemGetDriverVersion() == "emulated"
    assert card.nvml.nvmlSystemGetNVMLVersion() == "emulated"
    assert card.nvml.nvmlSystemGetCudaDriverVersion_v2() >= 12000
    memory = card.ask("MemoryInfo", version=pynvml.nvmlMemory_v2)
    assert memory.version == pynvml.nvmlMemory_v2
    assert memory.used + memory.free == memory.total


def test_mig_is_off_where_there_is_mig(card):
    assert card.ask("MigMode") == [0, 0]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        Card("rtx4090").ask("MigMode")


def test_a_limit_within_the_constraints_is_set(card):
    least, most = card.ask("PowerManagementLimitConstraints")
    assert (least, most) == (200_000, 700_000)
    for limit in (least, 333_333, most):
        card.set_limit(limit)
        assert card.ask("PowerManagementLimit") == limit
        assert card.ask("EnforcedPowerLimit") == limit
    for limit in (0, least - 1, most + 1):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            card.set_limit(limit)
    with pytest.raises(TypeError, match="integer number of milliwatts"):
        card.set_limit(300_000.0)
    assert card.ask("PowerManagementLimit") == most


def test_the_counter_moves_every_100_ms_and_a_read_takes_milliseconds(card):
    changes, last, begin_ns = [], None, card.state.spend(0).now_ns
    for _ in range(400):
        value = card.ask("TotalEnergyConsumption")
        if value != last:
            changes.append(card.state.spend(0).now_ns)
            last = value
    read_ms = (card.state.spend(0).now_ns - begin_ns) / 400 / 1e6
    period_ms = (changes[-1] - changes[1]) / (len(changes) - 2) / 1e6
    assert read_ms == pytest.approx(3.5, rel=0.02)
    assert period_ms == pytest.approx(100, rel=0.02)


def test_the_counter_counts_what_the_load_draws(card):
    card.load(420.0)
    card.sleep(1.0)
    begin_mj = card.ask("TotalEnergyConsumption")
    begin_ns = card.state.spend(0).sensor_edge_ns()
    card.sleep(4.0)
    end_mj = card.ask("TotalEnergyConsumption")
    seconds = (card.state.spend(0).sensor_edge_ns() - begin_ns) / 1e9
    assert (end_mj - begin_mj) / 1e3 / seconds == pytest.approx(420, rel=0.006)


def test_all_sources_of_power_agree_in_a_steady_state(card):
    card.load(420.0)
    card.sleep(3.0)
    kind, samples = card.ask("Samples", pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    sampled = sum(sample.sampleValue.uiVal for sample in samples) / len(samples)
    usage = card.ask("PowerUsage")
    assert usage == pytest.approx(sampled, rel=0.003)
    for field, error in (("AVERAGE", 1e-6), ("INSTANT", 0.02)):
        value = card.field(getattr(pynvml, f"NVML_FI_DEV_POWER_{field}")).value
        assert value.uiVal == pytest.approx(usage, rel=error)


def test_samples_are_119_at_most_20_ms_apart_and_only_new_ones_come(card):
    card.sleep(1.0)
    _, samples = card.ask("Samples", 0, 0)
    stamps = [sample.timeStamp for sample in samples]
    assert len(stamps) == 119
    assert {b - a for a, b in pairwise(stamps)} == {20_000}
    assert stamps[-1] <= card.state.spend(0).now_ns // 1000
    _, newer = card.ask("Samples", 0, stamps[-3])
    assert [sample.timeStamp for sample in newer][:2] == stamps[-2:]
    with pytest.raises(pynvml.NVMLError_NotFound):
        card.ask("Samples", 0, stamps[-1] + 10**9)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        card.ask("Samples", pynvml.NVML_PROCESSOR_CLK_SAMPLES, 0)


def test_average_power_lags_a_second_and_instant_power_does_not(card):
    card.load(500.0)
    card.sleep(0.45)
    assert card.ask("PowerUsage") < 350_000
    assert card.field(pynvml.NVML_FI_DEV_POWER_INSTANT).value.uiVal > 480_000
    a100 = Card("a100")  # reads no average
    a100.load(300.0)
    a100.sleep(0.3)
    assert a100.ask("PowerUsage") > 280_000


def test_field_values_have_types_and_their_own_return_codes(card):
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


def test_an_idle_card_says_so(card):
    assert card.ask("CurrentClocksEventReasons") == 0x1
    assert card.ask("UtilizationRates").gpu == 0
    assert card.ask("ComputeRunningProcesses") == []
    assert card.ask("ClockInfo", pynvml.NVML_CLOCK_SM) < 500


def test_a_load_shows(card):
    card.load(420.0)
    rates = card.ask("UtilizationRates")
    processes = card.ask("ComputeRunningProcesses_v3")
    assert (rates.gpu, rates.memory) == (100, 10)
    assert [process.pid for process in processes] == [os.getpid()]
    assert card.ask("ClockInfo", pynvml.NVML_CLOCK_GRAPHICS) == 1980
    assert card.ask("ClockInfo", pynvml.NVML_CLOCK_MEM) == 3201
    assert card.ask("CurrentClocksEventReasons") == 0


def test_a_cap_that_binds_lowers_power_and_clock_and_gives_the_reason(card):
    card.set_limit(300_000)
    card.load(420.0)
    card.sleep(1.5)
    assert 270_000 < card.ask("PowerUsage") <= 300_000
    assert card.ask("ClockInfo", pynvml.NVML_CLOCK_SM) < 1900
    assert card.ask("CurrentClocksEventReasons") == 0x4
    assert card.ask("CurrentClocksThrottleReasons") == 0x4
    assert card.ask("SupportedClocksEventReasons") & 0x4


def test_temperature_is_the_gpus(card):
    assert 25 <= card.ask("Temperature", 0) <= 45
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        card.ask("Temperature", 7)
