"""What Nsight Compute says of a launch: its options, and its answer as a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence

from pytest_gpuenergy.search.move import Region
from pytest_gpuenergy.support import FormError, shown

_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_UNITS: Mapping[Region, tuple[str, ...]] = {
    "compute": ("sm__inst_executed", "sm__pipe_fma_cycles_active", "sm__pipe_tensor_cycles_active"),
    "gmem": ("dram__throughput", "lts__throughput"),
    "sfu": ("sm__inst_executed_pipe_xu",),
    "smem": ("l1tex__data_pipe_lsu_wavefronts_mem_shared",),
}
"""Counters of each region; the busiest one counts."""
_UPDATES = ("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum")
_SECTORS, _L2 = "lts__t_sectors.sum", f"lts__throughput{_OF_PEAK}"


def metrics() -> tuple[str, ...]:
    """The names of all metrics that are asked for."""
    of_units = tuple(f"{name}{_OF_PEAK}" for names in _UNITS.values() for name in names)
    return (*of_units, *_UPDATES, _SECTORS)


def read_counters(printed: str) -> dict[Region, float]:
    """How busy a launch has kept units, as shares of its time, from what ``ncu --csv`` prints.

    A metric that this version or GPU does not have is left out; of several launches the last
    counts.

    Raises:
        FormError: it is no such table, or has none of the metrics.
    """
    values = _last_row(printed)
    found: dict[Region, float] = {}
    for region, names in _UNITS.items():
        known = [values[key] / 100 for name in names if (key := f"{name}{_OF_PEAK}") in values]
        if known:
            found[region] = min(1.0, max(known))
    if values.get(_SECTORS) and _L2 in values:
        updates = sum(values.get(name, 0.0) for name in _UPDATES)
        found["atomics"] = min(1.0, values[_L2] / 100 * updates / values[_SECTORS])
    if not found:
        raise FormError("it has none of the metrics that were asked for")
    return found


def _last_row(printed: str) -> dict[str, float]:
    lines = printed.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise FormError("it has no table")
    try:
        header, _units, *rows = csv.reader(lines[first:], strict=True)
    except (ValueError, csv.Error):
        raise FormError("its table is not complete") from None
    rows = [row for row in rows if len(row) == len(header)]
    if not rows:
        raise FormError("its table has no launch")
    return _numbers(header, rows[-1])


def _numbers(header: Sequence[str], row: Sequence[str]) -> dict[str, float]:
    wanted, found = frozenset(metrics()), {}
    for name, text in zip(header, row, strict=True):
        if name not in wanted or text.strip() in ("", "n/a"):
            continue
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise FormError(f"its {name} is {shown(text)}")
        found[name] = value
    return found
