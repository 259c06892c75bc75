"""The effective SM clock, on a real GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

from pytest_gpuenergy.devices import CudaDevice, GraphRepeater, Timeline
from pytest_gpuenergy.energy import SW_POWER_CAP, read_conditions
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.workloads import Contract, Tensor

pytestmark = pytest.mark.gpu
N = 132 * 256
# About 3 us at 2 GHz: 1500 dependent multiply-adds of 4 cycles.
SOURCE = """
extern "C" __global__ void spin(float* y) {
  float value = threadIdx.x;
  #pragma unroll 1
  for (int step = 0; step < 1500; ++step) value = fmaf(value, 0.999f, 0.001f);
  y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
"""


@pytest.fixture
def launch(gpu: CudaDevice) -> Callable[[], None]:
    """Launches the kernel from this process."""
    cupy = pytest.importorskip("cupy")
    cupy.cuda.Device(gpu.ordinal).use()
    function = cupy.RawModule(code=SOURCE).get_function("spin")
    y = cupy.empty(N, dtype=cupy.float32)
    return lambda: function((N // 256,), (256,), (y,))


def run(repeater: GraphRepeater, seconds: float) -> Timeline:
    repeater.start()
    time.sleep(seconds)  # a real GPU runs in real time
    return repeater.stop()


def test_the_clock_is_near_that_of_nvml_where_no_cap_binds(gpu):
    work = Contract("spin", (Tensor("y", (N,), "float32", "output"),), lambda _: {}, flops=N)
    kernel = Kernel(SOURCE, (Launch("spin", (N // 256, 1, 1), (256, 1, 1), ("y",)),))
    with (
        seeded_arenas(work, seed=0) as arenas,
        gpu.repeat(Job.of(kernel, work), arenas) as repeater,
    ):
        repeater.start()
        time.sleep(1.0)
        state = read_conditions(gpu)
        timeline = repeater.stop()
    assert timeline.clocks is not None
    assert len(timeline.clocks.mhz) >= 15
    assert state.sm_clock_mhz is not None
    if not (state.event_reasons or 0) & SW_POWER_CAP:
        # The first spans may belong to the clock of an idle card.
        assert np.median(timeline.clocks.mhz[5:]) == pytest.approx(state.sm_clock_mhz, rel=0.05)


def test_notes_do_not_change_the_time_of_a_launch_of_3_us(launch, monkeypatch):
    repeater = GraphRepeater([launch])
    run(repeater, 1.0)
    times_us: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(8):
        for noted in times_us:
            with monkeypatch.context() as patch:
                if not noted:
                    patch.setattr(repeater, "_notes", None)
                timeline = run(repeater, 0.4)
            assert (timeline.clocks is not None) == noted
            times_us[noted].append(1e6 * timeline.busy_s[-1] / timeline.launches[-1])
    assert median(times_us[True]) == pytest.approx(median(times_us[False]), rel=0.001)


def test_the_clock_of_a_callable_is_known(launch):
    timeline = run(GraphRepeater([launch], must_capture=False), 0.5)
    assert timeline.clocks is not None
    assert (timeline.clocks.mhz > 100).all()
