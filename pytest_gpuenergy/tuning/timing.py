"""The time of one launch, quickly: good enough to rank the candidates of a search."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_gpuenergy.devices.device import Arena, Device, Timeline, Work
from pytest_gpuenergy.errors import KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.workloads.workload import Workload

DURATION_S = 0.03
TIMEOUT_S = 20.0


def measure_time_ms(
    device: Device,
    kernel: Kernel,
    workload: Workload,
    arenas: Mapping[str, Arena],
    *,
    duration_s: float = DURATION_S,
    timeout_s: float = TIMEOUT_S,
) -> float:
    """GPU time of one launch in ms: the median over batches of back-to-back launches.

    Args:
        device: where to run.
        kernel: what to run; nothing is verified here.
        workload: what it computes.
        arenas: its tensors by name, which stay as they are.
        duration_s: how long to run, by the device's clock.
        timeout_s: for each step of it.

    Raises:
        KernelFault: the kernel did not compile, crashed or hung.
    """
    scalars = {scalar.name: scalar for scalar in workload.scalars}
    work = Work(workload.flops, workload.bytes_moved)
    with device.repeat(kernel, arenas, scalars, work=work, timeout_s=timeout_s) as repeater:
        repeater.start()
        device.clock.sleep_s(duration_s)
        timeline = repeater.stop()
    return median_time_ms(timeline)


def median_time_ms(timeline: Timeline) -> float:
    """The median of the batches' GPU time per launch, in ms.

    Raises:
        KernelFault: no launch has finished.
    """
    launches = np.diff(timeline.launches)
    busy_s = np.diff(timeline.busy_s)[launches > 0]
    times_ms = 1e3 * busy_s / launches[launches > 0]
    if len(times_ms) > 2:
        times_ms = times_ms[1:]  # the first batch fills the caches
    if not len(times_ms) or not 0 < (time_ms := float(np.median(times_ms))) < np.inf:
        raise KernelFault("runtime", "The kernel ran, but no launch of it took any time.")
    return time_ms
