"""Output for other tools: classic CSV trees, ``best_perf.txt``, Bencher, github-action-benchmark.

Services that track benchmarks over time raise an alarm when a figure grows, so only clean
measurements are passed on to them. The names of emulated figures say so, which keeps them apart
from those of a real GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_gpuenergy.record import (
    AS_EXACT,
    Measurement,
    Metric,
    setpoint_folder,
    setpoint_order,
)
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
    joined_or_hashed,
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
_Key = TypeVar("_Key")


def write_classic_csv(report: Report, folder: Path) -> None:
    """Write the classic CSV tree; failed kernels have no row.

    ``case1/powercap3/results.csv`` has ``id`` and three columns, sorted by id; ``case1/all.csv``
    repeats the three columns for each cap: the whole table, measured or not, then caps outside it.
    ``id`` is the kernel's rank if it has one, otherwise its label. Kernels with the same id, and
    repetitions of a kernel, have a row each. Figures have `DIGITS` significant digits. Of a run on
    several GPU models, each has a folder with a tree of its own. As its readers know the columns,
    it is a file `EMULATED` beside them that marks figures of an emulated GPU.

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
    """Write the tree of a report on one GPU model."""
    run = report.run
    # The caps in the GPU's table, lowest first, measured or not; none when none was requested.
    indices = {m.cap_index for m in report.measurements if m.cap_index}
    if indices or run.cap_table_w:
        indices |= {*range(1, (len(run.cap_table_w) or CLASSIC_CAPS) + 1)}
    table_caps = [f"powercap{index}" for index in sorted(indices)]
    measured = [m for m in report.measurements if m.measured]
    workloads = _group_rows(measured, lambda m: m.workload.name)
    folders = _safe_names(workloads)
    names = _safe_names({m.cap for m in measured})
    for workload, rows in workloads.items():
        place = folder / folders[workload]
        caps = _group_rows(
            sorted(rows, key=setpoint_order), lambda m: setpoint_folder(names[m.cap], m.cap_index)
        )
        for cap, of_cap in caps.items():
            table: Table = [("id", *COLUMNS)]
            table += [(_identifier(m), *_figures(m)) for m in sorted(of_cap, key=_id_order)]
            write_file(place / cap / "results.csv", csv_text(table))
        columns = [*table_caps, *(cap for cap in caps if cap not in table_caps)]
        # By id, kernel hash, and a running number for repetitions.
        by_cap: list[dict[tuple[str, str, int], Measurement]] = []
        for cap in columns:
            kernels = _group_rows(
                caps.get(cap, []), lambda m: (str(_identifier(m)), m.kernel.digest)
            )
            by_cap.append(
                {(*key, count): m for key, ms in kernels.items() for count, m in enumerate(ms)}
            )
        table = [("id", *(COLUMNS * len(by_cap)))]
        firsts = {key: m for of_cap in reversed(by_cap) for key, m in of_cap.items()}
        for key in sorted(firsts, key=lambda key: (*_id_order(firsts[key]), *key)):
            found = [kernels.get(key) for kernels in by_cap]
            figures = [figure for m in found for figure in (_figures(m) if m else [None] * 3)]
            table.append((_identifier(firsts[key]), *figures))
        write_file(place / "all.csv", csv_text(table))


def _group_rows(
    rows: Iterable[Measurement], key: Callable[[Measurement], _Key]
) -> Mapping[_Key, list[Measurement]]:
    groups: dict[_Key, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


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
_SIZES = {
    "gemm": ("M", "N", "K"),
    "conv2d": ("N", "H", "W", "CO", "CI", "KH", "KW", "strides", "padding"),
}
"""The sizes in the names of folders, by kind of workload."""
_MORE_SIZES = {"B", "dilation", "groups"}
"""Sizes that are only there if they are not 1; groups of products are their rows, with commas."""
_ROWS = re.compile(r"[0-9]+(?:,[0-9]+)*", re.ASCII)
_USUAL_MODE = "float32"
_HEADER = (
    *("# workload", "cap", "rank", "contender", "mode"),
    *("TFLOP/s", "ms", "mJ", "mJ*ms", "TFLOP/s/W", "flags", "configuration"),
)


def write_best_perf(report: Report, folder: Path) -> list[Path]:
    """Write ``M=1024_N=2048_K=3072/best_perf.txt`` for each size of products and convolutions.

    Contenders are ranked by time among those of the same workload, precision and power cap; ``1=``
    are all that may be the fastest, within noise. Those that failed follow without a rank. Caps are
    in their order, from the lowest. Of a run on several GPU models, each has a title and a table of
    its own.

    Returns:
        The paths of the files.

    Raises:
        InputError: a run stores its measurements there.
        ReportError: one cannot be written.
    """
    found: dict[str, str] = {}
    for part in by_model(report):
        run, by_size = part.run, dict[str, list[Measurement]]()
        for m in part.measurements:
            if size := _size_text(m.workload.parameters):
                by_size.setdefault(size, []).append(m)
        emulated = " (emulated: recorded or modelled figures)" if run.emulated else ""
        title = printable(f"# {run.gpu_name}{emulated}, run {run.run_id}, {run.started}")
        for size, products in by_size.items():
            table = "\n".join([title, *aligned([_HEADER, *_rows(products)])]) + "\n"
            found[size] = f"{found[size]}\n{table}" if size in found else table
    for size, text in found.items():
        write_view(folder / size / FILE, text)
    return [folder / size / FILE for size in found]


def _size_text(parameters: Mapping[str, object]) -> str | None:
    """Return the sizes of a workload as the name of a folder; None if it is of another kind."""
    names = _SIZES.get(str(parameters.get("kind")))
    if names is None:
        return None
    words = []
    for name in (*names, *sorted(_MORE_SIZES & parameters.keys())):
        size = parameters.get(name)
        if name == "groups" and _ROWS.fullmatch(str(size)):
            size = joined_or_hashed(str(size).split(","))
        elif type(size) is not int:
            return None
        words.append(f"{name}={size}")
    return "_".join(words)


def _rows(products: Iterable[Measurement]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in ordered(products):
        mode = str(m.workload.parameters.get("mode", _USUAL_MODE))
        product = m.workload.name.replace(f"_{mode}", "", 1)
        groups.setdefault((product, AS_EXACT.get(mode, mode), m.cap, m.cache), []).append(m)
    for (product, *_), contenders in groups.items():
        ranked = sorted(contenders, key=lambda m: m.time_ms or float("inf"))
        fastest = tie(contenders, Metric.TIME)
        tied = set(map(id, fastest.rows)) if fastest and len(fastest.rows) > 1 else set()
        for rank, m in enumerate(ranked, start=1):
            place = "1=" if id(m) in tied else str(rank)
            yield tuple(map(printable, _row(product, place, m)))


def _row(product: str, rank: str, m: Measurement) -> tuple[str, ...]:
    cap = m.cap if m.cache == "hot" else f"{m.cap}/{m.cache}"
    mode = str(m.workload.parameters.get("mode", _USUAL_MODE))
    flags = ",".join([*m.validity, *(["held-back-by-the-cap"] if m.cap_binding else [])]) or "-"
    if m.gflops is None or m.gflops_per_w is None:
        nothing = ["-"] * 5
        return (product, cap, "-", m.kernel.label, mode, *nothing, flags, m.why_no_figures)
    figures = (
        m.gflops / 1e3,
        m.time_ms or 0.0,
        m.energy_mj or 0.0,
        m.edp_mj_ms or 0.0,
        m.gflops_per_w / 1e3,
    )
    shown = (f"{figure:.4g}" for figure in figures)
    details = [f"{name}={value}" for name, value in m.kernel.details.items()]
    if m.kernel.rank is not None:
        details.insert(0, f"rank={m.kernel.rank}")
    configuration = " ".join(details) or m.kernel.digest[:12]
    return (product, cap, rank, m.kernel.label, mode, *shown, flags, configuration)


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
        for metric in Metric:
            value = measurement.figure(metric) or 0.0
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
        for metric in Metric:
            entry = {
                "name": f"{name} {metric.label}",
                "unit": metric.unit,
                "value": measurement.figure(metric),
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
