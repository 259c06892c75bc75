"""Faults on demand: what NVML, launches and measurements make of them, and which are refused."""

from __future__ import annotations

import contextlib
import json
import os

import pynvml
import pytest
from emulated_card import Card
from hypothesis import HealthCheck, example, given, settings, strategies as st

from pytest_gpuenergy.emulator import (
    ALIASES,
    ERRORS,
    EVENTS,
    PROFILES,
    CardState,
    Demand,
    Fault,
    VirtualRepeater,
    parse_faults,
)
from pytest_gpuenergy.support import GpuEnergyError, InputError

CALLS = {
    "power_limit": lambda nvml, handle: nvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000),
    "clock_lock": lambda nvml, handle: nvml.nvmlDeviceSetGpuLockedClocks(handle, 1500, 1500),
    "clock_reset": lambda nvml, handle: nvml.nvmlDeviceResetGpuLockedClocks(handle),
    "energy": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
    "power": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle),
    "samples": lambda nvml, handle: nvml.nvmlDeviceGetSamples(handle, 0, 0),
    "fields": lambda nvml, handle: nvml.nvmlDeviceGetFieldValues(handle, [186]),
    "temperature": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0),
    "processes": lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
    "init": lambda nvml, _handle: nvml.nvmlInit(),
}


@pytest.fixture
def card() -> Card:
    return Card()


def test_every_alias_is_tried_here():
    assert CALLS.keys() == ALIASES.keys()


@pytest.mark.parametrize("what", CALLS)
def test_a_named_function_fails_and_recovers_when_the_fault_is_withdrawn(card, what):
    identity = card.inject(what, "no_permission")
    assert [active.owner.pid for active in card.state.spend(0).faults] == [os.getpid()]
    with pytest.raises(pynvml.NVMLError_NoPermission):
        CALLS[what](card.nvml, card.handle)
    card.state.withdraw(identity)
    CALLS[what](card.nvml, card.handle)


@pytest.mark.parametrize(("name", "constant"), ERRORS.items())
def test_every_error_is_the_one_of_pynvml(card, name, constant):
    card.inject("nvmlDeviceGetName", name)
    with pytest.raises(pynvml.NVMLError) as raised:
        card.ask("Name")
    assert raised.value.value == getattr(pynvml, constant)


def test_an_error_waits_for_its_calls_or_its_time_and_ends(card):
    def read() -> str:
        try:
            card.ask("PowerUsage")
        except pynvml.NVMLError_Unknown:
            return "unknown"
        return "power"

    calls = card.inject("power", {"error": "unknown", "after_calls": 2})
    assert [read() for _ in range(4)] == ["power", "power", "unknown", "unknown"]
    card.state.withdraw(calls)
    card.inject("power", {"error": "unknown", "after_s": 1.0, "lasts_s": 2.0})
    answers = [read()]
    for seconds in (1.1, 2.0):
        card.sleep(seconds)
        answers.append(read())
    assert answers == ["power", "unknown", "power"]


def test_a_lost_gpu_answers_nothing(card):
    card.inject("any", "gpu_is_lost")
    for what, call in CALLS.items():
        if what != "init":
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                call(card.nvml, card.handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        card.nvml.nvmlDeviceGetHandleByIndex(0)


def test_a_refused_limit_is_not_set(card):
    card.inject("power_limit", "no_permission")
    with pytest.raises(pynvml.NVMLError_NoPermission):
        card.set_limit(300_000)
    assert card.ask("PowerManagementLimit") == 700_000


def test_a_driver_mismatch_shows_at_init_and_mig_can_be_on(card):
    card.inject("mig")
    assert card.ask("MigMode") == [1, 1]
    card.inject("driver_mismatch")
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        card.nvml.nvmlInit()


def test_a_counter_that_is_reset_begins_at_zero(card):
    card.load()
    card.inject("counter_reset", {"after_s": 1.0})
    before_mj = card.ask("TotalEnergyConsumption")
    card.sleep(0.8)
    assert card.ask("TotalEnergyConsumption") > before_mj
    card.sleep(1.0)
    assert 0 < card.ask("TotalEnergyConsumption") < 420_000
    assert card.ask("TotalEnergyConsumption") < before_mj + 420_000


def test_a_stuck_counter_stands_still_and_jumps_when_it_recovers(card):
    card.load()
    card.inject("counter_stuck", {"after_s": 0.5, "lasts_s": 3.0})
    card.sleep(1.0)
    stuck_mj = card.ask("TotalEnergyConsumption")
    card.sleep(2.0)
    assert card.ask("TotalEnergyConsumption") == stuck_mj
    card.sleep(2.0)
    assert card.ask("TotalEnergyConsumption") > stuck_mj + 1_000_000


def test_a_missing_field_has_a_return_code(card):
    card.inject("field_missing", {"field": 186})
    missing, there = card.ask("FieldValues", [186, 185])
    assert missing.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert there.nvmlReturn == pynvml.NVML_SUCCESS


def test_somebody_else_changes_the_limit(card):
    card.load()
    card.inject("limit_changed", {"power_w": 300, "after_s": 1.0})
    assert card.ask("PowerManagementLimit") == 700_000
    card.sleep(2.5)
    assert card.ask("PowerManagementLimit") == 300_000
    assert card.ask("PowerUsage") <= 300_000


def test_the_enforced_limit_can_be_lower_than_the_requested(card):
    card.load()
    card.inject("enforced_limit", {"power_w": 250})
    card.set_limit(400_000)
    assert card.ask("PowerManagementLimit") == 400_000
    assert card.ask("EnforcedPowerLimit") == 250_000
    card.sleep(1.5)
    assert card.ask("PowerUsage") <= 250_000


@pytest.mark.parametrize(("what", "bits"), [("thermal_throttle", 0x20), ("power_brake", 0x88)])
def test_protection_lowers_the_clock_and_gives_its_reason(card, what, bits):
    card.load()
    free_mhz = card.ask("ClockInfo", pynvml.NVML_CLOCK_SM)
    card.inject(what, {"after_s": 0.5, "lasts_s": 1.0})
    assert card.ask("CurrentClocksEventReasons") == 0
    card.sleep(0.8)
    assert card.ask("CurrentClocksEventReasons") == bits
    assert card.ask("ClockInfo", pynvml.NVML_CLOCK_SM) < 0.75 * free_mhz
    card.sleep(1.0)
    assert card.ask("CurrentClocksEventReasons") == 0


def test_a_card_can_become_slower_without_a_word(card):
    card.load()
    card.inject("slower", {"percent": 25, "after_s": 1.0, "lasts_s": 1.0})
    runs = []
    for _ in range(4):
        before = card.runs()
        card.sleep(0.5)
        runs.append(card.runs() - before)
        assert card.ask("CurrentClocksEventReasons") == 0
    assert runs[2] == pytest.approx(runs[0] / 1.25, rel=0.01)
    card.sleep(0.1)
    before = card.runs()
    card.sleep(0.5)
    assert card.runs() - before == pytest.approx(runs[0], rel=0.01)


def test_a_foreign_process_appears_and_draws_power(card):
    card.inject("foreign_process", {"pid": 4711, "power_w": 120, "after_s": 1.0})
    assert card.ask("ComputeRunningProcesses") == []
    card.sleep(2.5)
    processes = card.ask("ComputeRunningProcesses")
    assert [process.pid for process in processes] == [4711]
    assert card.ask("PowerUsage") == pytest.approx(218_000, rel=0.02)


@pytest.mark.slow
def test_another_process_meets_the_fault_too(card, python):
    card.inject("power", "unknown")
    code = (
        "nvml = EmulatedNvml([CardState(DEFAULT_PROFILE)]); nvml.nvmlInit()\n"
        "handle = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        "try: nvml.nvmlDeviceGetPowerUsage(handle)\n"
        "except nvml.NVMLError_Unknown: print('struck')\n"
    )
    answer = python.run(code)
    assert answer.stdout == "struck\n", answer.stderr


def test_a_fault_ends_with_the_process_that_injected_it(card, python):
    code = "CardState(DEFAULT_PROFILE).inject(Fault.of('power', 'unknown'))"
    assert python.run(code).returncode == 0
    card.ask("PowerUsage")
    assert card.state.spend(0).faults == []


def test_the_variable_takes_several_faults_of_a_kind():
    faults = parse_faults(
        '{"power_limit": "no_permission", "mig": true,'
        ' "foreign_process": [{"pid": 1}, {"pid": 2, "after_s": 3}]}'
    )
    assert faults == (
        Fault("error", "nvmlDeviceSetPowerManagementLimit", "no_permission"),
        Fault("mig"),
        Fault("foreign_process", pid=1),
        Fault("foreign_process", pid=2, after_s=3),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "GPUENERGY_EMULATED_FAULTS is not JSON"),
        ("[]", "must be a JSON object of faults"),
        ("[" * 100_000, "GPUENERGY_EMULATED_FAULTS is not JSON"),
        ('{"slower": {"percent": NaN}}', "must be a number from 0 to 100000"),
        ('{"powerlimit": "unknown"}', "no fault 'powerlimit': choose an NVML function's name or"),
        ('{"power": "sunspots"}', "no error 'sunspots' for the fault 'power': choose one of"),
        ('{"power": true}', "the fault 'power' needs the option 'error'"),
        ('{"power": 5}', "takes an error's name, true or an object, not 5"),
        ('{"power": {"error": 5}}', "option 'error' of the fault 'power' must be a name"),
        ('{"mig": {"until": 5}}', "no option 'until': choose from after_calls"),
        ('{"mig": {"error": "unknown"}}', "takes neither error nor after_calls"),
        ('{"mig": {"after_s": -1}}', "must be a number from 0 to 1000000000"),
        ('{"mig": {"after_s": true}}', "must be a number from 0 to 1000000000"),
        ('{"field_missing": true}', "needs the option 'field'"),
        ('{"foreign_process": {"pid": 1.5}}', "must be a whole number from 0 to 2147483647"),
        ('{"limit_changed": {"power_w": 0.9}}', "must be a number from 1 to 50000"),
        ('{"foreign_process": {"pid": 1, "power_w": 50001}}', "must be a number from 0 to 50000"),
    ],
)
def test_what_is_not_understood_is_told(text, message):
    with pytest.raises(InputError) as error:
        parse_faults(text)
    assert message.lower() in str(error.value).lower()


@given(st.text(max_size=60))
def test_any_text_is_faults_or_an_input_error(text):
    with contextlib.suppress(InputError):
        assert isinstance(parse_faults(text), tuple)


LONG = "x" * 70_000


def test_a_name_of_any_length_fits_the_message():
    for faults in (
        *({LONG: True}, {LONG: "no_permission"}, {LONG: {"after_s": "soon"}}),
        *({"power_limit": LONG}, {"power_limit": [[LONG]]}),
        *({"slower": {LONG: 1}}, {"slower": {"percent": LONG}}),
    ):
        with pytest.raises(InputError) as caught:
            parse_faults(json.dumps(faults))
        assert len(str(caught.value)) < 1000


NUMBERS = st.one_of(
    st.integers(-1, 10**30),
    st.floats(allow_nan=True),
    st.sampled_from([0, 0.5, 1, 1.0, 699.9, 5e4, 6e4, 1e5, 9e8, 1e9, 2**31 - 1, 2**31, 2**62]),
)
OPTIONS = ("after_s", "lasts_s", "power_w", "percent", "pid", "field", "after_calls")
LONG_RUN = Demand(2.0, 600.0, 0.3, 0.3)
SHORT_RUN = Demand(1e-4, 600.0, 0.3, 0.3)
FOREIGN = "foreign_process"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    profile=st.sampled_from(sorted(PROFILES)),
    demand=st.sampled_from([LONG_RUN, SHORT_RUN]),
    what=st.sampled_from(sorted([*EVENTS, "power", "energy"])),
    options=st.dictionaries(st.sampled_from(OPTIONS), NUMBERS, max_size=3),
)
@example("h200", SHORT_RUN, FOREIGN, {"pid": 1, "power_w": 5e4})
@example("h200", SHORT_RUN, FOREIGN, {"pid": 2**31 - 1, "power_w": 6e4})
@example("v100", SHORT_RUN, FOREIGN, {"pid": 10**30})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 0.5})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 1})
@example("h200", SHORT_RUN, "limit_changed", {"power_w": 5e4})
@example("h200", LONG_RUN, "enforced_limit", {"power_w": 1})
@example("h200", LONG_RUN, "slower", {"percent": 1e5})
def test_a_number_is_refused_or_the_card_goes_on(
    monkeypatch, tmp_path_factory, profile, demand, what, options
):
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
    named = {**options, **({} if what in EVENTS else {"error": "unknown"})}
    try:
        fault = Fault.of(what, named)
    except InputError as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused
    if refused:
        return
    card = CardState(PROFILES[profile])
    identity = card.inject(fault)
    repeater = VirtualRepeater(card, demand, 1e7, 1)
    with contextlib.suppress(GpuEnergyError):
        repeater.start()
        card.spend(3_000_000_000)
        repeater.abandon()
    again = CardState(PROFILES[profile])  # reads the file: a damaged one would be a warning
    drawn_w = again.spend(0).energy.power_mw / 1000
    assert 0 < drawn_w <= PROFILES[profile].max_limit_w
    again.withdraw(identity)


def test_a_greedy_process_heats_the_card_no_more_than_its_limit_allows(
    monkeypatch, tmp_path_factory
):
    monkeypatch.setenv("GPUENERGY_STATE", str(tmp_path_factory.mktemp("state")))
    card = CardState(PROFILES["h200"])
    identity = card.inject(Fault.of(FOREIGN, {"pid": 1, "power_w": 5e4}))
    assert 40 < card.spend(300_000_000_000).temperature_c < 100
    card.withdraw(identity)
