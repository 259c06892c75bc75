"""The least time that a workload can take on a card, by its peaks."""

from __future__ import annotations

from pytest_gpuenergy.record import Peaks
from pytest_gpuenergy.search.workload import SpecWorkload


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
