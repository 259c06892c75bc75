"""The setpoints of measurements: their order, and the parts that their labels consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from pytest_gpuenergy.record.measurement import Measurement

AS_FOUND = "current"
"""The label of a power limit that was left as it was."""

UNLOCKED = "unlocked"
"""The label of SM clocks that were left as they were."""

Order = tuple[float, bool, float, int, str]


def setpoint_order(m: Measurement) -> Order:
    """Sort key of setpoints: by power limit, then by clock, both from the lowest.

    Clocks that are not locked come last, because the card raises them as far as the limit allows.
    A limit that was left as it was stands where the card enforced it.
    """
    watts = m.power_limit_w or m.enforced_power_limit_w or 0.0
    clock = inf if m.sm_clock_mhz is None else m.sm_clock_mhz
    return (watts, m.power_limit_w is None, clock, m.cap_index or 0, m.cap)


def setpoints(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return the labels of the setpoints, each once, in their order."""
    return _labels(measurements, lambda m: m.cap)


def limits(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return the labels of the power limits, each once, from the lowest."""
    return _labels(measurements, limit_label)


def clocks(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return the labels of the clocks, each once, from the lowest; `UNLOCKED` is last."""
    by_clock = {
        clock_label(m): inf if m.sm_clock_mhz is None else m.sm_clock_mhz for m in measurements
    }
    return tuple(sorted(by_clock, key=by_clock.__getitem__))


def limit_label(m: Measurement) -> str:
    """Return the part of a setpoint's label that names the power limit: ``450W`` or ``current``."""
    if m.sm_clock_mhz is None:
        return m.cap
    rest = m.cap.removesuffix(clock_label(m))
    return m.cap if rest == m.cap else rest.rstrip("-") or AS_FOUND


def clock_label(m: Measurement) -> str:
    """Return the part of a setpoint's label that names the clock: ``1500MHz`` or ``unlocked``."""
    return UNLOCKED if m.sm_clock_mhz is None else f"{m.sm_clock_mhz}MHz"


def setpoint_folder(label: str, index: int | None) -> str:
    """Return the name of a setpoint's folder in the classic CSV tree.

    ``powercap3`` when the power limit is the third in the GPU's cap table, otherwise named after
    the label: ``powercap_350W``, ``powercap_current``.

    Args:
        label: the setpoint's label.
        index: index of its power limit in the GPU's cap table, 1 = lowest; None when it is not in
            the table.
    """
    if not index:
        return f"powercap_{label}"
    _, dash, rest = label.partition("-")
    return f"powercap{index}{dash}{rest}"


def _labels(
    measurements: Iterable[Measurement], label: Callable[[Measurement], str]
) -> tuple[str, ...]:
    places: dict[str, Order] = {}
    for m in measurements:
        place = setpoint_order(m)
        places[label(m)] = min(places.get(label(m), place), place)
    return tuple(sorted(places, key=lambda name: (places[name], name)))
