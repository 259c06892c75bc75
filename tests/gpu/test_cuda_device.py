"""The real device, on a real GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from pytest_gpuenergy.control import Lease, Setpoint, read_limits, supported_clocks
from pytest_gpuenergy.devices import MAX_PLACEMENTS, Device
from pytest_gpuenergy.energy import (
    EnergyMeter,
    PowerSamples,
    average_power_mw,
    cuda_process_ids,
    instant_power_mw,
    power_by_samples_w,
    read_conditions,
)
from pytest_gpuenergy.engine import Harness, Subject, seeded_arenas, verify_on_device
from pytest_gpuenergy.kernels import CACHE_STATES, Argument, CacheState, Job, Kernel, Launch
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import KernelFault, WritesDeniedError
from pytest_gpuenergy.workloads import Array, Contract, Scalar, Tensor

pytestmark = pytest.mark.gpu
N = 1 << 20
LARGE = 1 << 22
"""The elements from which on arrays are compared where they are, on the GPU."""
SCALE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  %s
}
"""
BODY = "if (i < 1048576) y[i] = factor * x[i];"


def double(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": 2.0 * inputs["x"]}


def workload(size: int = N) -> Contract:
    return Contract(
        "scale",
        (Tensor("x", (size,), "float32", "input"), Tensor("y", (size,), "float32", "output")),
        double,
        flops=size,
        values=(Scalar("factor", "float32", 2.0),),
    )


def kernel(body: str = BODY, *, threads: int = 256, shared_bytes: int = 0) -> Kernel:
    launch = Launch("scale", (N // 256, 1, 1), (threads, 1, 1), ("x", "y", "factor"), shared_bytes)
    return Kernel(SCALE % body, (launch,))


def fault(gpu: Device, body: str, **keywords: int) -> KernelFault:
    with pytest.raises(KernelFault) as raised:
        verify_on_device(gpu, kernel(body, **keywords), workload(), timeout_s=5.0)
    return raised.value


def test_a_correct_kernel_is_within_the_bound(gpu):
    result = verify_on_device(gpu, kernel(), workload())
    assert result.max_relative_error <= result.max_relative_bound


@pytest.mark.parametrize(
    ("dtype", "parameter"), [("float16", "__half"), ("bfloat16", "__nv_bfloat16")]
)
def test_a_scalar_of_sixteen_bits_is_passed_by_value(gpu, dtype, parameter):
    source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + SCALE.replace(
        "float factor", f"{parameter} factor"
    )
    factor = Scalar("factor", dtype, 0.1)
    scaled = Contract(
        "scale",
        (Tensor("x", (N,), "float32", "input"), Tensor("y", (N,), "float32", "output")),
        lambda inputs: {"y": float(factor.rounded) * inputs["x"]},
        values=(factor,),
    )
    launches = (Launch("scale", (N // 256, 1, 1), (256, 1, 1), ("x", "y", "factor")),)
    body = "if (i < 1048576) y[i] = (float)factor * x[i];"
    verify_on_device(gpu, Kernel(source % body, launches), scaled)


STRUCT = """
struct Params { char tag; float factor; const float* x; float* y; float factors[3]; };
extern "C" __global__ void scale(int n, const Params p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p.y[i] = (p.factor + p.factors[0] - p.factors[2]) * p.x[i];
}
"""


def test_a_struct_is_passed_by_value(gpu):
    params = ("tag", "factor", "x", "y", ("factor",) * 3)
    scaled = replace(
        workload(), values=(Scalar("n", "int32", N), Scalar("tag", "int8", 7), *workload().values)
    )

    def launched(*arguments: Argument) -> Kernel:
        return Kernel(STRUCT, (Launch("scale", (N // 256, 1, 1), (256, 1, 1), arguments),))

    verify_on_device(gpu, launched("n", params), scaled)
    with pytest.raises(KernelFault, match=r"parameter 2 of scale has 40 bytes, .* has 32"):
        verify_on_device(gpu, launched("n", (*params[:-1], ("factor",))), scaled)


def test_an_element_never_written_is_found(gpu):
    assert "y[7]" in str(fault(gpu, "if (i != 7) y[i] = factor * x[i];"))


def test_a_write_past_the_end_is_found(gpu):
    problem = fault(gpu, f"y[i] = factor * x[i]; if (i == 0) y[{N} + 2] = 1;")
    assert problem.outcome == "correctness"
    assert f"{N + 2}" in str(problem)


def test_an_input_that_changes_is_found(gpu):
    problem = fault(gpu, "y[i] = factor * x[i]; if (i == 5) ((float*)x)[9] = 1;")
    assert "x[9]" in str(problem)


def test_an_illegal_address_is_a_fault_and_the_device_goes_on(gpu):
    assert fault(gpu, "y[i + (1LL << 40)] = x[i];").outcome == "runtime"
    verify_on_device(gpu, kernel(), workload())


def test_a_misaligned_address_is_a_fault(gpu):
    assert fault(gpu, "*(float4*)(y + 1) = make_float4(0, 0, 0, 0);").outcome == "runtime"


def test_a_kernel_that_hangs_is_stopped(gpu):
    assert fault(gpu, "while (*(volatile float*)y != 3.0f) {} y[i] = x[i];").outcome == "timeout"
    verify_on_device(gpu, kernel(), workload())


def test_too_many_threads_break_the_constraints(gpu):
    assert fault(gpu, BODY, threads=2048).outcome == "constraints"


def test_too_much_shared_memory_breaks_the_constraints(gpu):
    assert fault(gpu, BODY, shared_bytes=1 << 20).outcome == "constraints"


def test_dynamic_shared_memory_over_48_kib_runs(gpu):
    body = (
        "extern __shared__ float s[]; s[20000] = factor; __syncthreads(); y[i] = s[20000] * x[i];"
    )
    verify_on_device(gpu, kernel(body, shared_bytes=96 * 1024), workload())


def test_text_that_does_not_compile_tells_the_line(gpu):
    problem = fault(gpu, "y[i] = nonsense;")
    assert problem.outcome == "compile"
    assert "nonsense" in str(problem)


def test_two_launches_share_a_workspace(gpu):
    source = SCALE.replace("scale", "first") % "y[i] = x[i];" + SCALE % "y[i] = factor * x[i];"
    grid, block = (N // 256, 1, 1), (256, 1, 1)
    launches = (
        Launch("first", grid, block, ("x", "space", "factor")),
        Launch("scale", grid, block, ("space", "y", "factor")),
    )
    space = Tensor("space", (N,), "float32", "workspace")
    verify_on_device(gpu, Kernel(source, launches, workspaces=(space,)), workload())


TURNED = """
#include <cooperative_groups.h>
extern "C" __global__ void turn(const float* x, float* y, float* space) {
  int i = blockIdx.x * 256 + threadIdx.x;
  space[i] = x[i];
  cooperative_groups::this_grid().sync();
  y[i] = space[16383 - i];
}
"""


def test_blocks_wait_for_one_another_at_a_barrier_of_the_grid(gpu):
    shape = (1 << 14,)
    turned = Contract(
        "turn",
        (Tensor("x", shape, "float32", "input"), Tensor("y", shape, "float32", "output")),
        lambda inputs: {"y": inputs["x"][::-1]},
    )
    launches = (Launch("turn", (64, 1, 1), (256, 1, 1), ("x", "y", "space")),)
    space = Tensor("space", shape, "float32", "workspace")
    kernel = Kernel(TURNED, launches, workspaces=(space,))
    measured = Harness(gpu).measure_kernel(kernel, turned, Subject("t", "turn"))
    assert measured.outcome == "correct", measured.error


def test_measured_time_and_energy_are_plausible(gpu):
    harness = Harness(gpu)
    measured = harness.measure_kernel(kernel(), workload(), Subject("test", "scale"))
    limits = read_limits(gpu)
    assert measured.outcome == "correct", measured.error
    assert measured.time_ms is not None
    # 8 MiB are moved; no GPU's memory or cache is faster than 40 TB/s
    assert 2e-4 < measured.time_ms < 1
    assert measured.power_w is not None
    assert 30 < measured.power_w < limits.max_w
    assert "host_gaps" not in measured.validity


def test_launches_are_back_to_back(gpu):
    with (
        seeded_arenas(workload(), seed=0) as arenas,
        gpu.repeat(Job.of(kernel(), workload()), arenas) as repeater,
    ):
        reading = EnergyMeter(gpu).measure(repeater)
    busy = sum(t.busy_seconds for t in reading.trials) / sum(t.seconds for t in reading.trials)
    assert busy >= 0.99


def test_launches_from_the_host_come_one_after_another(gpu):
    with (
        seeded_arenas(workload(), seed=0) as arenas,
        gpu.repeat(Job.of(kernel(), workload()), arenas) as repeater,
    ):
        many, one = repeater.launch(10_000), repeater.launch(1)
    assert many.count == 10_000
    assert 0 < many.gpu_s <= many.end_s - many.begin_s
    assert 0 < one.gpu_s < many.gpu_s


def test_a_cold_cache_makes_a_kernel_slower(gpu):
    found = {
        state: Harness(gpu, cache=state).measure_kernel(kernel(), workload(), Subject("t", "s"))
        for state in CACHE_STATES
    }
    hot, cold = found["hot"], found["cold"]
    assert (hot.cache, cold.cache) == ("hot", "cold")
    assert hot.time_ms is not None
    assert cold.time_ms is not None, cold.error
    # 8 MiB come from the device memory rather than from the L2.
    assert cold.time_ms > 1.1 * hot.time_ms
    assert "host_gaps" not in cold.validity


def test_sets_of_buffers_take_turns_of_a_graph_each(gpu):
    with seeded_arenas(workload(), seed=0) as arenas:
        for apart, sets in ((False, 1), (True, MAX_PLACEMENTS)):
            job = Job.of(kernel(), workload(), apart=apart)
            with gpu.repeat(job, arenas) as repeater:
                repeater.start()
                timeline = repeater.stop()
            assert timeline.placements == sets
            assert len(set(np.diff(timeline.launches))) == 1


def test_a_measurement_has_a_process_of_its_own_and_no_foreign_one(gpu):
    found = [Harness(gpu).measure_kernel(kernel(), workload(), Subject("t", "s")) for _ in range(3)]
    times_ms = [one.time_ms for one in found]
    assert all(one.outcome == "correct" and "foreign_process" not in one.validity for one in found)
    # In one process, what ran before made launches of 2 us up to 16 % longer.
    assert times_ms == [pytest.approx(times_ms[0], rel=0.04)] * 3


@pytest.mark.parametrize("read", [instant_power_mw, average_power_mw])
def test_integrated_power_agrees_with_the_counter(gpu, read):
    counted: list[tuple[float, int]] = []

    def read_with_counter(gpu: Device) -> float | None:
        energy_mj = gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)
        counted.append((gpu.clock.now_s(), energy_mj))
        return read(gpu)

    # In turn they would see another power: a card that warms up draws more.
    meter = EnergyMeter(gpu, source=PowerSamples(gpu, "power", read_with_counter))
    with (
        seeded_arenas(workload(), seed=0) as arenas,
        gpu.repeat(Job.of(kernel(), workload()), arenas) as repeater,
    ):
        trials = meter.measure(repeater).trials
    seconds = sum(trial.seconds for trial in trials)
    times_s, energies_mj = np.transpose(counted)
    ends_s = times_s[-1] - seconds, times_s[-1]
    begin_mj, end_mj = np.interp(ends_s, times_s, energies_mj)
    joules = sum(trial.joules for trial in trials)
    assert joules / seconds == pytest.approx((end_mj - begin_mj) / 1e3 / seconds, rel=0.02)


def test_writing_a_power_limit_is_denied(gpu):
    before = read_limits(gpu)
    with pytest.raises(WritesDeniedError):
        Lease(gpu).set(Setpoint(before.min_w))
    assert read_limits(gpu) == before


def test_numpy_inputs_reach_the_gpu_unchanged(gpu):
    copy = kernel("y[i] = x[i];")
    with seeded_arenas(workload(), seed=3) as arenas:
        gpu.run_once(Job.of(copy, workload()), arenas)
        assert np.array_equal(arenas["x"].value(), arenas["y"].value())


COUNTING = """
__device__ int calls;
__device__ float* chosen;
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int call = *(volatile int*)&calls;
  float* own = *(float* volatile*)&chosen;
  bool leave = %s;
  __syncthreads();
  for (int i = threadIdx.x; i < %d && !leave; i += 1024) y[i] = factor * x[i];
  __syncthreads();
  if (threadIdx.x) return;
  calls = call + 1;
  if (call <= 2000) chosen = y;
}
"""
"""One block, whose threads all see the calls before theirs, and the buffer of call 2000."""


def counting_kernel(leave: str, size: int = 65536) -> Kernel:
    """A kernel that leaves its output alone where the condition holds."""
    launch = Launch("scale", (1, 1, 1), (1024, 1, 1), ("x", "y", "factor"))
    return Kernel(COUNTING % (leave, size), (launch,))


def counting(gpu: Device, leave: str, cache: CacheState) -> Measurement:
    harness = Harness(gpu, cache=cache)
    return harness.measure_kernel(counting_kernel(leave), workload(65536), Subject("t", "s"))


@pytest.mark.parametrize("cache", CACHE_STATES)
def test_a_kernel_that_counts_and_stays_right_is_measured(gpu, cache):
    measured = counting(gpu, "call < 0", cache)
    assert (measured.outcome, measured.measured) == ("correct", True), measured.error


@pytest.mark.parametrize("cache", CACHE_STATES)
@pytest.mark.parametrize(
    "leave",
    [
        "call > 2000",
        "call > 2000 && y == own",
        "call > 2000 && call % 16",
        "call > 10 && isfinite(y[threadIdx.x])",
        "call > 10 && y[0] == factor * x[0] && y[65535] == factor * x[65535]",
    ],
    ids=["stops", "stops for one set", "pauses", "looks for NaN", "looks at a sample"],
)
def test_a_kernel_that_is_right_only_at_first_has_no_figures(gpu, leave, cache):
    measured = counting(gpu, leave, cache)
    assert (measured.outcome, measured.measured) == ("correctness", False)
    assert str(measured.error).startswith("Correct at first, wrong after ")


@pytest.mark.parametrize(
    "leave",
    ["call % 7 == 6", "call >= 20", "call >= 1000", "call > 100 && call % 31", "call % 31 == 30"],
)
def test_a_kernel_that_leaves_out_launches_is_found_without_a_measurement(gpu, leave):
    for _ in range(3):  # not by chance
        with pytest.raises(KernelFault, match=r"\d+ of 65536 elements of y ") as raised:
            verify_on_device(gpu, counting_kernel(leave), workload(65536))
        assert raised.value.outcome == "correctness"


def test_outputs_that_stay_on_the_gpu_are_made_wrong_there(gpu):
    if gpu.arrays is None:
        pytest.skip("needs a GPU that takes more than one process")
    verify_on_device(gpu, counting_kernel("call < 0", LARGE), workload(LARGE))
    lazy = counting_kernel("y[0] == factor * x[0]", LARGE)
    with pytest.raises(KernelFault, match=rf"Correct at first, .*\d+ of {LARGE} elements of y "):
        verify_on_device(gpu, lazy, workload(LARGE))


ADDING = """
__device__ int calls;
extern "C" __global__ void add(const float* x, float* y) {
  int call = *(volatile int*)&calls;
  __syncthreads();
  for (int i = threadIdx.x; i < 65536 && !(%s); i += 1024) y[i] += x[i];
  __syncthreads();
  if (threadIdx.x == 0) calls = call + 1;
}
"""
SUM = Contract(
    "sum",
    (Tensor("x", (65536,), "float32", "input"), Tensor("y", (65536,), "float32", "inout")),
    lambda inputs: {"y": inputs["x"] + inputs["y"]},
)


def adding(gpu: Device, leave: str, cache: CacheState) -> Measurement:
    """Measured with a kernel that adds to a tensor, but not where the condition holds."""
    kernel = Kernel(ADDING % leave, (Launch("add", (1, 1, 1), (1024, 1, 1), ("x", "y")),))
    return Harness(gpu, cache=cache).measure_kernel(kernel, SUM, Subject("t", "s"))


@pytest.mark.parametrize("cache", CACHE_STATES)
def test_what_a_kernel_changes_is_restored_before_each_launch(gpu, cache):
    measured = adding(gpu, "false", cache)
    assert (measured.outcome, measured.measured) == ("correct", True), measured.error


@pytest.mark.parametrize("leave", ["call % 7 == 6", "call > 2000"])
@pytest.mark.parametrize("cache", CACHE_STATES)
def test_a_kernel_that_leaves_out_additions_has_no_figures(gpu, cache, leave):
    measured = adding(gpu, leave, cache)
    assert (measured.outcome, measured.measured) == ("correctness", False)
    # The seventh launch may be that of a drawing.
    assert re.search(
        "^Correct at first, wrong after |elements of y .* are wrong", measured.error or ""
    )


GELU = """
extern "C" __global__ void gelu(const float* x, float* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = 0.5f * x[i] * (1.0f + %s(x[i] * 0.70710678f));
}
"""


@pytest.mark.parametrize("seed", range(3))
def test_gelu_is_right_where_its_terms_cancel(gpu, seed):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    workload = Contract(
        "gelu",
        (Tensor("x", (1 << 14,), "float32", "input"), Tensor("y", (1 << 14,), "float32", "output")),
        lambda inputs: {"y": 0.5 * inputs["x"] * (1 + erf(inputs["x"] / math.sqrt(2)))},
    )
    launches = (Launch("gelu", (64, 1, 1), (256, 1, 1), ("x", "y")),)
    verify_on_device(gpu, Kernel(GELU % "erff", launches), workload, drawn=seed + 2)
    with pytest.raises(KernelFault, match=r"of y .* wrong"):
        verify_on_device(gpu, Kernel(GELU % "tanhf", launches), workload, drawn=seed + 2)


def test_a_light_load_shows_the_clock_of_the_sms(gpu):
    with gpu.light_load() as repeater:
        repeater.start()
        gpu.clock.sleep_s(1.0)
        reasons = read_conditions(gpu).event_reasons
        timeline = repeater.stop()
    assert timeline.clocks is not None
    assert timeline.clocks.mhz[-1] > 0.5 * supported_clocks(gpu)[-1]
    assert reasons is None or not reasons & 0x1  # the card does not count as idle


def test_no_clock_is_locked_where_writes_are_denied(gpu):
    clock_mhz = supported_clocks(gpu)[0]
    with pytest.raises(WritesDeniedError):
        Lease(gpu).set(Setpoint(sm_clock_mhz=clock_mhz))


def test_a_heater_heats_beside_a_verification_and_leaves_no_process(gpu, record_property):
    heater = gpu.heater()
    if heater is None:
        pytest.skip("only one process may use this GPU")
    before = cuda_process_ids(gpu)
    with heater as repeater:
        repeater.start()
        verify_on_device(gpu, kernel(), workload())
        gpu.clock.sleep_s(1.0)
        power_w = power_by_samples_w(gpu, 0.4)
        repeater.stop()
    gpu.renew()
    assert power_w is not None
    record_property("heater_w", round(power_w))
    assert power_w > 0.3 * read_limits(gpu).current_w
    assert len(cuda_process_ids(gpu) - before) <= 1  # this process, if it has a context now


def test_a_kernel_is_heated_beside_its_verification_and_leaves_no_process(gpu, record_property):
    before = cuda_process_ids(gpu)
    harness, subject = Harness(gpu), Subject("test", "kernel")
    for _ in range(3):
        found = harness.measure_kernel(kernel(), workload(), subject)
        assert found.outcome == "correct"
        assert "foreign_process" not in found.validity
        assert found.measured
    harness.close()
    record_property("phases", {name: round(s, 2) for name, s in found.phases_s.items()})
    gpu.renew()
    assert len(cuda_process_ids(gpu) - before) <= 1  # this process, if it has a context now


def test_a_wrong_kernel_beside_its_verification_leaves_no_process(gpu):
    before = cuda_process_ids(gpu)
    harness = Harness(gpu)
    wrong = replace(kernel(), source='extern "C" __global__ void none() {}')
    assert harness.measure_kernel(wrong, workload(), Subject("test", "kernel")).outcome != "correct"
    harness.close()
    gpu.renew()
    assert len(cuda_process_ids(gpu) - before) <= 1


@pytest.mark.parametrize(
    ("statement", "outcome"),
    [("__trap();", "runtime"), ('for (;;) asm volatile("nanosleep.u32 1000;");', "timeout")],
    ids=["fault", "hang"],
)
def test_a_kernel_that_fails_beside_its_verification_leaves_the_card_usable(
    gpu, statement, outcome
):
    """It is launched far more often there than by the process that verifies it."""
    before = cuda_process_ids(gpu)
    body = f"{BODY} if (i == 0 && atomicAdd(&launches, 1u) >= 100000u) {statement}"
    failing = replace(kernel(body), source=f"__device__ unsigned launches;\n{SCALE % body}")
    harness, subject = Harness(gpu, timeout_s=5.0), Subject("test", "kernel")
    found = harness.measure_kernel(failing, workload(), subject)
    assert (found.outcome, found.measured) == (outcome, False)
    assert found.correctness is not None
    assert harness.measure_kernel(kernel(), workload(), subject).measured
    harness.close()
    gpu.renew()
    assert len(cuda_process_ids(gpu) - before) <= 1
