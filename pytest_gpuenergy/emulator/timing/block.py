"""The demands of a block on a multiprocessor, and the coefficients of the timing model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpuenergy.emulator.card.profiles import GpuProfile
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import Launch
from pytest_gpuenergy.support import KernelFault

SCHEDULERS = 4
"""The schedulers of a multiprocessor; each issues one instruction per cycle (whitepapers)."""

SECTOR_BYTES = 32

L2_BYTES_PER_CYCLE = 64
"""The bytes that a multiprocessor moves from or to the L2 per cycle; a guess."""

_WARP = 32
L1_SECTORS_PER_CYCLE = 4  # 128 bytes (CUDA programming guide)
REGISTERS_PER_SM = 65536
_REGISTERS_PER_THREAD = 255
_REGISTERS_STEP = 8  # CUDA occupancy calculator: 256 to a warp
# What NVRTC 13.5 allocates for sm_90.
REGISTERS_OWN = 40
REGISTERS_PER_WORD = 1.5  # of private arrays, with the operands that are loaded ahead
LOADS_IN_FLIGHT = 8  # of one thread; a guess


@dataclass(frozen=True)
class Coefficients:
    """The numbers in the model of a kernel's time and power that no datasheet gives.

    The defaults were fitted to kernels measured on H200s (by ``studies/model_ranking.py --fit``,
    see docs/explanation/timing-model.md). They are used for every GPU.

    Attributes:
        instructions_per_fma: the instructions of a multiply-add with its share of loops and moves.
        instructions_per_global: the instructions of a global access with its address and check.
        instructions_per_shared: the instructions of an access to shared memory.
        instructions_per_spill: the extra instructions of a multiply-add whose sum is not held in a
            register.
        latency_cycles: the wait in each barrier interval that loads from global memory.
        branch_cycles: the wait for each load in a branch of its own.
        barrier_cycles: the wait at each barrier.
        shared_cycles: the cycles of shared memory for one access by a warp.
        conflict_cycles: the cycles of each further wavefront of an access.
        update_cycles: the cycles of the L2 for one contended atomic update.
        power_base: the activity of a card that runs any kernel.
        power_issue: the activity of the schedulers at their peak, with the arithmetic they issue.
        power_l2: the activity of the L2 at its peak.
        power_spill: the activity of one spilled multiply-add per cycle and multiprocessor.
    """

    instructions_per_fma: float = 1.33
    instructions_per_global: float = 2.0
    instructions_per_shared: float = 1.0
    instructions_per_spill: float = 5.66
    latency_cycles: float = 200.0
    branch_cycles: float = 159.0
    barrier_cycles: float = 185.0
    shared_cycles: float = 0.917
    conflict_cycles: float = 0.766
    update_cycles: float = 1.4
    power_base: float = 0.00637
    power_issue: float = 0.295
    power_l2: float = 0.715
    power_spill: float = 0.218


COEFFICIENTS = Coefficients()


@dataclass(frozen=True)
class Block:
    """The demands of a block on a multiprocessor.

    Attributes:
        resident: the number of blocks of the launch that a multiprocessor holds at once.
        instructions: the instructions of all its warps.
        spilled_fma: the multiply-adds of its warps whose sums are not held in registers.
        l2_bytes: the bytes moved between the multiprocessor and the L2.
        busy_cycles: the cycles of the unit that it keeps busy longest.
        wait_cycles: the cycles that a warp waits while the units have nothing else to do.
    """

    resident: int
    instructions: float
    spilled_fma: float
    l2_bytes: float
    busy_cycles: float
    wait_cycles: float


def block_demand(
    launch: Launch, traffic: Traffic, flops: float, profile: GpuProfile, c: Coefficients
) -> Block:
    """Return what an average block of ``launch``, which takes ``flops`` in all, asks for.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    warps = -(-launch.threads // _WARP)
    share = REGISTERS_PER_SM // (warps * _WARP) // _REGISTERS_STEP * _REGISTERS_STEP
    most = min(_REGISTERS_PER_THREAD, share)
    wanted = REGISTERS_PER_WORD * traffic.private_words
    registers = math.floor(min(REGISTERS_OWN + wanted, most))
    # The share of the private arrays that registers do not hold.
    spilled = min(1.0, max(0.0, REGISTERS_OWN + wanted - most) / wanted) if wanted else 0.0
    fma = flops / 2 / launch.blocks / launch.threads * warps
    instructions = (
        fma * (c.instructions_per_fma + c.instructions_per_spill * spilled)
        + c.instructions_per_global * (traffic.global_loads + traffic.global_stores)
        + c.instructions_per_shared * traffic.shared_accesses
    )
    conflicts = max(0.0, traffic.shared_wavefronts - traffic.shared_accesses)
    shared_cycles = c.shared_cycles * traffic.shared_accesses + c.conflict_cycles * conflicts
    l2_bytes = traffic.l2_sectors * SECTOR_BYTES
    busy_cycles = max(
        instructions / SCHEDULERS,
        fma * 2 * _WARP * sm_rate(profile) / (profile.fp32_tflops * 1e12),
        shared_cycles + traffic.global_sectors / L1_SECTORS_PER_CYCLE,
        l2_bytes / L2_BYTES_PER_CYCLE,
    )
    # A warp's own instructions in sequence, and the latency of its loads; idle warps do neither.
    active = min(warps, max(1.0, traffic.active_warps or warps))
    rounds = max(traffic.load_intervals, traffic.global_loads / active / LOADS_IN_FLIGHT)
    wait_cycles = (
        instructions / active
        + rounds * c.latency_cycles
        + traffic.branched_loads / active * c.branch_cycles
        + traffic.barriers * c.barrier_cycles
    )
    resident = resident_blocks(launch, traffic.static_shared_bytes, profile, registers)
    return Block(resident, instructions, fma * spilled, l2_bytes, busy_cycles, wait_cycles)


def sm_rate(profile: GpuProfile) -> float:
    """Return the cycles per second of all multiprocessors together."""
    return profile.sm_count * profile.max_clock_mhz * 1e6


def resident_blocks(
    launch: Launch, static_shared_bytes: float, profile: GpuProfile, registers: int = 0
) -> int:
    """Return how many blocks of ``launch`` a multiprocessor holds at once.

    Args:
        launch: the launch with its threads and dynamic shared memory.
        static_shared_bytes: the static shared memory of a block.
        profile: the GPU.
        registers: the registers of a thread, or 0 for no limit.

    Raises:
        KernelFault: no block fits.
    """
    threads = -(-launch.threads // _WARP) * _WARP
    shared = launch.shared_bytes + math.ceil(static_shared_bytes)
    blocks = min(profile.blocks_per_sm, profile.threads_per_sm // threads)
    if shared:
        blocks = min(blocks, profile.shared_per_sm // shared)
    if registers:
        allocated = -(-registers // _REGISTERS_STEP) * _REGISTERS_STEP
        blocks = min(blocks, REGISTERS_PER_SM // (allocated * threads))
    if blocks < 1:
        raise KernelFault(
            "constraints",
            f"No block of {launch.entry!r} ({launch.threads} threads, {shared} bytes of shared "
            f"memory) fits on a multiprocessor of the emulated {profile.name}.",
        )
    return blocks
