"""The numbers in the emulated GPU's model that no datasheet gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficients:
    """What the model of a kernel's time and power is made of, beside the GPU's profile.

    The defaults were fitted on the figures of case1, case3, case5 and case7 measured on an H200
    (``python bench/model_ranking.py --fit``); they stand for every GPU.

    Attributes:
        instructions_per_fma: a multiply-add with its share of loops and moves.
        instructions_per_global: a global access with its address and its bounds.
        instructions_per_shared: a shared access likewise.
        instructions_per_spill: of each multiply-add on a sum that is not in a register.
        registers: of a thread, beside its private arrays.
        latency_cycles: exposed in each barrier interval that loads from global memory.
        barrier_cycles: exposed at each barrier, where warps wait for one another.
        shared_cycles: of a multiprocessor's shared memory for one access by a warp; less than 1
            where the compiler joins neighbouring words.
        conflict_cycles: for each further wavefront that bank conflicts make of it.
        power_base: activity of a card that runs anything.
        power_fp32: of arithmetic at its peak.
        power_issue: of the schedulers at their peak.
        power_l2: of the L2 at its peak.
        power_spill: of one spilled multiply-add per cycle and multiprocessor.
    """

    instructions_per_fma: float = 1.19
    instructions_per_global: float = 2.0
    instructions_per_shared: float = 2.23
    instructions_per_spill: float = 6.32
    registers: float = 80.0
    latency_cycles: float = 200.0
    barrier_cycles: float = 150.0
    shared_cycles: float = 0.678
    conflict_cycles: float = 0.1
    power_base: float = 0.00823
    power_fp32: float = 0.158
    power_issue: float = 0.111
    power_l2: float = 0.688
    power_spill: float = 0.674


COEFFICIENTS = Coefficients()
