"""How long a kernel takes and what it draws on an emulated GPU that nothing limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.devices.emulated.governor import Demand
from pytest_gpuenergy.devices.emulated.profiles import GpuProfile
from pytest_gpuenergy.errors import KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel, Launch, RecordedFigures

_WARP = 32
_LAUNCH_S = 2e-6  # between dependent launches of a CUDA graph

# Guesses, except where a source is named.
_PEAK_SHARE = 0.75  # of the peak that well-fed multiprocessors reach
_HALF_OCCUPANCY = 0.06  # half of the attainable rate is reached at this occupancy
_BARRIER_CYCLES = 40
_SHARED_BYTES_PER_CYCLE = 128  # per multiprocessor: 32 banks of 4 bytes (CUDA programming guide)
_L2_BYTES_PER_CYCLE = 64  # per multiprocessor
_DRAM_SHARE = 0.9  # of the datasheet's bandwidth
_FLOPS_PER_READ = 2 / 4  # one multiply-add for each 4 bytes read, if the workload says nothing

# Activity is a weighted sum of utilisations; the dynamic power saturates as
# 1 - exp(-4 activity). The slope goes through two convolutions measured on an H200 (11.9 TFLOP/s
# at 419 W, 7.0 TFLOP/s at 288 W) to within 10 %, if their shared memory is taken to be 1.7 times
# as busy as their arithmetic units, which nobody measured. The weights are guesses.
_SLOPE = 4.0
_FP32, _SHARED, _L2, _DRAM = 0.8, 0.15, 0.15, 0.3


@dataclass(frozen=True)
class Traffic:
    """Averages per block of one launch, as the host run counts them."""

    global_read_bytes: float
    global_write_bytes: float
    shared_read_bytes: float
    shared_write_bytes: float
    barriers: float
    static_shared_bytes: float


def demand_of(
    kernel: Kernel,
    work: Work | None,
    traffic: Sequence[Traffic] | None,
    profile: GpuProfile,
    *,
    footprint_bytes: int = 0,
) -> Demand:
    """What one run of ``kernel`` takes at the profile's default limit, in seconds and watts.

    Recorded figures of this GPU win; otherwise a roofline of every launch.

    Args:
        kernel: all its launches are one run.
        work: FLOPs and bytes of one run, if the workload is known.
        traffic: of each launch; needed unless the kernel has recorded figures of this GPU.
        profile: the GPU.
        footprint_bytes: size of all buffers, which stands for the bytes moved without ``work``.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    recorded = recorded_on(kernel, profile)
    if recorded is not None:
        return _from_record(recorded, kernel, work, footprint_bytes, profile)
    if traffic is None:
        raise ValueError("a kernel without recorded figures needs its traffic")
    flops = _shares(kernel, work, traffic)
    bytes_moved = work.bytes_moved if work else footprint_bytes
    parts = [
        _launch(launch, entry, count, bytes_moved / len(kernel.launches), profile)
        for launch, entry, count in zip(kernel.launches, traffic, flops, strict=True)
    ]
    time_s = sum(part.time_s for part in parts)
    memory_s = sum(part.memory_s for part in parts)
    activity = sum(part.activity_s for part in parts) / time_s
    dram = sum(part.dram_activity_s for part in parts) / time_s
    dynamic_w = (profile.default_limit_w - profile.idle_w) * (1 - math.exp(-_SLOPE * activity))
    return Demand(
        time_s=time_s,
        power_w=profile.idle_w + dynamic_w,
        memory_time=memory_s / time_s,
        memory_power=dram / activity if activity else 0.0,
    )


def recorded_on(kernel: Kernel, profile: GpuProfile) -> RecordedFigures | None:
    """The figures recorded on this GPU under the highest limit, if there are any."""
    figures = [figure for figure in kernel.recorded if figure.gpu == profile.name]
    return max(figures, key=lambda figure: figure.power_limit_w, default=None)


def resident_blocks(launch: Launch, static_shared_bytes: float, profile: GpuProfile) -> int:
    """Blocks of ``launch`` that a multiprocessor holds at once (registers are not known).

    Raises:
        KernelFault: none fits.
    """
    warps = -(-launch.threads // _WARP)
    shared = launch.shared_bytes + math.ceil(static_shared_bytes)
    blocks = min(profile.blocks_per_sm, profile.threads_per_sm // (warps * _WARP))
    if shared:
        blocks = min(blocks, profile.shared_per_sm // shared)
    if blocks < 1:
        raise KernelFault(
            "constraints",
            f"No block of {launch.entry!r} ({launch.threads} threads, {shared} bytes of shared "
            f"memory) fits on a multiprocessor of the emulated {profile.name}.",
        )
    return blocks


@dataclass(frozen=True)
class _Part:
    """One launch: its time, the part of it that no clock changes, and its activities x time."""

    time_s: float
    memory_s: float
    activity_s: float
    dram_activity_s: float


def _launch(
    launch: Launch, traffic: Traffic, flops: float, bytes_moved: float, profile: GpuProfile
) -> _Part:
    fit = resident_blocks(launch, traffic.static_shared_bytes, profile)
    resident = min(fit, -(-launch.blocks // profile.sm_count))
    waves = -(-launch.blocks // (resident * profile.sm_count))
    filled = launch.blocks / (waves * resident * profile.sm_count)
    warps = -(-launch.threads // _WARP)
    occupancy = min(1.0, resident * warps * _WARP / profile.threads_per_sm)
    issue = occupancy / (occupancy + _HALF_OCCUPANCY)
    lanes = launch.threads / (warps * _WARP)

    cycles_per_s = profile.max_clock_mhz * 1e6
    rate = filled * issue * profile.sm_count * cycles_per_s
    fp32_peak = profile.fp32_tflops * 1e12
    fp32_s = flops / (fp32_peak * _PEAK_SHARE * filled * issue * lanes)
    shared = launch.blocks * (traffic.shared_read_bytes + traffic.shared_write_bytes)
    shared_s = shared / (rate * _SHARED_BYTES_PER_CYCLE)
    l2 = _global(traffic, launch.blocks)
    l2_s = l2 / (rate * _L2_BYTES_PER_CYCLE)
    # What fits in the L2 stays there from run to run.
    dram = min(bytes_moved, l2) * max(0.0, 1 - profile.l2_bytes / max(bytes_moved, 1))
    dram_peak = profile.bandwidth_gb_s * 1e9
    dram_s = dram / (dram_peak * _DRAM_SHARE)
    barrier_s = waves * traffic.barriers * _BARRIER_CYCLES / cycles_per_s

    core_s = max(fp32_s, shared_s, l2_s) + barrier_s
    busy_s = max(core_s, dram_s)
    dram_activity_s = _DRAM * dram / dram_peak
    sm_rate = profile.sm_count * cycles_per_s
    activity_s = (
        _FP32 * flops / fp32_peak
        + _SHARED * shared / (sm_rate * _SHARED_BYTES_PER_CYCLE)
        + _L2 * l2 / (sm_rate * _L2_BYTES_PER_CYCLE)
        + dram_activity_s
    )
    # Where the memory binds, a lower clock costs nothing until the cores would bind.
    memory_s = _LAUNCH_S + max(0.0, dram_s - core_s)
    return _Part(busy_s + _LAUNCH_S, memory_s, activity_s, dram_activity_s)


def _global(traffic: Traffic, blocks: int) -> float:
    return blocks * (traffic.global_read_bytes + traffic.global_write_bytes)


def _shares(kernel: Kernel, work: Work | None, traffic: Sequence[Traffic]) -> list[float]:
    # FLOPs of each launch: the workload's, divided by what the launches read.
    reads = [
        launch.blocks * max(entry.shared_read_bytes, entry.global_read_bytes)
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    ]
    if work is None:
        return [read * _FLOPS_PER_READ for read in reads]
    total = sum(reads)
    if not total:
        return [work.flops / len(reads)] * len(reads)
    return [work.flops * read / total for read in reads]


def _from_record(
    recorded: RecordedFigures,
    kernel: Kernel,
    work: Work | None,
    footprint_bytes: int,
    profile: GpuProfile,
) -> Demand:
    time_s = recorded.time_ms / 1e3
    bytes_moved = work.bytes_moved if work else footprint_bytes
    dram_s = max(0, bytes_moved - profile.l2_bytes) / (profile.bandwidth_gb_s * 1e9)
    memory_time = min(0.9, (len(kernel.launches) * _LAUNCH_S + dram_s) / time_s)
    flops = work.flops if work else 0
    core = _FP32 * flops / (profile.fp32_tflops * 1e12)
    memory_power = _DRAM * dram_s / (core + _DRAM * dram_s) if dram_s else 0.0
    return Demand(time_s, recorded.power_w, memory_time, min(0.9, memory_power))
