"""What a power cap does to a kernel: a model that no recorded figure backs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from pytest_gpuenergy.emulator.profiles import CLOCK_STEP_MHZ, GpuProfile

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
