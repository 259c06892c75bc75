"""Contenders side by side: a table for each mode, layout and setpoint, with ratios to a rival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, hypot, isfinite

from pytest_gpuenergy.record import (
    AS_EXACT,
    Estimate,
    Measurement,
    Metric,
    clipped,
    log_ratio,
    point_ratio,
    session_mean,
)
from pytest_gpuenergy.report.views.figures import FIGURE_TABLE, spread, title_label
from pytest_gpuenergy.support import fitted, wrapped

RIVALS = ("cudnn", "cublas")
"""The contenders that others are compared with, if they take part."""
_SHOWN = (("time_us", Metric.TIME), ("energy_mj", Metric.ENERGY))

_TAIL = 0.025
"""The probability at either end of an interval of a ratio."""

_Rows = dict[str, Measurement]
"""The measurements of one workload by contender."""


def side_by_side(
    measurements: Sequence[Measurement], *, emulated: bool, width: int | None = None
) -> Iterator[str]:
    """Yield tables of contenders, whose labels are the names of the kernels.

    Time and energy are given as ratios to those of the first of `RIVALS` that takes part, otherwise
    of the contender that was measured first; geometric means are of the workloads that both
    computed. In mode ``3xtf32``, where libraries have no kernel, the rival is that of mode
    ``float32`` in the same workload, see `AS_EXACT`. A table with one contender alone is left out.

    Args:
        measurements: the measurements of one run, in which each contender has one per workload and
            setpoint.
        emulated: whether the GPU is emulated, which each title then says.
        width: the width of the terminal; None where lines may have any length.
    """
    tables: dict[tuple[str, str, str, str], dict[str, _Rows]] = {}
    computed: dict[tuple[object, ...], _Rows] = {}
    for m in measurements:
        if m.measured:
            kind, mode, layout = _way(m.workload.parameters)
            table = tables.setdefault((kind, mode, layout, m.cap), {})
            table.setdefault(m.workload.name, {})[m.kernel.label] = m
            computed.setdefault(_key(m, mode), {})[m.kernel.label] = m
    for (kind, mode, layout, cap), works in tables.items():
        for rows in works.values():
            others = computed.get(_key(next(iter(rows.values())), AS_EXACT.get(mode)), {})
            rows |= {
                f"{name} in {AS_EXACT[mode]}": others[name] for name in RIVALS if name in others
            }
        labels = list(dict.fromkeys(label for rows in works.values() for label in rows))
        if len(labels) == 1:
            continue
        rivals = [label for name in RIVALS for label in labels if label.split()[0] == name]
        base = (rivals or labels)[0]
        title = f"{kind} in mode {mode}, layout {layout}, at {cap}"
        yield from wrapped(f"{title}{title_label(emulated=emulated, calibrated=False)}", width)
        table_rows = [*_table(works, labels, base)]
        yield from (
            f"  {line}" for line in fitted(table_rows, None if width is None else width - 2)
        )


def _way(parameters: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the kind, the mode and the layout of a workload."""
    kind, mode = parameters.get("kind", "conv2d"), parameters.get("mode", "float32")
    return str(kind), str(mode), str(parameters.get("layout", "")).lower()


def _key(m: Measurement, mode: str | None) -> tuple[object, ...]:
    """Return what a workload is, in another mode, and the setpoint of its measurement."""
    sizes = {name: value for name, value in m.workload.parameters.items() if name != "mode"}
    return (mode, m.cap, *sorted(sizes.items()))


def _table(
    works: Mapping[str, _Rows], labels: Sequence[str], base: str
) -> Iterator[tuple[str, ...]]:
    yield ("workload", "contender", "time", "energy", f"time / {base}", f"energy / {base}")
    ratios: dict[str, list[tuple[Estimate, ...]]] = {}
    for workload, rows in works.items():
        for label in labels:
            if (m := rows.get(label)) is None:
                continue
            cells = [FIGURE_TABLE[name].words(m.figure(metric) or 0.0) for name, metric in _SHOWN]
            found = _log_ratios(rows.get(base), m)
            if found:
                ratios.setdefault(label, []).append(found)
            compared = ["1", "1"] if label == base else [*map(_ratio_words, found)] or ["", ""]
            yield (workload, label, *cells, *compared)
    for label, several in ratios.items():
        if label != base and len(several) > 1:
            means = [_ratio_words(_mean(column)) for column in zip(*several, strict=True)]
            yield (f"geometric mean of {len(several)}", label, "", "", *means)


def _log_ratios(base: Measurement | None, m: Measurement) -> tuple[Estimate, ...]:
    """Return ln of the ratios of time and energy; empty if there is nothing to compare with.

    Sessions and boards have no part in their intervals: both were measured in the same one.
    """
    found = []
    for _, metric in _SHOWN:
        ratio = point_ratio(None if base is None else base.figure(metric), m.figure(metric))
        if base is None or not isfinite(ratio.low):
            return ()
        means = session_mean(base, metric), session_mean(m, metric)
        if means[0] is not None and means[1] is not None:
            ratio = log_ratio(means[0], means[1], session_sd=0.0, tail=_TAIL)
        found.append(ratio)
    return tuple(found)


def _mean(log_ratios: Sequence[Estimate]) -> Estimate:
    """Return the mean, whose interval is as if the ratios were independent."""
    mean = sum(ratio.value for ratio in log_ratios) / len(log_ratios)
    half = hypot(*(ratio.half_width for ratio in log_ratios)) / len(log_ratios)
    return Estimate(mean, mean - half, mean + half)


def _ratio_words(log_ratio: Estimate) -> str:
    """Return a ratio with its 95 % interval, ``1.12 ±0.4 %``."""
    ends = (exp(clipped(end)) for end in (log_ratio.value, log_ratio.low, log_ratio.high))
    ratio = Estimate(*ends)
    return f"{ratio.value:.2f}{spread(ratio) if ratio.high > ratio.low else ''}"
