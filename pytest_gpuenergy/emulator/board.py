"""How emulated boards of one model differ: in power, as real ones do.

Seven real H200s differed by up to 5 % in energy, and by 0.3 % in time, below their power limits. An
emulated board draws more or less than the first one by a whole number of percent, at the same speed
as long as its power limit does not hold it back.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuenergy.emulator.governor import Demand

POWER_PERCENT = (0, 4, -2, 1, 3, -1, 2, -3)
"""By how much the power of boards 0, 1, ... differs from that of the first; it repeats from 8 on.
What is recorded or modelled is the first one's, whose figures are those of a single emulated GPU.
"""


def power_factor(index: int) -> float:
    """The power of the emulated board with this index, in units of that of the first one."""
    return 1 + POWER_PERCENT[index % len(POWER_PERCENT)] / 100


def on_board(demand: Demand, index: int) -> Demand:
    """What a run takes on the emulated board with this index; ``demand`` is on the first one."""
    return replace(demand, power_w=demand.power_w * power_factor(index))
