"""The ranges of what the file of an emulated card may hold.

The file may be damaged or come from somebody else. A number out of range would make virtual time
stand still, pass for ever, or end in a division by zero far from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pytest_gpuenergy.emulator.card import MOST_RUN_S, TICK_NS
from pytest_gpuenergy.emulator.faults import ERRORS, EVENTS, LEAST_LIMIT_W, RANGES

_MOST_NS = 1 << 62  # eight bytes hold the clock
_LEAST_MW = round(LEAST_LIMIT_W * 1e3)
_MOST_W = 5e4  # the warmth has a limit near it
_MOST_MW = round(_MOST_W * 1e3)
_MOST_PJ = _MOST_MW * _MOST_NS
_MOST_S = MOST_RUN_S
_MOST_MHZ = 1e5
_MOST_INTEGER = 1 << 62
_LONGEST_NAME = 200
_MOST_ENTRIES = 100_000


def check_form(data: Mapping[str, Any]) -> None:
    """Check the numbers in what `Card.to_json` gave.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: one is missing or out of range.
    """
    now_ns = _whole(data["now_ns"], _MOST_NS)
    if _whole(data["limit_mw"], _MOST_MW) < _LEAST_MW:
        raise ValueError("limit_mw")
    if data.get("lock_mhz") is not None:
        low_mhz, high_mhz = (_whole(mhz, int(_MOST_MHZ)) for mhz in _list(data["lock_mhz"]))
        if not 1 <= low_mhz <= high_mhz:
            raise ValueError("lock_mhz")
    _whole(data["edge_ns"], _MOST_NS)
    drawn_pj = _check_trace(_list(data["times_ns"]), _list(data["energies_pj"]))
    _whole(data["power_mw"], _MOST_MW)
    _whole(data["counter_base_pj"], drawn_pj)
    _whole(drawn_pj - _whole(data["tick_pj"], drawn_pj), _MOST_MW * TICK_NS)
    if data["counter_stuck_mj"] is not None:
        _whole(data["counter_stuck_mj"], drawn_pj)
    point = data["point"]
    _number(point["time_s"], _MOST_S)
    _number(point["power_w"], _MOST_W)
    _whole(point["clock_mhz"], int(_MOST_MHZ))
    _whole(point["event_reasons"], _MOST_INTEGER)
    _number(point["effective_clock_mhz"], _MOST_MHZ)
    if data["load"]:
        _check_load(data["load"], now_ns)
    for active in _list(data["faults"]):
        _check_fault(active)


def _check_trace(times_ns: Sequence[Any], energies_pj: Sequence[Any]) -> int:
    """The energy drawn until the end of the trace."""
    for at_ns, energy_pj in zip(times_ns, energies_pj, strict=True):
        _whole(at_ns, _MOST_NS)
        _whole(energy_pj, _MOST_PJ)
    segments = zip(pairwise(times_ns), pairwise(energies_pj), strict=True)
    for (begin_ns, end_ns), (before_pj, after_pj) in segments:
        if not end_ns - begin_ns > 0:
            raise ValueError("times_ns")
        _whole(after_pj - before_pj, _MOST_MW * (end_ns - begin_ns))
    return int(energies_pj[-1])


def _check_load(load: Mapping[str, Any], now_ns: int) -> None:
    _check_owner(load["owner"])
    demand = load["demand"]
    _above_zero(demand["time_s"], _MOST_S)
    _number(demand["power_w"], _MOST_W)
    for share in ("memory_time", "memory_power"):
        _number(demand[share], 1.0)
    marks = _list(load["marks"])
    for at_ns, runs, run_ns, clock_mhz in marks:
        _whole(at_ns, now_ns)
        _number(runs, 1e18)
        _above_zero(run_ns, _MOST_S * 1e9)
        _number(clock_mhz, _MOST_MHZ)
    for earlier, later in pairwise(marks):
        if later[0] < earlier[0] or later[1] < earlier[1]:
            raise ValueError("marks")


def _check_fault(active: Mapping[str, Any]) -> None:
    _name(active["identity"])
    _check_owner(active["owner"])
    _whole(active["begins_ns"], _MOST_NS)
    if active["ends_ns"] is not None:
        _whole(active["ends_ns"], _MOST_NS)
    _whole(active["calls_left"], _MOST_INTEGER)
    if not isinstance(active["fired"], bool):
        raise TypeError("fired")
    fault = active["fault"]
    if fault["kind"] == "error":
        _name(fault["function"])
        if fault["error"] not in ERRORS:
            raise ValueError("error")
    elif fault["kind"] not in EVENTS:
        raise ValueError("kind")
    for name, (_, most) in RANGES.items():
        if fault.get(name) is not None:
            _number(fault[name], most)
    for name in EVENTS.get(fault["kind"], ()):
        if fault[name] is None:
            raise ValueError(name)


def _check_owner(owner: Mapping[str, Any]) -> None:
    _whole(owner["pid"], 1 << 31)
    _whole(owner["started"], _MOST_INTEGER)


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is out of range")
    return value


def _number(value: Any, most: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:  # NaN is not in it either
        raise ValueError(f"{str(value)[:40]} is out of range")
    return float(value)


def _above_zero(value: Any, most: float) -> None:
    if _number(value, most) < 1e-12:
        raise ValueError(f"{value} is out of range")


def _name(value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise TypeError("name")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
        raise TypeError("list")
    return value
