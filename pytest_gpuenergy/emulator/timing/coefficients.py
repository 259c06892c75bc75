"""The numbers in the emulated GPU's timing model that no datasheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficients:
    """Parameters of the model of a kernel's time and power, besides the GPU's profile.

    The defaults were fitted to kernels measured on H200s (by ``studies/model_ranking.py --fit``,
    see docs/explanation/timing-model.md). They are used for every GPU.

    Attributes:
        instructions_per_fma: a multiply-add with its share of loops and moves.
        instructions_per_global: a global access with its address and bounds check.
        instructions_per_shared: a shared access likewise.
        instructions_per_spill: a multiply-add on a sum that is not held in a register, in addition.
        latency_cycles: exposed in each barrier interval that loads from global memory.
        branch_cycles: exposed by each load in a branch of its own.
        barrier_cycles: exposed at each barrier, where warps wait for one another.
        shared_cycles: of a multiprocessor's shared memory for one access by a warp.
        conflict_cycles: of each further wavefront that the access's width or bank conflicts cause.
        update_cycles: of the L2 for one atomic update of a sector in the kilobyte that takes most.
        power_base: activity of a card that runs any kernel.
        power_issue: activity of the schedulers at their peak, with the arithmetic they issue.
        power_l2: activity of the L2 at its peak.
        power_spill: activity of one spilled multiply-add per cycle and multiprocessor.
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
