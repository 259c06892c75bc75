"""Verifies and measures kernels without pytest, for programs that use this package as a library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.engine.harness import Subject
from pytest_gpuenergy.engine.station import Station, open_station
from pytest_gpuenergy.engine.verification import verify_on_device
from pytest_gpuenergy.kernels import AnyKernel, CacheState
from pytest_gpuenergy.record import Correctness, Measurement
from pytest_gpuenergy.workloads import Workload


def verify(
    kernel: AnyKernel,
    workload: Workload,
    *,
    device: str | Station = "auto",
    timeout_s: float = 60.0,
) -> Correctness:
    """Verify that ``kernel`` computes what ``workload`` specifies, and changes nothing else.

    Args:
        kernel: what to run, for example from `load_kernel`.
        workload: what it has to compute, for example a `Contract`.
        device: a GPU as ``--gpu-device`` names it (``auto``, an index, a UUID, ``emulated``),
            which is claimed for this call, or one from `open_station`, for several calls.
        timeout_s: limit of one run of the kernel, in seconds.

    Returns:
        The largest errors found, with their bounds.

    Raises:
        KernelFault: the kernel is wrong, does not compile, crashes or takes too long; ``outcome``
            says which of these it is.
        InputError: there is no such device, or the reference is not finite.
        DeviceError: the device cannot be used, or another process holds it.
    """
    with _station(device) as station:
        return verify_on_device(station.device, kernel, workload, timeout_s=timeout_s)


def measure(
    kernel: AnyKernel,
    workload: Workload,
    *,
    device: str | Station = "auto",
    power_limit_w: float | None = None,
    cache: CacheState = "hot",
    label: str | None = None,
    timeout_s: float = 60.0,
) -> Measurement:
    """Verify ``kernel`` on ``workload``, measure its time and energy, and verify it once more.

    Args:
        kernel: see `verify`.
        workload: see `verify`.
        device: see `verify`.
        power_limit_w: the power limit to measure under, in watts; the prior one is restored
            afterwards. None leaves the card as it is.
        cache: ``hot`` launches the kernel on the same buffers again and again; ``cold`` rotates
            through more buffers than the L2 cache holds.
        label: the kernel's name in the measurement; by default, its own.
        timeout_s: limit of one run of the kernel, and of each step of measuring, in seconds.

    Returns:
        A measurement in ms, mJ and W. If the kernel is wrong or fails, its ``outcome`` and
        ``error`` say so and it has no figures.

    Raises:
        InputError: there is no such device, or the reference is not finite.
        DeviceError: the device cannot be used, another process holds it, or it has no source of
            energy.
        SetpointError: the power limit cannot be set or restored.
    """
    setpoint = CURRENT if power_limit_w is None else Setpoint(power_limit_w)
    with _station(device) as station, station.under(setpoint) as enforced:
        harness = station.harness(timeout_s=timeout_s, cache=cache)
        subject = Subject("", kernel.label if label is None else label, setpoint, enforced)
        measured = harness.measure_kernel(kernel, workload, subject)
        flags = station.judge_setpoint() if measured.measured else ()
    return measured.flagged(*flags)


@contextmanager
def _station(device: str | Station) -> Iterator[Station]:
    if isinstance(device, Station):
        yield device
    else:
        with open_station(device) as station:
            yield station
