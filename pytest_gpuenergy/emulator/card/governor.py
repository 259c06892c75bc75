"""What a power cap does to a kernel: a model that no recorded figure backs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from pytest_gpuenergy.emulator.card.profiles import CLOCK_STEP_MHZ, GpuProfile

_MASK = (1 << 64) - 1
_SQRT3 = 3**0.5


def noise(seed: int, stream: int, index: int) -> float:
    """A value of mean 0 and standard deviation 1, bounded by +-3.47.

    SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014) hashes the arguments; the sum of its four 16-bit parts is nearly normal.
    """
    x = (seed + stream * 0xD1B54A32D192ED03 + index * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x ^= x >> 31
    total = (x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48)
    return (total / 65535 - 2) * _SQRT3


GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL_SLOWDOWN = 0x20
HW_POWER_BRAKE = 0x80

# Guesses: below 55 % of the top clock the voltage stays at its floor, 65 % of the top voltage.
_FLOOR_CLOCK = 0.55
_FLOOR_VOLTAGE = 0.65
_LEAST_DUTY = 1e-6
_LEAST_RATIO = 0.01


@dataclass(frozen=True)
class Demand:
    """What one run of a kernel takes when nothing limits the card.

    Attributes:
        time_s: seconds of one run at the top clock.
        power_w: of the whole card while the kernel repeats.
        memory_time: share of the time that does not depend on the clock, 0 to 1.
        memory_power: share of the dynamic power spent outside the clocked cores, 0 to 1.
    """

    time_s: float
    power_w: float
    memory_time: float = 0.0
    memory_power: float = 0.0


@dataclass(frozen=True)
class OperatingPoint:
    """Where the governor lets the card run. ``event_reasons`` are NVML's bits.

    ``clock_mhz`` is what NVML reports, ``effective_clock_mhz`` what the SMs run at (`in_state`).
    """

    time_s: float
    power_w: float
    clock_mhz: int
    event_reasons: int
    effective_clock_mhz: float = 0.0


def voltage(clock_ratio: float) -> float:
    """Voltage relative to the voltage at the top clock: a floor, then a straight line to 1.

    Args:
        clock_ratio: clock relative to the top clock, 0 to 1.
    """
    above = max(0.0, clock_ratio - _FLOOR_CLOCK) / (1 - _FLOOR_CLOCK)
    return _FLOOR_VOLTAGE + (1 - _FLOOR_VOLTAGE) * above


def time_at(demand: Demand, clock_ratio: float) -> float:
    """Seconds of one run: compute time scales as 1/f, memory time does not."""
    return demand.time_s * (demand.memory_time + (1 - demand.memory_time) / clock_ratio)


def power_at(demand: Demand, profile: GpuProfile, clock_ratio: float) -> float:
    """Watts: idle power, core power as f V(f)^2, memory power in proportion to runs per second."""
    idle_w = min(profile.idle_w, demand.power_w)
    dynamic_w = demand.power_w - idle_w
    core = (1 - demand.memory_power) * clock_ratio * voltage(clock_ratio) ** 2
    memory = demand.memory_power * demand.time_s / time_at(demand, clock_ratio)
    return idle_w + dynamic_w * (core + memory)


@functools.lru_cache(maxsize=64)  # a card asks every few milliseconds of its time
def operating_point(
    demand: Demand, profile: GpuProfile, cap_w: float, clock_limit_mhz: int | None = None
) -> OperatingPoint:
    """The highest clock whose power does not exceed ``cap_w``, up to the other limit.

    If the power at the lowest clock exceeds it too, the card works only part of the time. A cap
    that the kernel does not reach changes nothing.

    Args:
        demand: what the kernel takes without a limit.
        profile: the GPU.
        cap_w: enforced power limit, above the idle power.
        clock_limit_mhz: another upper limit of the clock: that of a lock, which a cap can go below,
            or that of thermal protection.
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


def slowed(point: OperatingPoint, demand: Demand, percent: float) -> OperatingPoint:
    """The point of a card whose SMs run slower than the governor says, at the same power.

    Args:
        point: that of the governor, in the present state of the card.
        demand: of the kernel.
        percent: by how much the SMs are slower; at most 99.
    """
    ratio = max(1 - percent / 100, _LEAST_RATIO)
    return replace(
        point,
        time_s=point.time_s * (demand.memory_time + (1 - demand.memory_time) / ratio),
        effective_clock_mhz=point.effective_clock_mhz * ratio,
    )


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
HIDDEN_STATES = len(_STATES)


def next_state(state: int, temperature_c: float, seed: int, block: int | None) -> int:
    """The state that follows ``state``.

    Args:
        state: 0 to `HIDDEN_STATES` - 1.
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
