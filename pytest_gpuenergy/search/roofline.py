"""The least time that a workload can take on a card, by its peaks."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.emulated.profiles import PROFILES
from pytest_gpuenergy.search.workload import SpecWorkload


@dataclass(frozen=True)
class Peaks:
    """What a card can do at most, by its datasheet.

    Attributes:
        bandwidth_gb_s: of the device memory, in 1e9 bytes per second.
        fp32_tflops: without tensor cores.
        l2_bytes: what may stay in the L2 from launch to launch.
    """

    bandwidth_gb_s: float
    fp32_tflops: float
    l2_bytes: int


def peaks_of(device: Device) -> Peaks | None:
    """The peaks of a card whose model is known; None of others."""
    for profile in PROFILES.values():
        if profile.name == device.name:
            return Peaks(profile.bandwidth_gb_s, profile.fp32_tflops, profile.l2_bytes)
    return None


def floor_ms(workload: SpecWorkload, peaks: Peaks | None) -> float:
    """The least time of one of many launches in ms, by the device memory and by arithmetic.

    What fits in the L2 need not move. Arithmetic counts only where tensor cores, whose peak is many
    times higher, are not allowed. It is 0 for a card whose peaks are not known.
    """
    if peaks is None:
        return 0.0
    moved = max(0, workload.bytes_moved - peaks.l2_bytes)
    memory_ms = moved / (peaks.bandwidth_gb_s * 1e6)
    flops = 0 if workload.allows_tensor_cores else workload.flops
    return max(memory_ms, flops / (peaks.fp32_tflops * 1e9))
