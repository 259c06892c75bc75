"""The speed and the power of an emulated card: governor, hidden states, and boards that differ.

The effect of a power cap on a kernel is a model that has not been compared with recorded figures.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from pytest_gpuenergy.emulator.card.profiles import CLOCK_STEP_MHZ, GpuProfile

# Bits of NVML's clock event reasons.
GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL_SLOWDOWN = 0x20
HW_POWER_BRAKE = 0x80

# Guesses: below 55 % of the top clock the voltage stays at its floor, 65 % of the top voltage.
_FLOOR_CLOCK = 0.55
_FLOOR_VOLTAGE = 0.65
_LEAST_DUTY = 1e-6
"""The least share of the time in which a card under a low cap works: avoids a division by zero."""
_LEAST_RATIO = 0.01
"""The least share of the clock that the fault ``below_lock`` leaves."""


MAX_RUN_S = 1e6
"""The longest time that one run of a kernel takes, however little power there is for it."""

MAX_POWER_W = 50_000
"""The limit for any power in the file of a card; the limit of `Warmth` is near it."""

MAX_CLOCK_MHZ = 100_000

_Share = Annotated[float, Meta(ge=0, le=1)]
_Power = Annotated[float, Meta(ge=0, le=MAX_POWER_W)]


@dataclass(frozen=True)
class Demand:
    """The time and the power that a kernel takes when nothing limits the card.

    Attributes:
        time_s: the time of one run at the top clock, in seconds.
        power_w: the power of the whole card while the kernel repeats, in watts.
        memory_time: the share of the time that does not depend on the clock, 0 to 1.
        memory_power: the share of the dynamic power spent outside the clocked cores, 0 to 1.
        clock: the effective clock meanwhile, relative to the top clock. It is less than 1 for work
            that was recorded while the default limit held it back: there, nothing limits the card
            further.
    """

    time_s: Annotated[float, Meta(ge=1e-12, le=MAX_RUN_S)]
    power_w: _Power
    memory_time: _Share = 0.0
    memory_power: _Share = 0.0
    clock: _Share = 1.0


@dataclass(frozen=True)
class OperatingPoint:
    """The point at which a card runs a kernel.

    Attributes:
        time_s: the time of one run, in seconds.
        power_w: the power of the card.
        clock_mhz: the clock that NVML reports.
        event_reasons: the bits of NVML's clock event reasons.
        effective_clock_mhz: the clock at which the SMs run, see `point_in_state`.
    """

    time_s: Annotated[float, Meta(ge=0, le=MAX_RUN_S)]
    power_w: _Power
    clock_mhz: Annotated[int, Meta(ge=0, le=MAX_CLOCK_MHZ)]
    event_reasons: Annotated[int, Meta(ge=0, le=1 << 62)]
    effective_clock_mhz: Annotated[float, Meta(ge=0, le=MAX_CLOCK_MHZ)] = 0.0


def voltage(clock_ratio: float) -> float:
    """Return the voltage relative to that at the top clock: a floor, then a straight line to 1.

    Args:
        clock_ratio: the clock relative to the top clock, 0 to 1.
    """
    above = max(0.0, clock_ratio - _FLOOR_CLOCK) / (1 - _FLOOR_CLOCK)
    return _FLOOR_VOLTAGE + (1 - _FLOOR_VOLTAGE) * above


def time_at(demand: Demand, clock_ratio: float) -> float:
    """Return the time of one run in seconds: compute time scales as 1/f, memory time does not."""
    return demand.time_s * (demand.memory_time + (1 - demand.memory_time) / clock_ratio)


def power_at(demand: Demand, profile: GpuProfile, clock_ratio: float) -> float:
    """Return the power in watts.

    It is the sum of the idle power, the power of the cores, which scales as f V(f)^2, and that of
    the memory, in proportion to the runs per second.
    """
    idle_w = min(profile.idle_w, demand.power_w)
    dynamic_w = demand.power_w - idle_w
    core = (1 - demand.memory_power) * clock_ratio * voltage(clock_ratio) ** 2
    memory = demand.memory_power * demand.time_s / time_at(demand, clock_ratio)
    return idle_w + dynamic_w * (core + memory)


@functools.lru_cache(maxsize=64)  # a card asks every few milliseconds of its time
def operating_point(
    demand: Demand, profile: GpuProfile, cap_w: float, clock_limit_mhz: int | None = None
) -> OperatingPoint:
    """Return the highest clock at which the power does not exceed ``cap_w``.

    If the power at the lowest clock exceeds the cap too, the card works only part of the time. A
    cap that the kernel does not reach changes nothing.

    Args:
        demand: the demand of the kernel without a limit.
        profile: the GPU.
        cap_w: the enforced power limit, above the idle power.
        clock_limit_mhz: an upper limit of the clock, set by a lock or by thermal protection. A cap
            can force the clock below a lock.
    """
    top = profile.max_clock_mhz
    lowest = (top - profile.min_clock_mhz) // CLOCK_STEP_MHZ  # in steps below the top
    first = 0
    if clock_limit_mhz is not None:
        first = min(lowest, max(0, -(-(top - clock_limit_mhz) // CLOCK_STEP_MHZ)))

    def ratio(step: int) -> float:
        return (top - step * CLOCK_STEP_MHZ) / top

    low, high = first, lowest  # power falls with the step: bisect for the first that fits
    while low < high:
        middle = (low + high) // 2
        if power_at(demand, profile, ratio(middle)) <= cap_w:
            high = middle
        else:
            low = middle + 1
    time_s, power_w = time_at(demand, ratio(low)), power_at(demand, profile, ratio(low))
    capped = low > first
    if power_w > cap_w:
        capped = True
        idle_w = min(profile.idle_w, demand.power_w)
        duty = min(1.0, max(_LEAST_DUTY, (cap_w - idle_w) / (power_w - idle_w)))
        time_s, power_w = time_s / duty, idle_w + (power_w - idle_w) * duty
    clock_mhz = top - low * CLOCK_STEP_MHZ
    return OperatingPoint(time_s, power_w, clock_mhz, SW_POWER_CAP if capped else 0)


def slowed_point(point: OperatingPoint, demand: Demand, percent: float) -> OperatingPoint:
    """Return the point of a card whose SMs are slower than NVML says, at the same power."""
    ratio = max(1 - percent / 100, _LEAST_RATIO)
    return replace(
        point,
        time_s=point.time_s * (demand.memory_time + (1 - demand.memory_time) / ratio),
        effective_clock_mhz=point.effective_clock_mhz * ratio,
    )


# Hidden states. On two H200s and one H100 below their power limits, the clock and the power of a
# kernel stepped within a second, by 0.1 to 0.6 % and 0.8 to 1.5 %, between states that lasted for
# seconds or minutes and that NVML does not report; the clocks of two kernels differed by up to 1 %
# (docs/notes/card-states.md). The cause is unknown: the rules and sizes below are guesses.
_KERNEL, _SWITCH = range(16, 18)
"""Streams of `noise`, in addition to those of the card's sensors: for kernels, and for switches."""
_WARM_C, _COOL_C = 42.0, 40.0
"""The temperatures above which the first bit of the state is set, and below which it is cleared."""
_RARE = 2.5
"""The noise above which the second bit changes, which happens once in 250 spans."""
_KERNEL_SPREAD = 0.002
"""The relative spread of the clock between kernels."""


@dataclass(frozen=True)
class _HiddenState:
    """A hidden state: its factors of the clock and of the power."""

    clock: float
    power: float


# The first bit of a state is set by warmth, the second one by chance.
_STATES = (
    _HiddenState(1.0, 1.0),
    _HiddenState(0.998, 0.99),
    _HiddenState(1.001, 1.008),
    _HiddenState(0.999, 0.998),
)
HIDDEN_STATES = len(_STATES)


def next_hidden_state(state: int, temperature_c: float, seed: int, block: int | None) -> int:
    """Return the hidden state that follows ``state``.

    One bit of it is set above 42 degrees and cleared below 40. The other one changes at the
    beginning of one span of 0.4 s in 250; ``block`` is the number of the span that has just
    begun, or None within a span.
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
def point_in_state(point: OperatingPoint, demand: Demand, state: int, seed: int) -> OperatingPoint:
    """Return the operating point at which a card in a hidden state really runs.

    State 0 keeps the governor's time and power. The effective clock differs a little between
    kernels.
    """
    hidden = _STATES[state]
    kernel = round(demand.time_s * 1e9) * 1_000_003 + round(demand.power_w * 1000)
    clock = 1 + _KERNEL_SPREAD * noise(seed, _KERNEL, kernel)
    return replace(
        point,
        time_s=point.time_s * (demand.memory_time + (1 - demand.memory_time) / hidden.clock),
        power_w=point.power_w * hidden.power,
        effective_clock_mhz=point.clock_mhz * demand.clock * clock * hidden.clock,
    )


# The difference in power of boards 0, 1, ... from board 0, in percent; it repeats from board 8 on.
# Seven real H200s differed by up to 5 % in energy, and by 0.3 % in time, below their power limits.
_POWER_PERCENT = (0, 4, -2, 1, 3, -1, 2, -3)


def power_factor(index: int) -> float:
    """Return the power of the emulated board ``index`` relative to that of board 0."""
    return 1 + _POWER_PERCENT[index % len(_POWER_PERCENT)] / 100


def demand_on_board(demand: Demand, index: int) -> Demand:
    """Return the demand on the emulated board ``index`` of a kernel with ``demand`` on board 0."""
    return replace(demand, power_w=demand.power_w * power_factor(index))


def noise(seed: int, stream: int, index: int) -> float:
    """Return noise of mean 0 and standard deviation 1, bounded by +-3.47.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014) hashes the arguments; the sum of its four 16-bit parts is nearly normal.
    """
    mask = (1 << 64) - 1
    x = (seed + stream * 0xD1B54A32D192ED03 + index * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    total = (x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48)
    return (total / 65535 - 2) * 3**0.5
