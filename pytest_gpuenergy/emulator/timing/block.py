"""What a block of a launch asks of a multiprocessor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpuenergy.emulator.profiles import GpuProfile
from pytest_gpuenergy.emulator.timing.coefficients import Coefficients
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import Launch
from pytest_gpuenergy.support import KernelFault

SCHEDULERS = 4
"""Of a multiprocessor, each one instruction per cycle (architecture whitepapers)."""

SECTOR_BYTES = 32

L2_BYTES_PER_CYCLE = 64
"""Per multiprocessor; a guess."""

_WARP = 32
_L1_SECTORS_PER_CYCLE = 4  # 128 bytes (CUDA programming guide)
_REGISTERS_PER_SM = 65536
_REGISTERS_PER_THREAD = 255
_REGISTERS_STEP = 8  # CUDA occupancy calculator: 256 to a warp
# As NVRTC 13.5 gives for sm_90.
_REGISTERS_OWN = 40
_REGISTERS_PER_WORD = 1.5  # of private arrays: also for operands that are loaded ahead
_LOADS_IN_FLIGHT = 8  # of one thread; a guess


@dataclass(frozen=True)
class Block:
    """What a block asks of a multiprocessor.

    Attributes:
        resident: how many blocks of the launch a multiprocessor holds at once.
        instructions: of all its warps.
        spilled_fma: multiply-adds of its warps whose sum is not held in a register.
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


def block_of(
    launch: Launch, traffic: Traffic, flops: float, profile: GpuProfile, c: Coefficients
) -> Block:
    """What an average block of ``launch`` asks for.

    Args:
        launch: the blocks and their threads.
        traffic: of an average block.
        flops: of the whole launch.
        profile: the GPU.
        c: the model's coefficients.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    registers, spilled = _registers(launch, traffic.private_words)
    warps = _warps(launch)
    fma = flops / 2 / launch.blocks / launch.threads * warps
    instructions = (
        fma * (c.instructions_per_fma + c.instructions_per_spill * spilled)
        + c.instructions_per_global * (traffic.global_loads + traffic.global_stores)
        + c.instructions_per_shared * traffic.shared_accesses
    )
    l2_bytes = traffic.l2_sectors * SECTOR_BYTES
    busy_cycles = max(
        instructions / SCHEDULERS,
        fma * 2 * _WARP * sm_rate(profile) / (profile.fp32_tflops * 1e12),
        _shared_cycles(traffic, c) + traffic.global_sectors / _L1_SECTORS_PER_CYCLE,
        l2_bytes / L2_BYTES_PER_CYCLE,
    )
    # A warp's own instructions in sequence, and the latency of its loads; idle warps do neither.
    active = min(warps, max(1.0, traffic.active_warps or warps))
    rounds = max(traffic.load_intervals, traffic.global_loads / active / _LOADS_IN_FLIGHT)
    wait_cycles = (
        instructions / active
        + rounds * c.latency_cycles
        + traffic.branched_loads / active * c.branch_cycles
        + traffic.barriers * c.barrier_cycles
    )
    resident = resident_blocks(launch, traffic.static_shared_bytes, profile, registers)
    return Block(resident, instructions, fma * spilled, l2_bytes, busy_cycles, wait_cycles)


def _shared_cycles(traffic: Traffic, c: Coefficients) -> float:
    conflicts = max(0.0, traffic.shared_wavefronts - traffic.shared_accesses)
    return c.shared_cycles * traffic.shared_accesses + c.conflict_cycles * conflicts


def sm_rate(profile: GpuProfile) -> float:
    """Cycles per second of all multiprocessors."""
    return profile.sm_count * profile.max_clock_mhz * 1e6


def resident_blocks(
    launch: Launch, static_shared_bytes: float, profile: GpuProfile, registers: int = 0
) -> int:
    """Blocks of ``launch`` that a multiprocessor holds at once.

    Args:
        launch: whose threads and dynamic shared memory count.
        static_shared_bytes: of a block.
        profile: the GPU.
        registers: of a thread; 0 for no limit.

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


def _registers(launch: Launch, private_words: float) -> tuple[int, float]:
    """Registers of a thread, and the share of its private arrays that does not fit in them."""
    threads = _warps(launch) * _WARP
    share = _REGISTERS_PER_SM // threads // _REGISTERS_STEP * _REGISTERS_STEP
    most = min(_REGISTERS_PER_THREAD, share)
    wanted = _REGISTERS_PER_WORD * private_words
    needed = _REGISTERS_OWN + wanted
    spilled = min(1.0, max(0.0, needed - most) / wanted) if wanted else 0.0
    return math.floor(min(needed, most)), spilled


def _warps(launch: Launch) -> int:
    return -(-launch.threads // _WARP)
