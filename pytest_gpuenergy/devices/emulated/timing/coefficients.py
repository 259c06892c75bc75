"""The numbers in the emulated GPU's model that no datasheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficients:
    """What the model of a kernel's time and power is made of, beside the GPU's profile.

    The defaults were fitted on kernels that were measured on H200s (``python
    bench/model_ranking.py --fit``, see docs/explanation/timing-model.md). They stand for every GPU.

    Attributes:
        instructions_per_fma: a multiply-add with its share of loops and moves.
        instructions_per_global: a global access with its address and its bounds.
        instructions_per_shared: a shared access likewise.
        instructions_per_spill: of each multiply-add on a sum that is not in a register.
        latency_cycles: exposed in each barrier interval that loads from global memory.
        branch_cycles: exposed by each load in a branch of its own.
        barrier_cycles: exposed at each barrier, where warps wait for one another.
        shared_cycles: of a multiprocessor's shared memory for one access by a warp.
        conflict_cycles: for each further wavefront that its width or bank conflicts make of it.
        power_base: activity of a card that runs anything.
        power_issue: of the schedulers at their peak, with the arithmetic that they issue.
        power_l2: of the L2 at its peak.
        power_spill: of one spilled multiply-add per cycle and multiprocessor.
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
    power_base: float = 0.00637
    power_issue: float = 0.295
    power_l2: float = 0.715
    power_spill: float = 0.218


COEFFICIENTS = Coefficients()
