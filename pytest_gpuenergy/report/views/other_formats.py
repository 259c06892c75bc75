"""Output for other tools: classic CSV trees, ``best_perf.txt``, Bencher, github-action-benchmark.

Services that track benchmarks over time raise an alarm when a figure grows, so only clean
measurements are passed on to them. The names of emulated figures say so, which keeps them apart
from those of a real GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuenergy.record import KernelInfo, Measurement, Metric, setpoint_folder, setpoint_order
from pytest_gpuenergy.report.analysis.best_kernels import tie
from pytest_gpuenergy.report.analysis.gpu_models import Models, by_model
from pytest_gpuenergy.report.analysis.subjects import ordered
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.view_files import write_file, write_view
from pytest_gpuenergy.support import (
    aligned,
    csv_text,
    dump,
    emulated_mark,
    printable,
)

COLUMNS = ("perf(GFLOP/s)", "energy(mJ)", "EDP(ms*mJ)")


DIGITS = 6
"""Significant digits of figures in the classic CSV tree; intervals are much wider than the last."""


EMULATED = "EMULATED.txt"
"""File in the classic CSV tree of a run on an emulated GPU."""


CLASSIC_CAPS = 5
"""Caps in a GPU's table when the report, from an older release or tool, does not list them."""


_LONGEST_NAME, _KEPT, _HASH_DIGITS = 200, 40, 8


Table = list[Sequence[str | int | float | None]]


def write_classic_csv(report: Report, folder: Path) -> None:
    """Write the classic CSV tree; failed kernels have no row.

    ``case1/powercap3/results.csv`` has ``id`` and three columns, sorted by id; ``case1/all.csv``
    repeats the three columns for each cap, see `_columns`. ``id`` is the kernel's rank if it has
    one, otherwise its label. Kernels with the same id, and repetitions of a kernel, have a row
    each. Figures have `DIGITS` significant digits. Of a run on several GPU models, each has a
    folder with a tree of its own. As its readers know the columns, it is a file `EMULATED` beside
    them that marks figures of an emulated GPU.

    Raises:
        ReportError: a file cannot be written.
    """
    parts = by_model(report)
    models = _safe_names(part.run.gpu_name for part in parts)
    for part in parts:
        _write_tree(part, folder / models[part.run.gpu_name] if len(parts) > 1 else folder)
    if report.run.emulated and report.measurements:
        text = f"The figures in this folder are those of an emulated {report.run.gpu_name}.\n"
        write_file(folder / EMULATED, text)
    else:  # an emulated run may have written here before
        with contextlib.suppress(OSError):
            (folder / EMULATED).unlink()


def _write_tree(report: Report, folder: Path) -> None:
    table_caps = _table_caps(report)
    workloads = _by(report.measurements, lambda m: m.workload.name)
    folders = _safe_names(workloads)
    names = _safe_names({m.cap for m in report.measurements if m.measured})
    for workload, rows in workloads.items():
        place = folder / folders[workload]
        caps = _by(
            sorted(rows, key=setpoint_order), lambda m: setpoint_folder(names[m.cap], m.cap_index)
        )
        for cap, measured in caps.items():
            table: Table = [("id", *COLUMNS)]
            table += [(_identifier(m), *_figures(m)) for m in sorted(measured, key=_id_order)]
            write_file(place / cap / "results.csv", csv_text(table))
        by_cap = [_numbered(caps.get(cap, [])) for cap in _columns(table_caps, caps)]
        table = [("id", *(COLUMNS * len(by_cap)))]
        firsts = {key: m for measured in reversed(by_cap) for key, m in measured.items()}
        for key in sorted(firsts, key=lambda key: (*_id_order(firsts[key]), *key)):
            found = [measured.get(key) for measured in by_cap]
            figures = [figure for m in found for figure in (_figures(m) if m else [None] * 3)]
            table.append((_identifier(firsts[key]), *figures))
        write_file(place / "all.csv", csv_text(table))


def _by(
    rows: Sequence[Measurement], key: Callable[[Measurement], str]
) -> Mapping[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.measured:
            groups[key(row)].append(row)
    return groups


def _numbered(rows: Sequence[Measurement]) -> dict[tuple[str, str, int], Measurement]:
    """Return measurements by id, kernel hash, and a running number for repetitions."""
    found: dict[tuple[str, str, int], Measurement] = {}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        kernel = str(_identifier(row)), row.kernel.digest
        found[(*kernel, counts[kernel])] = row
        counts[kernel] += 1
    return found


def _table_caps(report: Report) -> list[str]:
    """Folders of the caps in the GPU's table, lowest first; none when none was requested."""
    measured = {m.cap_index for m in report.measurements if m.cap_index}
    if not measured and not report.run.cap_table_w:
        return []
    count = len(report.run.cap_table_w) or CLASSIC_CAPS
    return [f"powercap{index}" for index in sorted(measured | {*range(1, count + 1)})]


def _columns(table_caps: Sequence[str], caps: Iterable[str]) -> list[str]:
    """Return the caps in ``all.csv``: the whole table, measured or not, then caps outside it."""
    return [*table_caps, *(cap for cap in caps if cap not in table_caps)]


def _identifier(m: Measurement) -> str | int:
    return m.kernel.label if m.kernel.rank is None else m.kernel.rank


def _id_order(m: Measurement) -> tuple[bool, int, str]:
    return (m.kernel.rank is None, m.kernel.rank or 0, m.kernel.label)


def _figures(m: Measurement) -> list[float | None]:
    found = (m.gflops, m.energy_mj, m.edp_mj_ms)
    return [None if figure is None else float(f"{figure:.{DIGITS}g}") for figure in found]


def _safe_names(names: Iterable[str]) -> dict[str, str]:
    """Return names of workloads or caps as safe folder names; the report may be untrusted.

    Of several names with one safe form, the name that is safe itself keeps it; to the others, and
    to long ones, a hash is added.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (_safe(name) != name, name)):
        safe, length = _safe(name), _HASH_DIGITS
        while safe in taken or len(safe.encode()) > _LONGEST_NAME:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            safe = f"{_safe(name)[:_KEPT]}-{digest[:length]}"
            length += 1
        found[name] = safe
        taken.add(safe)
    return found


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.+=" else "_" for c in name).lstrip(".") or "_"


FILE = "best_perf.txt"
_KIND, _SIZES = "gemm", ("M", "N", "K")
AS_EXACT = {"3xtf32": "float32"}
"""Modes that are ranked with another one, which is as exact."""
_HEADER = (
    *("# product", "cap", "rank", "contender", "mode"),
    *("TFLOP/s", "ms", "mJ", "mJ*ms", "TFLOP/s/W", "flags", "configuration"),
)


def write_best_perf(report: Report, folder: Path) -> list[Path]:
    """Write ``M=1024_N=2048_K=3072/best_perf.txt`` for each size; returns the paths.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: one cannot be written.
    """
    written = []
    for size, text in best_perf(report).items():
        written.append(folder / size / FILE)
        write_view(written[-1], text)
    return written


def best_perf(report: Report) -> dict[str, str]:
    """Return the text for each size of the matrix products in a report.

    Contenders are ranked by time among those of the same product, precision and power cap; ``1=``
    are all that may be the fastest, within noise. Those that failed follow without a rank. Caps are
    in their order, from the lowest. Of a run on several GPU models, each has a title and a table of
    its own.
    """
    found: dict[str, str] = {}
    for part in by_model(report):
        for size, table in _tables(part).items():
            found[size] = f"{found[size]}\n{table}" if size in found else table
    return found


def _tables(report: Report) -> dict[str, str]:
    by_size: dict[str, list[Measurement]] = {}
    for one in report.measurements:
        if (size := _size(one.workload.parameters)) is not None:
            by_size.setdefault(size, []).append(one)
    run = report.run
    emulated = " (emulated: recorded or modelled figures)" if run.emulated else ""
    title = printable(f"# {run.gpu_name}{emulated}, run {run.run_id}, {run.started}")
    return {
        size: "\n".join([title, *aligned([_HEADER, *_rows(found)])]) + "\n"
        for size, found in by_size.items()
    }


def _rows(found: Iterable[Measurement]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for one in ordered(found):
        mode = str(one.workload.parameters.get("mode", ""))
        product = one.workload.name.replace(f"_{mode}", "", 1)
        key = (product, AS_EXACT.get(mode, mode), one.cap, one.cache)
        groups.setdefault(key, []).append(one)
    for (product, *_), contenders in groups.items():
        ranked = sorted(contenders, key=lambda one: one.time_ms or float("inf"))
        fastest = tie(contenders, Metric.TIME)
        tied = set(map(id, fastest.rows)) if fastest and len(fastest.rows) > 1 else set()
        for rank, one in enumerate(ranked, start=1):
            place = "1=" if id(one) in tied else str(rank)
            yield tuple(map(printable, _row(product, place, one)))


def _row(product: str, rank: str, one: Measurement) -> tuple[str, ...]:
    cap = one.cap if one.cache == "hot" else f"{one.cap}/{one.cache}"
    mode = str(one.workload.parameters.get("mode", ""))
    flags = ",".join([*one.validity, *(["held-back-by-the-cap"] if one.cap_binding else [])])
    if not one.measured or one.gflops is None or one.gflops_per_w is None:
        return (
            product,
            cap,
            "-",
            one.kernel.label,
            mode,
            *["-"] * 5,
            flags or "-",
            one.why_no_figures,
        )
    figures = (
        one.gflops / 1e3,
        one.time_ms or 0.0,
        one.energy_mj or 0.0,
        one.edp_mj_ms or 0.0,
        one.gflops_per_w / 1e3,
    )
    shown = (f"{figure:.4g}" for figure in figures)
    return (
        *(product, cap, rank, one.kernel.label, mode),
        *shown,
        flags or "-",
        _configuration(one.kernel),
    )


def _configuration(kernel: KernelInfo) -> str:
    details = " ".join(f"{name}={value}" for name, value in kernel.details.items())
    rank = "" if kernel.rank is None else f"rank={kernel.rank} "
    return f"{rank}{details}".strip() or kernel.digest[:12]


def _size(parameters: dict[str, Any]) -> str | None:
    """``M=1024_N=2048_K=3072``; None for what is no matrix product."""
    sizes = [parameters.get(name) for name in _SIZES]
    if parameters.get("kind") != _KIND or any(type(size) is not int for size in sizes):
        return None
    return "_".join(f"{name}={size}" for name, size in zip(_SIZES, sizes, strict=True))


_BENCHER_MEASURES = {
    Metric.TIME: ("latency", 1e6),
    Metric.ENERGY: ("energy-mj", 1.0),
    Metric.EDP: ("edp-mj-ms", 1.0),
}
"""Name of the measure, and the factor from our unit to its unit."""
_BENCHER_NAME_LENGTH = 1024


def bencher_json(report: Report) -> str:
    """Bencher Metric Format: benchmark, then measure, then value with the interval's ends.

    Bencher's built-in measure ``latency`` is in nanoseconds; it creates ``energy-mj`` and
    ``edp-mj-ms`` when it first receives them.
    """
    document: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, measurement in _clean(report):
        measures = document.setdefault(name[:_BENCHER_NAME_LENGTH], {})
        for metric, value in _present_figures(measurement):
            measure, scale = _BENCHER_MEASURES[metric]
            figures = {"value": value * scale}
            if interval := measurement.interval(metric):
                figures |= {
                    "lower_value": interval.low * scale,
                    "upper_value": interval.high * scale,
                }
            if all(map(math.isfinite, figures.values())):
                measures[measure] = figures
    return dump(document)


def github_action_json(report: Report) -> str:
    """Return the figures as github-action-benchmark's ``customSmallerIsBetter`` reads them."""
    models = Models(report)
    entries: list[dict[str, Any]] = []
    for name, measurement in _clean(report):
        for metric, value in _present_figures(measurement):
            entry = {
                "name": f"{name} {metric.label}",
                "unit": metric.unit,
                "value": value,
                "extra": f"{models.of(measurement)}\n{measurement.cap}, {measurement.cache} cache",
            }
            if interval := measurement.interval(metric):
                entry["range"] = f"± {(interval.high - interval.low) / 2:.3g}"
            entries.append(entry)
    return dump(entries)


def _clean(report: Report) -> Iterator[tuple[str, Measurement]]:
    """Yield measurements without a flag, with their names."""
    label = emulated_mark(report.run.emulated)
    for measurement in report.measurements:
        if measurement.measured and not measurement.validity:
            yield f"{measurement.node_id}{label}", measurement


def _present_figures(measurement: Measurement) -> Iterator[tuple[Metric, float]]:
    for metric in Metric:
        if (value := measurement.figure(metric)) is not None:
            yield metric, value
