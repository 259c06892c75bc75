"""What a launch's time and energy are spent on, estimated from its work and a card's peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.emulator import (
    COEFFICIENTS,
    DEFAULT_PROFILE,
    L2_BYTES_PER_CYCLE,
    PROFILES,
    SCHEDULERS,
    GpuProfile,
    resident_blocks,
)
from pytest_gpuenergy.kernels import Launch
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import REGIONS, Region
from pytest_gpuenergy.search.priors.cuda_work import work_of_cuda
from pytest_gpuenergy.search.priors.triton_work import work_of_triton
from pytest_gpuenergy.search.priors.work import KernelWork
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.support import InputError, KernelFault

SECTORS_PER_CYCLE = 4.0
"""Sectors that an L1 moves per cycle, 128 bytes (CUDA C++ Programming Guide)."""
FUNCTIONS_PER_CYCLE = 16.0
"""Special functions that a multiprocessor computes per cycle (CUDA C++ Programming Guide)."""
_TENSOR_CORES = 8.0
"""Peak of tensor cores over that of float32; a guess."""
_UPDATES_PER_CYCLE = 1.0
"""Atomic updates per cycle: of a multiprocessor to different places, or of a card to one place; a
guess."""
_DRAM_SHARE, _DRAM_POWER = 0.9, 0.3
"""Share of the memory's peak that a kernel reaches, and its share of the dynamic power there; both
are guesses of the emulated GPU's timing model."""
_SLOPE = 4.0
"""Steepness of the power curve; a guess of the emulated GPU's timing model."""
_LAUNCH_S = 1e-6
"""Seconds that a launch takes by itself; a guess of the emulated GPU's timing model."""
_SECTOR_BYTES = 32
_DEPENDENT_CYCLES = 4.0
"""Cycles from an instruction of a warp to the next one, which usually depends on it; a guess."""
_LATENCY_CYCLES = 270.0
"""Latency of a load, about that of the L2; chosen by searches on an H100, see
docs/notes/search-strategies.md."""
_BARRIER_CYCLES = 60.0
"""Cycles that a barrier takes; chosen by the same searches."""
_REGISTERS, _REGISTERS_PER_WORD, _REGISTER_FILE = 40, 1.5, 65536
"""Registers of a thread without arrays, registers per word of its arrays, and registers of a
multiprocessor; the first two are guesses."""
Shares = Mapping[Region, float]
_MOST_THREADS = 1024
"""Threads of a block that CUDA allows."""
_NO_NUMBERS = (ArithmeticError, ValueError, RecursionError, InputError)
"""What counting raises for a text with numbers that no kernel can have."""


@dataclass(frozen=True)
class CardModel:
    """What the bottleneck model knows about a card.

    Attributes:
        profile: the profile of its model, or of a similar one if that is unknown.
        limit_w: the power limit that the card enforces; None if it reports none.
    """

    profile: GpuProfile
    limit_w: float | None = None

    @classmethod
    def of(cls, device: Device) -> CardModel:
        """Return the model of a device's card under its present power limit."""
        by_name = [profile for profile in PROFILES.values() if profile.name == device.name]
        alike = [
            profile for profile in PROFILES.values() if profile.architecture == device.architecture
        ]
        profile = [*by_name, *alike, DEFAULT_PROFILE][0]
        return cls(profile, enforced_setpoint(device).power_limit_w)

    @property
    def cycles_per_s(self) -> float:
        """The largest clock of a multiprocessor, in Hz."""
        return self.profile.max_clock_mhz * 1e6


@dataclass(frozen=True)
class Costs:
    """What a launch costs by the model.

    Attributes:
        busy_s: the time for which each unit of the busiest multiprocessor is busy.
        wait_s: the time of the launch itself, and for which a warp waits while nothing else can be
            done.
        activity_s: the time of each region at the unit's peak, times the unit's share of the
            dynamic power there.
        blocks: the number of blocks of the launch.
        guessed: the loops whose rounds are a guess, see `KernelWork`.
    """

    busy_s: Shares
    wait_s: float
    activity_s: Shares
    blocks: int
    guessed: frozenset[str] = frozenset()

    @property
    def time_s(self) -> float:
        """The time of one launch."""
        return max(self.busy_s.values()) + self.wait_s


def work_of(state: State, spec: KernelSpec) -> KernelWork | None:
    """Count the work of a state; None if its text is not understood.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    try:
        if state.language == "triton":
            triton = TritonFunction.of(state, spec)
            return None if triton is None else work_of_triton(triton)
        cuda = CudaKernel.of(state, spec)
        fits = cuda is not None and 0 < cuda.threads <= _MOST_THREADS
        return work_of_cuda(cuda) if cuda is not None and fits else None
    except _NO_NUMBERS:
        return None


def costs_of(work: KernelWork, card: CardModel, dram_bytes: float) -> Costs | None:
    """Return the costs of a launch that moves so many bytes to or from the device memory.

    None means that no block fits on a multiprocessor.
    """
    profile, rate = card.profile, card.cycles_per_s
    launch = Launch("kernel", (work.blocks, 1, 1), (work.threads, 1, 1), ())
    needed = math.ceil(_REGISTERS + _REGISTERS_PER_WORD * work.private_words)
    share = _REGISTER_FILE // (work.warps * 32) // 8 * 8
    try:
        resident = resident_blocks(launch, work.shared_bytes, profile, min(needed, share, 255))
    except KernelFault:
        return None
    blocks = -(-work.blocks // profile.sm_count)
    waves = -(-blocks // min(resident, blocks))
    tensor_rate = _TENSOR_CORES * profile.fp32_tflops * 1e12 / (profile.sm_count * rate)
    cycles: dict[Region, float] = {
        "compute": max(work.instructions / SCHEDULERS, work.tensor_flops / tensor_rate),
        "gmem": max(work.sectors / SECTORS_PER_CYCLE, work.l2_bytes / L2_BYTES_PER_CYCLE),
        "sfu": work.functions / FUNCTIONS_PER_CYCLE,
        "atomics": work.atomics / _UPDATES_PER_CYCLE,
        "smem": work.wavefronts,
    }
    busy_s = {region: blocks * some / rate for region, some in cycles.items()}
    dram_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
    in_turn = work.blocks * work.atomics / work.places / _UPDATES_PER_CYCLE / rate
    busy_s["gmem"] = max(busy_s["gmem"], dram_s / _DRAM_SHARE)
    busy_s["atomics"] = max(busy_s["atomics"], in_turn)
    wait_cycles = (
        work.serial * _DEPENDENT_CYCLES
        + work.rounds * _LATENCY_CYCLES
        + work.barriers * _BARRIER_CYCLES
    )
    wait_s = waves * wait_cycles / rate + _LAUNCH_S
    return Costs(busy_s, wait_s, _activity(work, card, dram_s), work.blocks, work.guessed)


def _activity(work: KernelWork, card: CardModel, dram_s: float) -> dict[Region, float]:
    cycles = card.profile.sm_count * card.cycles_per_s
    l2_s = work.blocks * work.l2_bytes / L2_BYTES_PER_CYCLE / cycles
    updated_s = work.blocks * work.atomics * _SECTOR_BYTES / L2_BYTES_PER_CYCLE / cycles
    issued_s = work.blocks * work.instructions / SCHEDULERS / cycles
    return {
        "compute": COEFFICIENTS.power_issue * issued_s,
        "gmem": COEFFICIENTS.power_l2 * l2_s + _DRAM_POWER * dram_s,
        "atomics": COEFFICIENTS.power_l2 * updated_s,
    }


def power_w(activity: float, card: CardModel) -> float:
    """Return the power that a card draws without a limit, by its activity."""
    profile = card.profile
    dynamic_w = profile.default_limit_w - profile.idle_w
    return profile.idle_w + dynamic_w * (1 - math.exp(-_SLOPE * activity))


def shares_of_time(busy_s: Shares, time_s: float) -> dict[Region, float]:
    """Return the shares of a measured time by region; they add up to 1.

    The busiest unit explains the time for which it is busy. This time is divided among all units by
    the squares of their busy times. The rest is waiting, which other work could overlap.
    """
    used = {region: min(1.0, busy_s.get(region, 0.0) / time_s) for region in REGIONS}
    used["overlap"] = 0.0
    explained = max(used.values())
    squares = math.fsum(share**2 for share in used.values())
    shares = {
        region: explained * share**2 / squares if squares else 0.0 for region, share in used.items()
    }
    shares["overlap"] = 1.0 - explained
    return shares


def shares_of_energy(costs: Costs) -> dict[Region, float]:
    """Return the shares of the dynamic energy by region; waiting takes none."""
    total = math.fsum(costs.activity_s.values())
    found = {region: costs.activity_s.get(region, 0.0) for region in REGIONS}
    return {region: part / total if total else 0.0 for region, part in found.items()}


def dominant(shares: Shares) -> Region:
    """Return the region with the largest share; the first among equals."""
    return max(REGIONS, key=lambda region: shares.get(region, 0.0))
