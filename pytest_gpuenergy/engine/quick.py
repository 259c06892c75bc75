"""Quick measurements of time and power, good enough to rank the candidates of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pytest_gpuenergy.devices import Arena, Device, Timeline
from pytest_gpuenergy.energy import CounterError, EnergyMeter, MeterSettings
from pytest_gpuenergy.engine.arena_check import check_again
from pytest_gpuenergy.engine.verification import arenas_for, check_of, verify
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Workload

DURATION_S = 0.03
TIMEOUT_S = 20.0
SWINGS_S = 2.0
"""How long a card that has been idle is heated up if its power limit holds it back.

On H100s, kernels that are held to 700 W drew 590 W to 785 W in windows of 0.4 s that began within
the first two seconds, depending on when they did (docs/notes/kernel-search.md, "Figures at the
power limit").
"""

QUICK = MeterSettings(
    warmup_s=0.6,
    warmup_max_s=0.6,
    restrained_warmup_s=SWINGS_S,
    trial_s=0.2,
    min_trials=2,
    max_measure_s=0.4,
    preheat_s=0.0,
)


def quick_job(kernel: AnyKernel, workload: Workload) -> Job:
    """A job for a candidate, with a shorter timeout than in a bench."""
    return Job.of(kernel, workload, timeout_s=TIMEOUT_S)


def measure_time_ms(
    device: Device, job: Job, arenas: Mapping[str, Arena], *, duration_s: float = DURATION_S
) -> float:
    """GPU time of one launch in ms: the median over batches of back-to-back launches.

    Args:
        device: where to run.
        job: what to run; nothing is verified here.
        arenas: its tensors by name; left unchanged.
        duration_s: how long to run, on the device's clock.

    Raises:
        KernelFault: the kernel did not compile, crashed or hung.
    """
    with device.repeat(job, arenas) as repeater:
        repeater.start()
        device.clock.sleep_s(duration_s)
        timeline = repeater.stop()
    return median_time_ms(timeline)


def verify_timed(device: Device, kernel: AnyKernel, workload: Workload) -> None:
    """Verify a kernel before and after it runs back to back, as in `measure_time_ms`.

    Raises:
        KernelFault: it is wrong at first or later, or fails.
    """
    verify(device, kernel, workload)
    with arenas_for(workload, 0, device.arrays) as arenas:
        check = check_of(device, workload, arenas, seed=0)
        with device.repeat(quick_job(kernel, workload), arenas) as repeater:
            repeater.start()
            device.clock.sleep_s(DURATION_S)
            repeater.stop()
            check_again(repeater, check)


class Sustained(NamedTuple):
    """Figures of one launch in a window in which the power limit may slow the card."""

    time_ms: float
    power_w: float
    energy_mj: float


def measure_sustained(device: Device, job: Job, arenas: Mapping[str, Arena]) -> Sustained | None:
    """Time, power and energy while the job's kernel runs back to back, after a short heat-up.

    None if the card's energy cannot be read.

    Raises:
        KernelFault: the kernel did not compile, crashed or hung.
    """
    with device.repeat(job, arenas) as repeater:
        try:
            reading = EnergyMeter(device, QUICK).measure(repeater)
        except CounterError:
            return None
    return Sustained(reading.time_ms.value, reading.power_w, reading.energy_mj.value)


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
        raise KernelFault("runtime", "The kernel ran, but no launch took measurable time.")
    return time_ms
