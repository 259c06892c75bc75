"""Estimates, from a launch's work and a card's peaks, where its time and energy go."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.emulator import (
    COEFFICIENTS,
    DEFAULT_PROFILE,
    DRAM_SHARE,
    L1_SECTORS_PER_CYCLE,
    L2_BYTES_PER_CYCLE,
    LAUNCH_S,
    POWER_DRAM,
    PROFILES,
    REGISTERS_OWN,
    REGISTERS_PER_SM,
    REGISTERS_PER_WORD,
    SCHEDULERS,
    SECTOR_BYTES,
    GpuProfile,
    resident_blocks,
    unlimited_power_w,
)
from pytest_gpuenergy.kernels import Launch
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import REGIONS, Region
from pytest_gpuenergy.search.priors.cuda_work import count_cuda_work
from pytest_gpuenergy.search.priors.triton_work import count_triton_work
from pytest_gpuenergy.search.priors.work import KernelWork
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.support import InputError, KernelFault

_FUNCTIONS_PER_CYCLE = 16.0
"""Special functions that a multiprocessor computes per cycle (CUDA C++ Programming Guide)."""
_TENSOR_CORES = 8.0
"""Peak of tensor cores over that of float32; a guess."""
_UPDATES_PER_CYCLE = 1.0
"""Atomic updates per cycle: of a multiprocessor to different places, or of a card to one place; a
guess."""
_DEPENDENT_CYCLES = 4.0
"""Cycles from an instruction of a warp to the next one, which usually depends on it; a guess."""
_LATENCY_CYCLES = 270.0
"""Latency of a load, about that of the L2; chosen by searches on an H100, see
docs/notes/search-strategies.md."""
_BARRIER_CYCLES = 60.0
"""Cycles that a barrier takes; chosen by the same searches."""
Shares = Mapping[Region, float]
_MAX_THREADS = 1024
"""Threads of a block that CUDA allows."""
_NO_NUMBERS = (ArithmeticError, ValueError, RecursionError, InputError)
"""The exceptions that counting raises for a text with numbers that no kernel can have."""
_AT_LIMIT = 0.97
"""Share of the power limit above which the limit counts as slowing the card."""
_SLACK = 0.2
"""Slack of a card that the limit slows although the model expects less power; a guess."""
_MIN_S = 1e-15
_MAX_GAIN = 3.0
"""Logarithm of the largest speedup that is predicted for any move."""


def count_work(state: State, spec: KernelSpec) -> KernelWork | None:
    """Count the work of a state; None if its text is not understood.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    try:
        if state.language == "triton":
            triton = TritonFunction.of(state, spec)
            return None if triton is None else count_triton_work(triton)
        cuda = CudaKernel.of(state, spec)
        fits = cuda is not None and 0 < cuda.threads <= _MAX_THREADS
        return count_cuda_work(cuda) if cuda is not None and fits else None
    except _NO_NUMBERS:
        return None


@dataclass(frozen=True)
class LaunchCosts:
    """The cost of a launch by the model.

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

    def changed(self, after: LaunchCosts) -> frozenset[Region]:
        """Return the regions whose work differs by more than 1 % of the time, by the model."""
        least_s = 0.01 * self.time_s
        regions = {
            region
            for region, busy_s in self.busy_s.items()
            if abs(after.busy_s[region] - busy_s) > least_s
        }
        if abs(after.wait_s - self.wait_s) > least_s:
            regions.add("overlap")
        return frozenset(regions)


@dataclass(frozen=True)
class CardModel:
    """The figures of a card that the bottleneck model uses.

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

    def costs(self, work: KernelWork, dram_bytes: float) -> LaunchCosts | None:
        """Return the costs of a launch that moves so many bytes to or from the device memory.

        None means that no block fits on a multiprocessor.
        """
        profile, rate = self.profile, self.cycles_per_s
        launch = Launch("kernel", (work.blocks, 1, 1), (work.threads, 1, 1), ())
        needed = math.ceil(REGISTERS_OWN + REGISTERS_PER_WORD * work.private_words)
        share = REGISTERS_PER_SM // (work.warps * 32) // 8 * 8
        try:
            resident = resident_blocks(launch, work.shared_bytes, profile, min(needed, share, 255))
        except KernelFault:
            return None
        blocks = -(-work.blocks // profile.sm_count)
        waves = -(-blocks // min(resident, blocks))
        tensor_rate = _TENSOR_CORES * profile.fp32_tflops * 1e12 / (profile.sm_count * rate)
        cycles: dict[Region, float] = {
            "compute": max(work.instructions / SCHEDULERS, work.tensor_flops / tensor_rate),
            "gmem": max(work.sectors / L1_SECTORS_PER_CYCLE, work.l2_bytes / L2_BYTES_PER_CYCLE),
            "sfu": work.functions / _FUNCTIONS_PER_CYCLE,
            "atomics": work.atomics / _UPDATES_PER_CYCLE,
            "smem": work.wavefronts,
        }
        busy_s = {region: blocks * unit_cycles / rate for region, unit_cycles in cycles.items()}
        dram_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
        in_turn = work.blocks * work.atomics / work.places / _UPDATES_PER_CYCLE / rate
        busy_s["gmem"] = max(busy_s["gmem"], dram_s / DRAM_SHARE)
        busy_s["atomics"] = max(busy_s["atomics"], in_turn)
        wait_cycles = (
            work.serial * _DEPENDENT_CYCLES
            + work.rounds * _LATENCY_CYCLES
            + work.barriers * _BARRIER_CYCLES
        )
        wait_s = waves * wait_cycles / rate + LAUNCH_S
        all_cycles = profile.sm_count * rate
        l2_s = work.blocks * work.l2_bytes / L2_BYTES_PER_CYCLE / all_cycles
        updated_s = work.blocks * work.atomics * SECTOR_BYTES / L2_BYTES_PER_CYCLE / all_cycles
        issued_s = work.blocks * work.instructions / SCHEDULERS / all_cycles
        activity_s: dict[Region, float] = {
            "compute": COEFFICIENTS.power_issue * issued_s,
            "gmem": COEFFICIENTS.power_l2 * l2_s + POWER_DRAM * dram_s,
            "atomics": COEFFICIENTS.power_l2 * updated_s,
        }
        return LaunchCosts(busy_s, wait_s, activity_s, work.blocks, work.guessed)

    def situation(
        self,
        costs: LaunchCosts,
        time_s: float,
        *,
        measured_w: float | None = None,
        used: Shares | None = None,
    ) -> Situation:
        """Return the situation of a measured state.

        Args:
            costs: the costs of its work by the model.
            time_s: the measured time of one launch.
            measured_w: the measured power; None if it was not measured.
            used: the share of the time for which each unit is busy, by a profiler.
        """
        busy_s = costs.busy_s
        if used:
            busy_s = {**busy_s, **{region: share * time_s for region, share in used.items()}}
        busiest_s = max(busy_s.values())
        scale = min(1.0, time_s / busiest_s) if busiest_s else 1.0
        busy_s = {region: unit_s * scale for region, unit_s in busy_s.items()}
        wanted_w = unlimited_power_w(
            math.fsum(costs.activity_s.values()) / costs.time_s, self.profile
        )
        drawn_w = wanted_w if measured_w is None else measured_w
        limit_w = math.inf if self.limit_w is None else self.limit_w
        idle_w = self.profile.idle_w
        return Situation(
            time_s=time_s,
            costs=replace(costs, busy_s=busy_s),
            still=min(1.0, idle_w / max(min(drawn_w, limit_w), 1.0)),
            limited=drawn_w >= _AT_LIMIT * limit_w,
            slack=max(_SLACK, _log_w(wanted_w - idle_w) - _log_w(limit_w - idle_w)),
        )


@dataclass(frozen=True)
class Situation:
    """The parts of a measured state's time and energy.

    Attributes:
        time_s: the time of one launch.
        costs: the costs by the model, scaled so that no unit is busy for longer than was measured.
        still: the share of the energy that the idle card would take during the launch.
        limited: whether the power limit slows the card.
        slack: the natural logarithm of the speedup that the launch would have without the limit.
    """

    time_s: float
    costs: LaunchCosts
    still: float
    limited: bool
    slack: float

    @cached_property
    def time_shares(self) -> Shares:
        """The shares of the time by region; they add up to 1.

        The busiest unit explains the time for which it is busy. This time is divided among all
        units by the squares of their busy times. The rest is waiting, which other work could
        overlap.
        """
        busy_s = {region: self.costs.busy_s.get(region, 0.0) for region in REGIONS}
        used = {region: min(1.0, unit_s / self.time_s) for region, unit_s in busy_s.items()}
        used["overlap"] = 0.0
        explained = max(used.values())
        squares = math.fsum(share**2 for share in used.values())
        shares = {
            region: explained * share**2 / squares if squares else 0.0
            for region, share in used.items()
        }
        shares["overlap"] = 1.0 - explained
        return shares

    @cached_property
    def energy_shares(self) -> Shares:
        """The shares of the dynamic energy by region; waiting takes none."""
        activity_s = self.costs.activity_s
        total_s = math.fsum(activity_s.values())
        by_region = {region: activity_s.get(region, 0.0) for region in REGIONS}
        return {region: part / total_s if total_s else 0.0 for region, part in by_region.items()}

    @property
    def bottleneck(self) -> Region:
        """The region on which most of the time is spent; the first among equals."""
        return max(REGIONS, key=lambda region: self.time_shares[region])

    def predicted_saving(
        self, counted: LaunchCosts, after: LaunchCosts, objective: Metric
    ) -> float:
        """Return the natural logarithm of the gain in the objective that the model predicts.

        Each unit's time, the waiting and the energy change in proportion to the model's. At the
        power limit, the time is the one in which the card may spend the dynamic energy.

        Args:
            counted: the costs of this state by the model, not scaled.
            after: the costs of the predicted state.
            objective: the metric that the search minimizes.
        """
        busy_s = []
        for region, unit_s in self.costs.busy_s.items():
            before_s, after_s = counted.busy_s[region], after.busy_s[region]
            busy_s.append(unit_s * after_s / before_s if before_s else unit_s + after_s)
        waited_s = self.time_s - max(self.costs.busy_s.values())
        time_s = max(_MIN_S, max(busy_s) + waited_s * after.wait_s / counted.wait_s)
        faster = math.log(self.time_s / time_s)
        before_s, after_s = (
            max(math.fsum(costs.activity_s.values()), _MIN_S) for costs in (counted, after)
        )
        leaner = math.log(before_s / after_s)
        if self.limited:
            faster = min(leaner, faster + self.slack)
            cheaper = faster  # the power stays that of the limit
        else:
            rest = self.still * math.exp(-faster) + (1 - self.still) * math.exp(-leaner)
            cheaper = -math.log(rest)
        return max(-_MAX_GAIN, min(_MAX_GAIN, _objective_change(objective, faster, cheaper)))

    def involvement(
        self, regions: Collection[Region], reducible: Shares, objective: Metric
    ) -> float:
        """Return the share of the objective's logarithm that a move can change.

        Args:
            regions: the regions that the move relieves.
            reducible: the share of each region's work that the contract does not require.
            objective: the metric that the search minimizes.
        """
        of_time, of_energy = (
            math.fsum(shares[region] * reducible[region] for region in regions)
            for shares in (self.time_shares, self.energy_shares)
        )
        if self.limited:
            return _objective_change(objective, of_energy, of_energy)
        cheaper = self.still * of_time + (1 - self.still) * of_energy
        return _objective_change(objective, of_time, cheaper)


def _objective_change(objective: Metric, faster: float, cheaper: float) -> float:
    return {Metric.TIME: faster, Metric.ENERGY: cheaper, Metric.EDP: faster + cheaper}[objective]


def _log_w(dynamic_w: float) -> float:
    return math.log(max(dynamic_w, 1.0))
