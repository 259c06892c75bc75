"""How long a kernel takes and what it draws on an emulated GPU that nothing limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.devices.emulated.governor import Demand
from pytest_gpuenergy.devices.emulated.profiles import GpuProfile
from pytest_gpuenergy.devices.emulated.timing.coefficients import COEFFICIENTS, Coefficients
from pytest_gpuenergy.devices.emulated.timing.traffic import Traffic
from pytest_gpuenergy.kernels.job import CacheState
from pytest_gpuenergy.kernels.kernel import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.support.errors import KernelFault

_WARP = 32
_LAUNCH_S = 1e-6  # between dependent launches of a CUDA graph

_SCHEDULERS = 4  # of a multiprocessor, each one instruction a cycle (architecture whitepapers)
_SECTOR_BYTES = 32
_L1_SECTORS_PER_CYCLE = 4  # 128 bytes (CUDA programming guide)
_REGISTERS_PER_SM = 65536
_REGISTERS_PER_THREAD = 255
_REGISTERS_STEP = 8  # CUDA occupancy calculator: 256 to a warp
# As NVRTC 13.5 gives for sm_90.
_REGISTERS_OWN = 40
_REGISTERS_PER_WORD = 1.5  # of private arrays: also for operands that are loaded ahead

# Guesses; what is fitted instead is in `Coefficients`.
_LOADS_IN_FLIGHT = 8  # of one thread
_L2_BYTES_PER_CYCLE = 64  # per multiprocessor
_DRAM_SHARE = 0.9  # of the datasheet's bandwidth
_FLOPS_PER_READ = 2 / 4  # one multiply-add for each 4 bytes read, if the workload says nothing
_SLOPE = 4.0  # the dynamic power saturates as 1 - exp(-_SLOPE activity)
_POWER_DRAM = 0.3  # activity of the device memory at its peak
_RECORDED_FP32 = 0.8  # likewise of arithmetic, where a recorded power is split


def demand_of(
    kernel: Kernel,
    work: Work | None,
    traffic: Sequence[Traffic] | None,
    profile: GpuProfile,
    *,
    footprint_bytes: int = 0,
    cache: CacheState = "hot",
    coefficients: Coefficients = COEFFICIENTS,
) -> Demand:
    """What one run of ``kernel`` takes at the profile's default limit, in seconds and watts.

    Recorded figures of this GPU win, which are those of a hot cache; otherwise every launch is
    modelled.

    Args:
        kernel: all its launches are one run.
        work: FLOPs and bytes of one run, if the workload is known.
        traffic: of each launch; needed unless the kernel has recorded figures of this GPU.
        profile: the GPU.
        footprint_bytes: size of all buffers, which stands for the bytes moved without ``work``.
        cache: whether what fits in the L2 stays there from run to run.
        coefficients: of the model.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    recorded = recorded_on(kernel, profile, cache)
    if recorded is not None:
        return _from_record(recorded, kernel, work, footprint_bytes, profile)
    if traffic is None:
        raise ValueError("a kernel without recorded figures needs its traffic")
    flops = _shares(kernel, work, traffic)
    moved = work.bytes_moved if work else footprint_bytes
    dram_share = _dram_share(kernel, moved, traffic, profile, cache)
    parts = [
        _launch(launch, entry, count, dram_share, profile, coefficients)
        for launch, entry, count in zip(kernel.launches, traffic, flops, strict=True)
    ]
    time_s = sum(part.time_s for part in parts)
    memory_s = sum(part.memory_s for part in parts)
    activity = sum(part.activity_s for part in parts) / time_s
    dram_activity = sum(part.dram_activity_s for part in parts) / time_s
    dynamic_w = (profile.default_limit_w - profile.idle_w) * (1 - math.exp(-_SLOPE * activity))
    return Demand(
        time_s=time_s,
        power_w=profile.idle_w + dynamic_w,
        memory_time=memory_s / time_s,
        memory_power=dram_activity / activity if activity else 0.0,
    )


def recorded_on(
    kernel: Kernel, profile: GpuProfile, cache: CacheState = "hot"
) -> RecordedFigures | None:
    """The figures recorded on this GPU under the highest limit, if there are any."""
    if cache == "cold":
        return None
    figures = [figure for figure in kernel.recorded if figure.gpu == profile.name]
    return max(figures, key=lambda figure: figure.power_limit_w, default=None)


def resident_blocks(
    launch: Launch, static_shared_bytes: float, profile: GpuProfile, registers: int = 0
) -> int:
    """Blocks of ``launch`` that a multiprocessor holds at once.

    Args:
        launch: its threads and dynamic shared memory count.
        static_shared_bytes: of a block.
        profile: the GPU.
        registers: of a thread; no limit without.

    Raises:
        KernelFault: none fits.
    """
    threads = -(-launch.threads // _WARP) * _WARP
    shared = launch.shared_bytes + math.ceil(static_shared_bytes)
    blocks = min(profile.blocks_per_sm, profile.threads_per_sm // threads)
    if shared:
        blocks = min(blocks, profile.shared_per_sm // shared)
    if registers:
        allocated = -(-registers // _REGISTERS_STEP) * _REGISTERS_STEP
        blocks = min(blocks, _REGISTERS_PER_SM // (allocated * threads))
    if blocks < 1:
        raise KernelFault(
            "constraints",
            f"No block of {launch.entry!r} ({launch.threads} threads, {shared} bytes of shared "
            f"memory) fits on a multiprocessor of the emulated {profile.name}.",
        )
    return blocks


@dataclass(frozen=True)
class _Block:
    """What a block asks of a multiprocessor.

    Attributes:
        resident: how many of its launch are there at once.
        instructions: of its warps.
        spilled_fma: its warps' multiply-adds whose sum no register holds.
        l2_bytes: moved between multiprocessor and L2.
        busy_cycles: of the unit that it keeps busy longest.
        wait_cycles: that a warp waits while the units have nothing else to do.
    """

    resident: int
    instructions: float
    spilled_fma: float
    l2_bytes: float
    busy_cycles: float
    wait_cycles: float


@dataclass(frozen=True)
class _Part:
    """One launch: its time, the part of it that no clock changes, and its activities x time."""

    time_s: float
    memory_s: float
    activity_s: float
    dram_activity_s: float


def _registers(launch: Launch, private_words: float) -> tuple[int, float]:
    """Registers of a thread, and the share of its private arrays that they do not hold."""
    threads = _warps(launch) * _WARP
    share = _REGISTERS_PER_SM // threads // _REGISTERS_STEP * _REGISTERS_STEP
    most = min(_REGISTERS_PER_THREAD, share)
    wanted = _REGISTERS_PER_WORD * private_words
    needed = _REGISTERS_OWN + wanted
    spilled = min(1.0, max(0.0, needed - most) / wanted) if wanted else 0.0
    return math.floor(min(needed, most)), spilled


def _warps(launch: Launch) -> int:
    return -(-launch.threads // _WARP)


def _sm_rate(profile: GpuProfile) -> float:
    """Cycles per second of all multiprocessors."""
    return profile.sm_count * profile.max_clock_mhz * 1e6


def _block(
    launch: Launch, traffic: Traffic, flops: float, profile: GpuProfile, c: Coefficients
) -> _Block:
    registers, spilled = _registers(launch, traffic.private_words)
    warps = _warps(launch)
    fma = flops / 2 / launch.blocks / launch.threads * warps
    instructions = (
        fma * (c.instructions_per_fma + c.instructions_per_spill * spilled)
        + c.instructions_per_global * (traffic.global_loads + traffic.global_stores)
        + c.instructions_per_shared * traffic.shared_accesses
    )
    conflicts = max(0.0, traffic.shared_wavefronts - traffic.shared_accesses)
    shared_cycles = c.shared_cycles * traffic.shared_accesses + c.conflict_cycles * conflicts
    l2_bytes = traffic.l2_sectors * _SECTOR_BYTES
    busy_cycles = max(
        instructions / _SCHEDULERS,
        fma * 2 * _WARP * _sm_rate(profile) / (profile.fp32_tflops * 1e12),
        shared_cycles + traffic.global_sectors / _L1_SECTORS_PER_CYCLE,
        l2_bytes / _L2_BYTES_PER_CYCLE,
    )
    # Its instructions one after another, and the latency of its loads.
    rounds = max(traffic.load_intervals, traffic.global_loads / warps / _LOADS_IN_FLIGHT)
    wait_cycles = (
        instructions / warps
        + rounds * c.latency_cycles
        + traffic.branched_loads / warps * c.branch_cycles
        + traffic.barriers * c.barrier_cycles
    )
    resident = resident_blocks(launch, traffic.static_shared_bytes, profile, registers)
    return _Block(resident, instructions, fma * spilled, l2_bytes, busy_cycles, wait_cycles)


def _launch(
    launch: Launch,
    traffic: Traffic,
    flops: float,
    dram_share: float,
    profile: GpuProfile,
    c: Coefficients,
) -> _Part:
    block = _block(launch, traffic, flops, profile, c)
    blocks = -(-launch.blocks // profile.sm_count)  # on the multiprocessor with the most of them
    waves = -(-blocks // min(block.resident, blocks))
    cycles = blocks * block.busy_cycles + waves * block.wait_cycles
    core_s = cycles / (profile.max_clock_mhz * 1e6)
    l2_bytes = launch.blocks * block.l2_bytes
    dram_peak_s = l2_bytes * dram_share / (profile.bandwidth_gb_s * 1e9)
    dram_s = dram_peak_s / _DRAM_SHARE
    time_s = max(core_s, dram_s) + _LAUNCH_S
    sm_rate = _sm_rate(profile)
    dram_activity_s = _POWER_DRAM * dram_peak_s
    activity_s = (
        c.power_base * time_s
        + c.power_issue * launch.blocks * block.instructions / (sm_rate * _SCHEDULERS)
        + c.power_spill * launch.blocks * block.spilled_fma / sm_rate
        + c.power_l2 * l2_bytes / (sm_rate * _L2_BYTES_PER_CYCLE)
        + dram_activity_s
    )
    # Where the memory binds, a lower clock costs nothing until the cores would bind.
    memory_s = _LAUNCH_S + max(0.0, dram_s - core_s)
    return _Part(time_s, memory_s, activity_s, dram_activity_s)


def _dram_share(
    kernel: Kernel,
    bytes_moved: float,
    traffic: Sequence[Traffic],
    profile: GpuProfile,
    cache: CacheState,
) -> float:
    """Of the bytes that pass the L2, the share that the device memory moves too.

    ``bytes_moved`` by the workload; its workspaces are moved by each launch that names them.
    """
    l2_bytes = sum(
        launch.blocks * entry.l2_sectors * _SECTOR_BYTES
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    )
    moved = bytes_moved + sum(
        tensor.nbytes * sum(tensor.name in launch.arguments for launch in kernel.launches)
        for tensor in kernel.workspaces
    )
    kept_bytes = 0 if cache == "cold" else profile.l2_bytes  # there from run to run
    if not l2_bytes or moved <= kept_bytes:
        return 0.0
    return min(1.0, moved / l2_bytes) * (1 - kept_bytes / moved)


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
    core = _RECORDED_FP32 * flops / (profile.fp32_tflops * 1e12)
    memory_power = _POWER_DRAM * dram_s / (core + _POWER_DRAM * dram_s) if dram_s else 0.0
    return Demand(time_s, recorded.power_w, memory_time, min(0.9, memory_power))
