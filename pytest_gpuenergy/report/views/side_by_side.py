"""Contenders side by side: a table for each mode, layout and setpoint, with ratios to a rival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log

from pytest_gpuenergy.record import Measurement, Metric
from pytest_gpuenergy.report.views.figures import FIGURE_TABLE, title_label
from pytest_gpuenergy.support import fitted, wrapped

RIVALS = ("cudnn", "cublas")
"""The contenders that others are compared with, if they take part."""
_EXACT = {"3xtf32": "float32"}
"""A mode that is as exact as another one, whose rivals are therefore its own."""
_SHOWN = (("time_us", Metric.TIME), ("energy_mj", Metric.ENERGY))

_Rows = dict[str, Measurement]
"""The measurements of one workload by contender."""


def side_by_side(
    measurements: Sequence[Measurement], *, emulated: bool, width: int | None = None
) -> Iterator[str]:
    """Yield tables of contenders, whose labels are the names of the kernels.

    Time and energy are given as ratios to those of the first of `RIVALS` that takes part, otherwise
    of the contender that was measured first; geometric means are of the workloads that both
    computed. In mode ``3xtf32``, where libraries have no kernel, the rival is that of mode
    ``float32`` in the same workload. A table with one contender alone is left out.

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
            others = computed.get(_key(next(iter(rows.values())), _EXACT.get(mode)), {})
            rows |= {f"{name} in {_EXACT[mode]}": others[name] for name in RIVALS if name in others}
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
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for workload, rows in works.items():
        for label in labels:
            if (m := rows.get(label)) is None:
                continue
            cells = [FIGURE_TABLE[name].words(m.figure(metric) or 0.0) for name, metric in _SHOWN]
            found = _ratios(m, rows.get(base))
            if found:
                ratios.setdefault(label, []).append(found)
            compared = [f"{ratio:.2f}" for ratio in found] or ["", ""]
            yield (workload, label, *cells, *compared)
    for label, several in ratios.items():
        if label != base and len(several) > 1:
            columns = zip(*several, strict=True)
            means = [exp(sum(map(log, column)) / len(several)) for column in columns]
            name = f"geometric mean of {len(several)}"
            yield (name, label, "", "", *(f"{mean:.2f}" for mean in means))


def _ratios(m: Measurement, base: Measurement | None) -> tuple[float, ...]:
    """Return the ratios of time and energy; empty if there is nothing to compare with."""
    found = []
    for _, metric in _SHOWN:
        mine, theirs = m.figure(metric), None if base is None else base.figure(metric)
        if not mine or not theirs or mine < 0 or theirs < 0:
            return ()
        found.append(mine / theirs)
    return tuple(found)
