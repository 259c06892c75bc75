"""``best_perf.txt``: the contenders in each matrix product, a line each, by size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_gpuenergy.record import KernelInfo, Measurement, Metric
from pytest_gpuenergy.report.models import by_model
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.tables import ordered
from pytest_gpuenergy.report.ties import tie
from pytest_gpuenergy.report.views import write_view
from pytest_gpuenergy.support import aligned, printable

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
    """The text for each size of the matrix products in a report.

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
