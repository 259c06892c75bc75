"""States of an emulated card that NVML does not report, and the clock at which its SMs really run.

On two H200 and one H100 whose power limits were not reached, the clock and the power of a kernel
stepped within a second, by 0.1 to 0.6 % and 0.8 to 1.5 %, between states that lasted for seconds or
minutes, and the clocks of two kernels differed by up to 1 % (``docs/notes/card-states.md``). What
causes this is unknown: the rules and sizes below are guesses.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from pytest_gpuenergy.emulator.governor import Demand, OperatingPoint
from pytest_gpuenergy.emulator.noise import noise

_KERNEL, _SWITCH = range(16, 18)  # streams of the noise, besides those of the card

_WARM_C, _COOL_C = 42.0, 40.0
_RARE = 2.5  # which the noise exceeds once in 250 blocks
_KERNEL_SPREAD = 0.002


@dataclass(frozen=True)
class _State:
    """Factors of the clock and of the power."""

    clock: float
    power: float


# The first bit of a state is set by warmth, the second one by chance.
_STATES = (_State(1.0, 1.0), _State(0.998, 0.99), _State(1.001, 1.008), _State(0.999, 0.998))
COUNT = len(_STATES)


def next_state(state: int, temperature_c: float, seed: int, block: int | None) -> int:
    """The state that follows ``state``.

    Args:
        state: 0 to `COUNT` - 1.
        temperature_c: above 42 degrees one bit of the state is set, below 40 it is cleared.
        seed: of the card.
        block: the number of a span of 0.4 s that has just begun, in one of 250 of which the other
            bit changes; None within such a span.
    """
    warm = state & 1
    if temperature_c > _WARM_C:
        warm = 1
    elif temperature_c < _COOL_C:
        warm = 0
    other = state & 2
    if block is not None and noise(seed, _SWITCH, block) > _RARE:
        other ^= 2
    return warm | other


@functools.lru_cache(maxsize=64)  # a card asks every 20 ms of its time
def in_state(point: OperatingPoint, demand: Demand, state: int, seed: int) -> OperatingPoint:
    """The operating point at which the card really runs.

    Args:
        point: that of the governor.
        demand: of the kernel, whose clock differs a little from that of others.
        state: see `next_state`; state 0 has the time and the power of the governor.
        seed: of the card.
    """
    one = _STATES[state]
    kernel = round(demand.time_s * 1e9) * 1_000_003 + round(demand.power_w * 1000)
    clock = 1 + _KERNEL_SPREAD * noise(seed, _KERNEL, kernel)
    return replace(
        point,
        time_s=point.time_s * (demand.memory_time + (1 - demand.memory_time) / one.clock),
        power_w=point.power_w * one.power,
        effective_clock_mhz=point.clock_mhz * clock * one.clock,
    )
