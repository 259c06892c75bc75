"""Kernels that really run on the host: verified, relaunched, and measured in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import job_of
from outcomes import raises
from points import MORE

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import (
    EmulatedDevice,
    HostKernel,
    HostRunner,
)
from pytest_gpuenergy.energy import EnergyMeter
from pytest_gpuenergy.engine import (
    SEEDS,
    measure_time_ms,
    quick_job,
    seeded_arenas,
    verify_on_device,
)
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

pytestmark = pytest.mark.slow
SIZE = 16_384
SCALE = {"a": Scalar("a", "float32", 2.0)}
SCALED = """
extern "C" __global__ void scaled(float* y, const float* x, float a) {
  int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = a * x[i];
}
"""
RACING = """
extern "C" __global__ void scaled(float* y, const float* x, float a) {
  __shared__ float t[256];
  t[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  y[blockIdx.x * 256 + threadIdx.x] = a * t[255 - threadIdx.x];
}
"""


def kernel(source: str) -> Kernel:
    return Kernel(source, (Launch("scaled", (64, 1, 1), (256, 1, 1), ("y", "x", "a")),))


@pytest.fixture
def arenas(tmp_path: Path) -> dict[str, Arena]:
    x, y = (Tensor(n, (SIZE,), "float32", r) for n, r in (("x", "input"), ("y", "output")))
    values = np.arange(SIZE, dtype=np.float32)
    return {"x": Arena.create(tmp_path / "x", x, values), "y": Arena.create(tmp_path / "y", y)}


@pytest.fixture
def gpu() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


def test_a_kernel_is_computed_and_measured(gpu, arenas):
    gpu.run_once(job_of(kernel(SCALED), SCALE), arenas)
    np.testing.assert_array_equal(arenas["y"].value(), 2 * np.arange(SIZE, dtype=np.float32))
    with gpu.repeat(job_of(kernel(SCALED), SCALE), arenas) as repeater:
        reading = EnergyMeter(gpu).measure(repeater)
    assert reading.power_w > 0.95 * gpu.profile.idle_w
    assert reading.energy_mj.value == pytest.approx(
        reading.power_w * reading.time_ms.value, rel=0.01
    )


def test_a_race_is_found_before_the_first_run(gpu, arenas):
    with raises("correctness"):
        gpu.run_once(job_of(kernel(RACING), SCALE), arenas)


def test_what_a_kernel_prints_aside_is_kept_and_with_faults_nothing_runs_aside(gpu, arenas, capsys):
    text = SCALED.replace("y[i] =", 'if (i == 0) printf("here"); y[i] =')
    with gpu.aside() as printed:
        gpu.run_once(job_of(kernel(text), SCALE), arenas)
    assert "here" in "".join(printed)
    assert capsys.readouterr().err == ""
    gpu.run_once(job_of(kernel(text), SCALE), arenas)
    assert "here" in capsys.readouterr().err
    gpu.inject("temperature", "gpu_is_lost")
    assert gpu.aside() is None


WORKLOAD = Contract(
    "scaled",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    values=tuple(SCALE.values()),
)
COUNTS = "int calls = ++launches[i]; "


def counting(condition: str) -> Kernel:
    """Return a kernel that does not write its output where the condition holds."""
    body = f"{COUNTS} if ({condition}) return; y[i] ="
    return kernel(f"__device__ int launches[{SIZE}];{SCALED.replace('y[i] =', body)}")


@pytest.mark.parametrize(
    "condition",
    [MORE("calls > 3"), "calls > 20", "calls > 3 && i == 99", MORE("calls > 3 && isfinite(y[i])")],
)
def test_a_kernel_that_is_right_only_at_first_is_wrong(gpu, condition):
    with raises("correctness", r"wrong|leaves another"):
        verify_on_device(gpu, counting(condition), WORKLOAD)


SLOWLY = "float v = a * x[i]; for (int k = 0; k < 40; ++k) v = __fadd_rn(v, 0.0f); y[i] = v;"
"""A launch takes several times as long as `little_affordable` affords."""
LATER = ("calls > 2", "isfinite(y[i])", "isfinite(y[b])", "y[b] == a * x[b]")
TOGETHER = "if (i < 0) atomicAdd(&launches[0], 1); "


@pytest.fixture
def little_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a launch count as slow from a fortieth of the usual time on."""
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.host_kernel._AFFORDABLE_S", 0.000625)


@pytest.mark.usefixtures("little_affordable")
@pytest.mark.parametrize(
    ("condition", "more"),
    [
        (LATER[0], ""),
        (LATER[2], ""),
        ("calls > 2 && i == 99", ""),
        (LATER[0], TOGETHER),
        *(MORE(skips, "") for skips in (LATER[1], LATER[3])),
        *(MORE(skips, TOGETHER) for skips in LATER[1:]),
    ],
)
def test_slow_kernels_are_launched_again_too(gpu, condition, more):
    body = f"{COUNTS} {more} int b = blockIdx.x * 256; bool skips = {condition}; __syncthreads();"
    text = SCALED.replace("y[i] = a * x[i];", f"{body} if (skips) return; {SLOWLY}")
    with raises("correctness", "wrong"):
        verify_on_device(gpu, kernel(f"__device__ int launches[{SIZE}];{text}"), WORKLOAD)


@pytest.mark.usefixtures("little_affordable")
@pytest.mark.parametrize("more", ["", MORE(TOGETHER)])
def test_slow_kernels_that_stay_right_pass(gpu, more):
    body = f"{COUNTS} {more} {SLOWLY}"
    text = f"__device__ int launches[{SIZE}];" + SCALED.replace("y[i] = a * x[i];", body)
    assert verify_on_device(gpu, kernel(text), WORKLOAD).max_relative_error == 0.0


@pytest.mark.usefixtures("little_affordable")
@pytest.mark.parametrize("more", ["", TOGETHER])
def test_a_slow_update_is_restored_before_each_launch(gpu, more):
    x, y = WORKLOAD.contract
    update = replace(
        WORKLOAD,
        contract=(x, replace(y, role="inout")),
        compute=lambda given: {"y": 3 * given["y"] + 2 * given["x"]},
    )
    body = f"{COUNTS} {more} {SLOWLY.replace('y[i] = v', 'y[i] = 3 * y[i] + v')}"
    text = f"__device__ int launches[{SIZE}];" + SCALED.replace("y[i] = a * x[i];", body)
    assert verify_on_device(gpu, kernel(text), update).max_relative_error < 1e-6


def test_seeds_share_a_process_and_what_a_kernel_leaves_in_it(gpu):
    with pytest.raises(KernelFault, match=r"never written|wrong \(seed 1\)"):
        verify_on_device(gpu, counting("calls > 1"), WORKLOAD)


def test_a_kernel_that_counts_and_stays_right_passes(gpu):
    correctness = verify_on_device(gpu, counting("calls < 0"), WORKLOAD)
    assert correctness.max_relative_error == 0.0
    assert correctness.seeds[:-1] == SEEDS


def test_text_that_does_not_compile_cannot_be_repeated(gpu, arenas):
    broken = kernel(SCALED.replace("y[i]", "z[i]"))
    with (
        raises("compile"),
        gpu.repeat(job_of(broken, SCALE), arenas),
    ):
        pass


LOOP = """
__global__ void copy(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += 32) y[i] = x[i];
}
"""


def test_one_kernel_takes_longer_where_a_scalar_gives_it_more_to_do(gpu):
    times_ms = []
    for count in (64, 8192):
        workload = Contract(
            "copy",
            (Tensor("x", (8192,), "float32", "input"), Tensor("y", (8192,), "float32", "output")),
            lambda inputs: {"y": inputs["x"]},
            values=(Scalar("n", "int32", count),),
        )
        looping = Kernel(LOOP, (Launch("copy", (1, 1, 1), (32, 1, 1), ("x", "y", "n")),))
        with seeded_arenas(workload, 0) as arenas:
            times_ms.append(measure_time_ms(gpu, quick_job(looping, workload), arenas))
    assert times_ms[1] > 2 * times_ms[0]


COUNTS_OF_BLOCKS = "__shared__ int s; if (!t) s = launches[b]++; __syncthreads();"
DECLARED = "__device__ int launches[128];"
SLOW = "float v = 0; for (int k = 0; k < 1000; ++k) v += x[i] * k;"
Make = Callable[..., tuple[Kernel, dict[str, Arena]]]


def relaunch(runner: HostRunner, kernel: Kernel, arenas: dict[str, Arena]) -> list[int]:
    outputs = [arena for arena in arenas.values() if arena.tensor.role == "output"]
    with ExitStack() as stack:
        host = HostKernel(
            lambda: None,
            lambda: runner.open(kernel, arenas, {}, timeout_s=20.0),
            stack,
            outputs,
            divisible=True,
        )
        for turn in range(3):
            host.run(order_seed=turn)
        for arena in outputs:
            arena.fill()
        return list(host.relaunch(once=False))


@pytest.mark.parametrize("skips", ["s % {0} == {1}", "b == 3 && s % {0} == {1}"])
@pytest.mark.parametrize("period", [7, 32])
def test_a_launch_that_is_skipped_now_and_then(runner, small_kernel, period, skips):
    skip = skips.format(period, period - 1)
    body = f"{COUNTS_OF_BLOCKS} if ({skip}) return; y[i] = 2 * x[i];"
    with pytest.raises(KernelFault, match=r"wrong in launch \d+ of those that were repeated: y\["):
        relaunch(runner, *small_kernel(body, 128, 16, before=DECLARED))


def test_a_slow_kernel_that_skips_a_launch(runner, small_kernel):
    # On a busy machine, fewer than the 32 launches may fit in their time.
    body = f"{COUNTS_OF_BLOCKS} {SLOW} if (s % 16 == 15) return; y[i] = v;"
    with pytest.raises(KernelFault, match="wrong in launch"):
        relaunch(runner, *small_kernel(body, 128, 128, before=DECLARED))


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = 2 * x[i];",
        SLOW + "y[i] = v;",
        "y[i] = (launches + 64 * (s & 1))[b % 64] >= 0 ? x[i] : 0;",
    ],
)
def test_launches_that_leave_the_same(runner, small_kernel, body):
    assert relaunch(runner, *small_kernel(f"{COUNTS_OF_BLOCKS} {body}", 128, 64, before=DECLARED))


@pytest.fixture(scope="module")
def device(host_cache: Path) -> Iterator[EmulatedDevice]:
    with EmulatedDevice(runner=HostRunner(host_cache, jobs=2)) as emulated:
        yield emulated


def doubled(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": 2 * inputs["x"], "z": inputs["x"] + 1}


RARE = {
    "a read past the end": ("if (v > 50.f) if (x[n + (int)v] > 1e30f) v = 0;", "reads x"),
    "the element after the last": ("if (v > 50.f) if (x[n] > 1e30f) v = 0;", "reads x"),
    "the element before the first": ("if (v < -50.f) if (x[-1] > 1e30f) v = 0;", "reads x"),
    "an index that is negative": ("if (v > 50.f) if (x[-(int)v] > 1e30f) v = 0;", "reads x"),
    "a read of an output": ("if (v > 50.f) if (y[n + 3] > 1e30f) v = 0;", "reads y"),
    "a write past the end": ("if (v > 50.f) y[n] = v;", "(writes|wrote) y|end of y"),
    "shared memory": ("if (v > 50.f) if (s[206 + (int)v] > 1e30f) v = 0;", "reads s"),
    "a pointer to another tensor": (
        "if (v > 50.f) v = (x + (1 << 26))[i] > 1e30f ? 0 : v;",
        "reads (x|address)",
    ),
}
CHECKED = "if (v > 50.f && i + (int)v < n) if (x[i + (int)v] > 1e38f) v = 0;"


BODIES = [*(body for body, _ in RARE.values()), CHECKED]
CASES = "\n".join(f"case {number}: {body} break;" for number, body in enumerate(BODIES))
ANY = f"""__global__ void k(const float* x, float* y, float* z, int n, int body) {{
  __shared__ float s[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  s[threadIdx.x] = 0;
  if (i >= n) return;
  float v = x[i];
  switch (body) {{ {CASES} }}
  y[i] = 2 * v; z[i] = x[i] + 1; }}"""
"""A kernel of 2 x and x + 1 that also runs any of the bodies, to be compiled once for all."""


def verified(device: EmulatedDevice, size: int, body: str) -> Correctness:
    """Verify the kernel that runs ``body`` on each element ``v``."""
    names = ("x", "y", "z", "n", "body")
    launch = Launch("k", (-(-size // 256), 1, 1), (256, 1, 1), names)
    tensors = (
        Tensor("x", (size,), "float32", "input"),
        *(Tensor(name, (size,), "float32", "output") for name in "yz"),
    )
    values = (Scalar("n", "int32", size), Scalar("body", "int32", BODIES.index(body)))
    workload = Contract("doubled", tensors, doubled, values=values)
    return verify_on_device(device, Kernel(ANY, (launch,)), workload)


@pytest.mark.parametrize("size", [1000, 4096, 5003])
@pytest.mark.parametrize("name", RARE)
def test_an_access_that_rare_inputs_make_is_found(device, name, size):
    body, told = RARE[name]
    with pytest.raises(KernelFault, match=told):
        verified(device, size, body)


@pytest.mark.parametrize("size", [1000, 4096, 5003])
def test_a_kernel_that_checks_its_index_passes(device, size):
    assert verified(device, size, CHECKED).max_relative_error < 1e-6


LITTLE_BEFORE = ("the element before the first", "an index that is negative")
"""Seen only in tensors of whole pages, if accesses are too many to check."""


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (n, more)
        for n in list(RARE)[:6]
        for more in (0, 16, 1008)
        if not (more and n in LITTLE_BEFORE)
    ],
)
def test_an_access_in_a_run_with_too_many_for_a_check_is_found(device, monkeypatch, name, more):
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.host_kernel._INSPECTED_BYTES", 0)
    body, told = RARE[name]
    with pytest.raises(KernelFault, match=told):
        verified(device, (1 << 14) + more, body)


THRESHOLDS = """
__device__ const float table[3] = {{0.7f, 1.3f, 2.9f}};
__global__ void k(const float* x, float* y, int n) {{
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  float v = x[i], limit = {limit};
  y[i] = {condition} ? 0.0f : 2.0f * v;
}}"""


def compared(limit: str, condition: str) -> tuple[Kernel, Contract]:
    """A kernel that is wrong only where ``condition`` holds of its ``limit``."""
    text = THRESHOLDS.format(limit=limit, condition=condition)
    tensors = (Tensor("x", (3000,), "float32", "input"), Tensor("y", (3000,), "float32", "output"))
    workload = Contract(
        "compared",
        tensors,
        lambda inputs: {"y": 2 * inputs["x"]},
        values=(Scalar("n", "int32", 3000),),
    )
    return Kernel(text, (Launch("k", (12, 1, 1), (256, 1, 1), ("x", "y", "n")),)), workload


@pytest.mark.parametrize(
    ("limit", "condition"),
    [
        ("powf(3.7f, 2.1f)", "v > limit && v < limit * 1.0001f"),
        ("sqrtf((float)n) * 0.77f", "v == limit"),
        ("__int_as_float(0x421e0419)", "v == limit"),
    ],
)
def test_a_threshold_that_the_text_computes_is_tried(device, limit, condition):
    with raises("correctness", "of y .* wrong"):
        verify_on_device(device, *compared(limit, condition), drawn=3)


def test_a_kernel_that_is_right_on_both_sides_of_its_threshold_passes(device):
    kernel, workload = compared("sqrtf((float)n) * 0.77f", "v >= limit && v != v")
    verify_on_device(device, kernel, workload, drawn=3)
    with (
        seeded_arenas(workload, 0) as arenas,
        device.load(job_of(kernel, {"n": workload.values[0]}), arenas) as loaded,
    ):
        loaded.run()
        assert not loaded.thresholds  # the first run is checked, and its result may be cached
        loaded.run(order_seed=1)
        found = [each.value for each in loaded.thresholds if each.real]
    assert found == [pytest.approx(3000**0.5 * 0.77, rel=1e-6)]


def selecting(less, skipped, result):
    """A kernel that looks for an extreme of 10,007 numbers, but not at all of them."""
    text = f"""
    extern "C" __global__ void k(const float *x, {result} *y) {{
        __shared__ float best[256];
        __shared__ int at[256];
        int t = threadIdx.x;
        best[t] = x[t], at[t] = t;
        for (int i = t + 256; i < 10007; i += 256) {{
            if ({skipped}) continue;
            if (x[i] {less} best[t]) best[t] = x[i], at[t] = i;
        }}
        __syncthreads();
        for (int d = 128; d; d /= 2) {{
            bool other = t < d && (best[t + d] {less} best[t]
                || (best[t + d] == best[t] && at[t + d] < at[t]));
            if (other) best[t] = best[t + d], at[t] = at[t + d];
            __syncthreads();
        }}
        if (t == 0) y[0] = {"at" if result == "int" else "best"}[0];
    }}"""
    function = f"{'arg' if result == 'int' else ''}{'max' if less == '>' else 'min'}"
    tensors = (
        Tensor("x", (10007,), "float32", "input"),
        Tensor("y", (1,), "int32" if result == "int" else "float32", "output"),
    )
    workload = Contract(
        "select", tensors, lambda inputs: {"y": np.reshape(getattr(np, function)(inputs["x"]), 1)}
    )
    return Kernel(text, (Launch("k", (1, 1, 1), (256, 1, 1), ("x", "y")),)), workload


@pytest.mark.parametrize(
    ("less", "skipped", "result"),
    [
        MORE(">", "i == 5000", "float"),
        ("<", "i == 5000", "int"),
        ("<", "i >= 1000 && i < 1100", "float"),
    ],
)
def test_what_a_selection_does_not_look_at_is_made_to_decide(device, less, skipped, result):
    with raises("correctness", "of y .* wrong"):
        verify_on_device(device, *selecting(less, skipped, result), drawn=3)


def test_a_selection_that_looks_at_everything_has_no_further_runs(device):
    kernel, workload = selecting("<", "false", "float")
    verify_on_device(device, kernel, workload, drawn=3)
    for skipped, unread in (
        ("false", []),
        ("i == 5000 || i / 10 == 700", [5000, *range(7000, 7010)]),
    ):
        kernel, _ = selecting("<", skipped, "float")
        with seeded_arenas(workload, 0) as arenas, device.load(job_of(kernel), arenas) as loaded:
            loaded.run()
            assert not loaded.unread
            loaded.run(order_seed=1)
            found = [
                place for begin, end in loaded.unread["x"] for place in range(begin // 4, end // 4)
            ]
        assert found == unread


def test_flags_that_a_kernel_does_not_look_at_are_the_only_ones_of_their_kind(device):
    text = """
    extern "C" __global__ void k(const unsigned char *x, unsigned char *y) {
        int all = 1;
        for (int i = threadIdx.x; i < 10007; i += 256)
            if (i < 100 || i >= 200) all &= x[i];
        all = __syncthreads_and(all);
        if (threadIdx.x == 0) y[0] = all != 0;
    }"""
    tensors = (Tensor("x", (10007,), "bool", "input"), Tensor("y", (1,), "bool", "output"))
    workload = Contract("all", tensors, lambda inputs: {"y": np.reshape(inputs["x"].all(), 1)})
    kernel = Kernel(text, (Launch("k", (1, 1, 1), (256, 1, 1), ("x", "y")),))
    with raises("correctness", "of y .* wrong"):
        verify_on_device(device, kernel, workload, drawn=3)
