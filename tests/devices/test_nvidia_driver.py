"""What NVIDIA's driver may answer, through the real binding: in part, late, oddly or not at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_python import ForkedPython, open_forked_python
from nvidia_driver import BEGINNING, ENDING, READY, Driver, build_driver, needs_compiler

pytestmark = needs_compiler
FIRST, SECOND = (f"GPU-{'-'.join(n * size for size in (8, 4, 4, 4, 12))}" for n in "12")
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
IDS = "found = sorted(one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle))"
READINGS = """
from dataclasses import asdict
from pytest_gpuenergy.control import enforced_setpoint, read_limits, supported_clocks
from pytest_gpuenergy.energy import (
    CardSamples, choose_source, power_by_samples_w, cuda_process_ids, read_conditions
)
from pytest_gpuenergy.opening import nvml_gpu
from pytest_gpuenergy.commands.doctor import check_gpus
from pytest_gpuenergy.fleet.probe import probe_host
from pytest_gpuenergy.support import DeviceError

def enforced_limit(gpu):
    return enforced_setpoint(gpu).power_limit_w

def readings(gpu):
    "Yield each reading of the card, or the sentence of its error."
    for read in (read_conditions, read_limits, supported_clocks, enforced_limit, cuda_process_ids,
                 lambda gpu: choose_source(gpu).name, lambda gpu: CardSamples(gpu).new(),
                 lambda gpu: power_by_samples_w(gpu, 1.0)):
        try:
            yield str(read(gpu))
        except DeviceError as error:
            yield str(error)
"""
EVERY = """
import ctypes, json, os, sys, traceback
import pynvml
from pytest_gpuenergy.devices import load_nvml
functions = sys.argv[1].split()
for function in functions:
    if os.fork() == 0:
        get = pynvml._nvmlGetFunctionPointer
        def lacking(name):
            if name == function:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return get(name)
        pynvml._nvmlGetFunctionPointer = lacking
        try:
            [*check_gpus()], probe_host()
            [*readings(nvml_gpu(load_nvml(), sys.argv[2]))]
        except DeviceError as error:
            print(function, "ends in", str(error).count(chr(10)), flush=True)
        except BaseException:
            print(function, traceback.format_exc(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def python() -> Iterator[ForkedPython]:
    with open_forked_python(READY, LD_LIBRARY_PATH=".") as opened:
        yield opened


@pytest.fixture(scope="module")
def driver(python: ForkedPython, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """A complete driver."""
    return Driver(build_driver(tmp_path_factory.mktemp("driver")), python)


@pytest.fixture
def incomplete(python: ForkedPython, tmp_path: Path) -> Callable[..., Driver]:
    """Build a driver that lacks something, as `build_driver` does."""
    return lambda **lacks: Driver(build_driver(tmp_path, **lacks), python)


@pytest.mark.slow
def test_gpus_are_found_in_cudas_order(driver):
    found = driver.value("found = [one.uuid for one in gpus]", STUB_CUDA="21")
    assert found == [SECOND, FIRST]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("NVIDIA A10", "NVIDIA A10"),
        ("", "unnamed GPU"),
        ("  ", "unnamed GPU"),
        ("N\xe9on 5090", "N\ufffdon 5090"),
        ("two\nlines\t\x1b[31m", "two\ufffdlines\ufffd\ufffd[31m"),
    ],
)
def test_a_name_is_one_printable_line(driver, name, shown):
    raw = os.fsdecode(name.encode("latin-1"))  # a byte that is not UTF-8
    assert driver.value("found = gpu.name", STUB_NAME=raw) == shown


@pytest.mark.parametrize(("count", "latecomers"), [(0, 40), (1, 0), (1, 40), (300, 1), (300, 40)])
def test_processes_are_listed_whatever_starts_meanwhile(driver, count, latecomers):
    stub = {"STUB_PROCESSES": str(count), "STUB_LATECOMERS": str(latecomers)}
    expected = [300 + number for number in range(count + latecomers if count else 0)]
    assert driver.value(IDS, **stub) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "first"), [((), 300), (("_v3",), 200), (("_v3", "_v2"), 100), (("_v2",), 300)]
)
def test_processes_are_listed_by_any_version_of_the_function(incomplete, without, first):
    driver = incomplete(without=[f"{PROCESSES}{one}" for one in without])
    assert driver.value(IDS, STUB_PROCESSES="2") == [first, first + 1]


def test_without_any_version_the_doctor_says_so(incomplete):
    every = [f"{PROCESSES}{version}" for version in ("", "_v2", "_v3")]
    checks = doctor(incomplete(without=every))
    assert checks["GPU 0 other processes"].endswith(f"lacks {PROCESSES}")


@pytest.mark.slow
@pytest.mark.slow
def test_a_driver_of_which_any_function_is_missing_is_told_in_sentences(driver):
    source = Path(__file__).parents[1].joinpath("nvidia_stub/nvml.c").read_text()
    functions = re.findall(r"^(?:CALL|TELL|RUNNING)\((nvml\w+)", source, flags=re.MULTILINE)
    assert len(functions) > 25
    output = driver.run(READINGS + EVERY, " ".join(functions), FIRST)
    ended = dict(line.split(" ends in ") for line in output.splitlines())
    assert set(ended.values()) <= {"0"}
    assert set(ended) <= {
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetName",
    }


def readings(driver: Driver, **stub: str) -> list[str]:
    found: list[str] = driver.value(f"{READINGS}\nfound = [*readings(gpu)]", **stub)
    return found


def test_readings_that_a_card_does_not_support_are_left_out(driver):
    fails = ("Temperature", "ClockInfo", "CurrentClocksEventReasons", "PowerManagementLimit")
    stub = " ".join(f"nvmlDeviceGet{one}=3" for one in (*fails, "EnforcedPowerLimit", "Samples"))
    conditions, limits, _, enforced, _, source, samples, power = readings(driver, STUB_FAIL=stub)
    assert "temperature_c=None, sm_clock_mhz=None, memory_clock_mhz=None" in conditions
    assert "event_reasons=4" in conditions  # by the older name
    assert limits.endswith(
        "does not report its power limits (Not Supported): use --powercap current."
    )
    assert (enforced, source, samples, power) == ("None", "counter", "[]", "None")


@pytest.mark.parametrize(
    ("fails", "field", "status", "found"),
    [
        ("", "0", "ok", "it has an energy counter"),
        ("nvmlDeviceGetTotalEnergyConsumption=3", "0", "note", "integral of its instant power"),
        ("nvmlDeviceGetTotalEnergyConsumption=13", "3", "note", "integral of its average power"),
        (
            "nvmlDeviceGetTotalEnergyConsumption=3 nvmlDeviceGetPowerUsage=3",
            "3",
            "broken",
            "neither an energy counter nor a power reading (Not Supported)",
        ),
        ("nvmlDeviceGetTotalEnergyConsumption=15", "0", "broken", "cannot be read: GPU is lost"),
    ],
)
def test_the_doctor_says_where_energy_comes_from(driver, fails, field, status, found):
    checks = doctor(driver, STUB_FAIL=fails, STUB_FIELD=field)
    assert checks["GPU 0 energy"].startswith(f"{status}: ")
    assert found in checks["GPU 0 energy"]


def test_a_card_without_energy_is_refused_in_a_sentence(driver):
    fails = "nvmlDeviceGetTotalEnergyConsumption=3 nvmlDeviceGetPowerUsage=3"
    source = readings(driver, STUB_FAIL=fails, STUB_FIELD="3")[5]
    assert source.startswith("NVIDIA A10 offers neither an energy counter nor a power reading")


def test_a_gpu_that_is_lost_in_mid_run_is_told_in_a_sentence(driver):
    code = """
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.support import DeviceError
source = choose_source(gpu)
try:
    source.probe()
    while True:
        source.next_edge(1)
except DeviceError as error:
    found = str(error)
"""
    lost = "nvmlDeviceGetTotalEnergyConsumption=15@9"
    assert driver.value(code, STUB_FAIL=lost).startswith(
        "The energy counter of NVIDIA A10 cannot be read (GPU is lost): check the card"
    )


def test_a_gpu_that_has_a_handle_and_no_name_is_no_mig_instance(driver):
    code = """
from pytest_gpuenergy.devices import find_gpus
from pytest_gpuenergy.support import DeviceError
try:
    find_gpus()
except DeviceError as error:
    print(error)
"""
    assert driver.run(code, STUB_FAIL="nvmlDeviceGetName=15").endswith(
        " does not answer NVML (GPU is lost): see nvidia-smi and dmesg.\n"
    )


def test_one_lost_gpu_does_not_hide_the_others(driver):
    checks = doctor(driver, STUB_FAIL="nvmlDeviceGetUUID=15@2", STUB_CUDA="1")
    assert checks["GPU 1"] == "broken: it does not answer: GPU is lost"
    assert checks["GPU 0 power limit"].startswith("note: 150 W")


def test_an_error_that_the_binding_does_not_know_has_the_drivers_text(driver):
    raw = os.fsdecode(b"K\xe4se")
    checks = doctor(driver, STUB_FAIL="nvmlDeviceGetUUID=77", STUB_ERROR=raw, STUB_CUDA="")
    assert checks["GPU 0"] == "broken: it does not answer: K\ufffdse"


@pytest.mark.parametrize(
    ("libraries", "without", "sentence"),
    [
        (("nvml",), (), "libcuda.so.1 is missing"),
        (("cuda",), (), "no NVIDIA driver: only the emulated GPU can be used"),
        (("nvml", "cuda"), ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"), "lacks cuDeviceGetUuid"),
        (("nvml", "cuda"), ("nvmlInitWithFlags",), "lacks nvmlInit"),
    ],
)
def test_libraries_in_part_are_told_in_a_sentence(incomplete, libraries, without, sentence):
    checks = doctor(incomplete(without=without, libraries=libraries))
    assert any(sentence in found for found in checks.values())


@pytest.mark.slow
def test_all_that_nvml_writes_has_room(tmp_path):
    """Run under AddressSanitizer, which ends the process at a write beyond allocated memory."""
    flags = ("-fsanitize=address", "-g")
    sanitizer = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(sanitizer).is_absolute():
        pytest.skip("needs AddressSanitizer")
    driver = build_driver(tmp_path, flags=flags)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver),
        "LD_PRELOAD": sanitizer,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "STUB_PROCESSES": "7",
        "STUB_LATECOMERS": "500",
    }
    code = "\n".join([READINGS, BEGINNING, "found = [*readings(gpu)]", ENDING])
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[6].count("PowerSample(") == 119 + 500


def doctor(driver: Driver, **stub: str) -> dict[str, str]:
    """Return the status of each of the doctor's checks of the GPUs, by name."""
    code = (
        "import json\n"
        "from pytest_gpuenergy.commands.doctor import check_gpus\n"
        "print(json.dumps({one.name: f'{one.status}: {one.found}' for one in check_gpus()}))"
    )
    found: dict[str, str] = json.loads(driver.run(code, **stub))
    return found
