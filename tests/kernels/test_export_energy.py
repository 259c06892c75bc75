"""The energy that exported programs measure, on a GPU and with an NVML in virtual time."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from exported_programs import RUNTIME, build_exported, run_program

from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.report import LaunchFigures, load_legacy, parse_figures
from pytest_gpuenergy.workloads import Gemm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]

LAUNCH_S, IDLE_W, BUSY_W = 20e-6, 90.0, 400.0

# A GPU that takes LAUNCH_S for each launch of a graph, and whose counter steps every 100 ms. Time
# passes when the program sleeps or calls the GPU. What a step shows is the energy at its moment.
VIRTUAL = f"""
#pragma once
#include <cmath>
#include <ctime>
namespace host {{
inline double now_s = 100, free_s = 100, busy_s = 0, counter_j = 0;
inline int launches = 0;
inline void pass(double time_s) {{
  const double begin = std::floor(now_s * 10), end = std::floor((now_s + time_s) * 10);
  now_s += time_s;
  if (end == begin) return;
  const double step_s = end / 10, rest_s = free_s > step_s ? free_s - step_s : 0;
  counter_j = {IDLE_W} * step_s + {BUSY_W - IDLE_W} * (busy_s - rest_s);
}}
}}
extern "C" {{
__attribute__((used)) inline int clock_gettime(clockid_t, timespec* time) noexcept {{
  host::pass(1e-7);
  time->tv_sec = time_t(host::now_s);
  time->tv_nsec = long((host::now_s - double(time->tv_sec)) * 1e9);
  return 0;
}}
__attribute__((used)) inline int nanosleep(const timespec* time, timespec*) {{
  host::pass(double(time->tv_sec) + double(time->tv_nsec) * 1e-9);
  return 0;
}}
__attribute__((used)) inline double host_counter_j(double read_s) {{
  host::pass(read_s);
  return host::counter_j;
}}
__attribute__((used)) inline double host_power_w() {{
  host::pass(1e-5);
  return host::free_s > host::now_s ? {BUSY_W} : {IDLE_W};
}}
}}
"""
GRAPHS = """
using Event = double;
inline cudaError_t cudaEventCreate(void** e) { *e = new Event; return cudaSuccess; }
inline cudaError_t cudaEventRecord(void* e, void*) {
  *static_cast<Event*>(e) = host::free_s; return cudaSuccess; }
inline cudaError_t cudaEventQuery(void* e) {
  return *static_cast<Event*>(e) <= host::now_s ? cudaSuccess : cudaErrorNotReady; }
inline cudaError_t cudaEventSynchronize(void* e) {
  const double rest_s = *static_cast<Event*>(e) - host::now_s;
  if (rest_s > 0) host::pass(rest_s);
  return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, void* from, void* to) {
  *ms = float((*static_cast<Event*>(to) - *static_cast<Event*>(from)) * 1e3);
  return cudaSuccess; }
inline cudaError_t cudaStreamBeginCapture(void*, int) { host::launches = 0; return cudaSuccess; }
inline cudaError_t cudaStreamEndCapture(void*, void** graph) {
  *graph = new int(host::launches); return cudaSuccess; }
inline cudaError_t cudaGraphInstantiateWithFlags(void** exec, void* graph, int) {
  *exec = graph; return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(void* exec, void*) {
  host::pass(5e-6);
  const double time_s = *static_cast<int*>(exec) * LAUNCH_S;
  host::free_s = std::fmax(host::free_s, host::now_s) + time_s;
  host::busy_s += time_s;
  return cudaSuccess; }
"""
REPLACED = re.compile(
    r"OK\((cudaEvent(Create|Record|Query|Synchronize)|cudaStream(Begin|End)Capture|"
    r"cudaGraph(InstantiateWithFlags|Launch))\([^()]*\)\)|inline cudaError_t cudaEventElapsedTime.*"
)
# The UUID has the bytes 0 to 15.
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
NVML = """
#include <cstdlib>
#include <cstring>
extern "C" double host_counter_j(double read_s);
extern "C" double host_power_w();
static int gpu, reads, samples;
static double first_mj;
static double value(const char* name) { return std::atof(std::getenv(name)); }
extern "C" {
int nvmlInit_v2() { return int(value("INIT")); }
const char* nvmlErrorString(int status) { return status == 3 ? "Not Supported" : "Not Found"; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  *handle = &gpu;
  return std::strcmp(uuid, std::getenv("UUID")) ? 6 : 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned*) {
  *current = unsigned(value("MIG"));
  return 0;
}
#ifdef POWER
int nvmlDeviceGetPowerUsage(void* handle, unsigned* power_mw) {
  if (handle != &gpu) return 2;
  *power_mw = unsigned(host_power_w() * 1e3);
  return ++samples > value("LAST_SAMPLE") ? 9 : 0;
}
#endif
#ifdef COUNTER
int nvmlDeviceGetTotalEnergyConsumption(void* handle, unsigned long long* energy_mj) {
  if (handle != &gpu) return 2;
  const double energy_mj_now = host_counter_j(value("READ_S")) * 1e3;
  ++reads;
  *energy_mj = value("STALE") ? 5 : (unsigned long long)(energy_mj_now);
  if (reads == 1) first_mj = energy_mj_now;
  if (energy_mj_now - first_mj > value("RESET_MJ")) *energy_mj -= (unsigned long long)(first_mj);
  if (reads > value("RESET_READS")) *energy_mj = 1;
  return int(value("STATUS"));
}
#endif
}
"""
USUAL = {
    "INIT": "0",
    "UUID": UUID,
    "MIG": "0",
    "LAST_SAMPLE": "1000000",
    "READ_S": "0.0035",
    "STALE": "0",
    "RESET_MJ": "1e30",
    "RESET_READS": "1000000",
    "STATUS": "0",
}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of 8 x 8 x 8 in virtual time."""
    runtime = VIRTUAL + REPLACED.sub("", RUNTIME)
    runtime = runtime.replace(
        'std::strcpy(p->name, "host");',
        'std::strcpy(p->name, "host"); for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = char(i);',
    )
    runtime += GRAPHS.replace("LAUNCH_S", repr(LAUNCH_S))
    source = """
        inline void product(float* a, float* b, float* c) {
          ++host::launches;
          for (int i = 0; i < 64; ++i) {
            double sum = 0;
            for (int k = 0; k < 8; ++k) sum += double(a[i / 8 * 8 + k]) * b[k * 8 + i % 8];
            c[i] = float(sum);
          }
        }
    """
    kernel = Kernel(source, (Launch("product", (1, 1, 1), (1, 1, 1), ("A", "B", "C")),))
    folder = tmp_path_factory.mktemp("program")
    return build_exported(folder, Gemm("tiny", 8, 8, 8), kernel, runtime=runtime)


@pytest.fixture(scope="module")
def run(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the program with an NVML that has ``functions``: COUNTER, POWER, both or neither."""

    @functools.cache
    def with_nvml(functions: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        (source := folder / "nvml.cpp").write_text(NVML)
        defines = [f"-D{name}" for name in functions.split()]
        command = ["g++", "-shared", "-fPIC", *defines, source]
        subprocess.run([*command, "-o", folder / "libnvidia-ml.so.1"], check=True, timeout=60)
        return folder

    def go(functions: str = "COUNTER", **changes: str) -> subprocess.CompletedProcess[str]:
        done = run_program(program, libraries=with_nvml(functions), **{**USUAL, **changes})
        assert done.returncode == 0, done.stderr
        return done

    return go


def figures_of(output: str) -> LaunchFigures:
    found = parse_figures(output)
    assert isinstance(found, LaunchFigures), found
    return found


@pytest.mark.parametrize("read_s", ["2e-6", "0.0035"])
def test_energy_is_that_of_a_launch_of_a_busy_gpu(run, read_s):
    figures = figures_of(run(READ_S=read_s).stdout)
    assert figures.energy_mj == pytest.approx(BUSY_W * LAUNCH_S * 1e3, rel=0.003)
    assert figures.time_ms == pytest.approx(LAUNCH_S * 1e3, rel=0.001)
    assert figures.gflops == pytest.approx(2 * 8**3 / LAUNCH_S * 1e-9, rel=0.001)


def test_the_window_is_of_at_least_a_second(run):
    pattern = r"mean power (\S+) W \((\S+) s, (\d+) replays of (\d+) launches\)"
    window = re.search(pattern, run().stdout)
    assert window is not None
    assert float(window[1]) == pytest.approx(BUSY_W, rel=0.003)
    assert 1 <= float(window[2]) < 3
    replayed_s = int(window[3]) * int(window[4]) * LAUNCH_S
    assert replayed_s == pytest.approx(float(window[2]), abs=0.2)


def test_the_output_is_read_as_that_of_an_older_tool(run, tmp_path):
    folder = tmp_path / "case1" / "powercap3"
    folder.mkdir(parents=True)
    (folder / "output_kernel7.txt").write_text(run().stdout)
    (measured,) = load_legacy(tmp_path).measurements
    assert (measured.outcome, measured.kernel.rank) == ("correct", 7)
    assert measured.power_w == pytest.approx(BUSY_W, rel=0.005)


@pytest.mark.parametrize(
    ("functions", "status", "why"),
    [
        ("POWER", "0", "NVML is too old: it has no nvmlDeviceGetTotalEnergyConsumption"),
        ("POWER COUNTER", "3", "the GPU's energy counter cannot be read (Not Supported)"),
    ],
    ids=["missing", "unsupported"],
)
def test_without_a_counter_power_is_sampled_and_that_is_told(run, functions, status, why):
    done = run(functions, STATUS=status)
    assert f"energy from power samples: {why}" in done.stdout.splitlines()
    figures = figures_of(done.stdout)
    assert figures.energy_mj == pytest.approx(BUSY_W * LAUNCH_S * 1e3, rel=0.003)
    assert figures.time_ms == pytest.approx(LAUNCH_S * 1e3, rel=0.001)


def test_power_that_cannot_be_read_any_more_is_no_energy(run):
    output = run("POWER", LAST_SAMPLE="50").stdout
    said = "energy not measured: the GPU's power cannot be read (Not Found)"
    assert said in output.splitlines()
    assert parse_figures(output) == "it has no energy"


def test_a_counter_is_preferred_to_power_samples(run):
    output = run("POWER COUNTER").stdout
    assert "power samples" not in output
    assert figures_of(output).energy_mj == pytest.approx(BUSY_W * LAUNCH_S * 1e3, rel=0.003)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"INIT": "9"}, "NVML does not start (Not Found)"),
        ({"UUID": "GPU-0"}, f"NVML does not know {UUID} (Not Found)"),
        ({"MIG": "1"}, "the GPU is in MIG mode, whose instances share one energy counter"),
        ({"functions": ""}, "NVML is too old: it has no nvmlDeviceGetTotalEnergyConsumption"),
        ({"STATUS": "3"}, "the GPU's energy counter cannot be read (Not Supported)"),
        ({"STALE": "1"}, "the GPU's energy counter does not move"),
        ({"RESET_READS": "3"}, "the GPU's energy counter ran backwards"),
        ({"RESET_MJ": "9e5"}, "the GPU's energy counter ran backwards"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_without_a_counter_that_works_there_is_only_a_time(run, changes, told):
    output = run(**changes).stdout
    assert f"energy not measured: {told}" in output.splitlines()
    assert parse_figures(output) == "it has no energy"


def test_without_nvml_there_is_only_a_time(program, tmp_path):
    done = run_program(program, libraries=tmp_path)
    assert done.returncode == 0
    assert "energy not measured: NVML (libnvidia-ml.so.1, of the NVIDIA driver)" in done.stdout
    assert "\nMean time per iteration: 0.0200" in done.stdout


def test_a_program_for_a_profiler_launches_and_measures_nothing(program, tmp_path):
    done = run_program(program, "--launches", "5", libraries=tmp_path)
    assert done.returncode == 0
    assert ": correct" in done.stdout
    assert "time" not in done.stdout


@pytest.mark.parametrize("arguments", [["x"], ["--launches", "x"], ["1", "2"], ["--launches"]])
def test_bad_arguments_are_answered_with_the_usage(program, tmp_path, arguments):
    done = run_program(program, *arguments, libraries=tmp_path)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")
