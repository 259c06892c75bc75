"""Sums up the gains of several searches: ``summary.json`` and a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct

from pytest_gpuenergy.record import METRICS, Interval, Metric, peaks_of
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search.running.kernel_folder import SearchState
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.spec_workload import floor_ms, workload_of
from pytest_gpuenergy.search.validation.result import SearchNode
from pytest_gpuenergy.support import aligned, counted, dump, write_atomically
from pytest_gpuenergy.tuning import writing

SUMMARY_MD = "summary.md"
SUMMARY_VERSION = 1
"""The ``schema_version`` of the files that this version writes."""

_WHOLE = Interval(1.0, 1.0)
_HEADINGS = ("kernel", *(f"{metric.label} x" for metric in METRICS), "of roofline", "moves")


class KernelSummary(Struct, frozen=True, kw_only=True):
    """The gain of the search of one kernel.

    Attributes:
        name: the name of the kernel.
        gpu: the name of the GPU on which it ran.
        emulated: whether that GPU is emulated, so that nothing was measured.
        builds: the number of evaluated variants.
        correct: the number of correct ones among them.
        finished: whether the search has tried everything or spent its budget.
        best: the id of the variant that is kept; None if the baseline is kept.
        moves: the moves from the baseline to that variant.
        unclaimed: the reason why no gain can be proven, if an emulated GPU's model was not compared
            with a real card for such kernels; empty otherwise.
        ratios: the kept kernel's figure divided by the baseline's, by metric.
        ratio_intervals: the intervals of these ratios.
        baseline: the baseline's measured figures by metric, in ms, mJ or mJ·ms.
        roofline_ms: the least time of a launch by the datasheet's bandwidth and arithmetic, if no
            byte stays in a cache from launch to launch; None if the card's peaks are unknown.
        roofline_share: that time divided by the time of the baseline and by that of the best
            variant; above 1 if a cache does better than the memory. None if a time is unknown.
    """

    name: str
    gpu: str
    emulated: bool
    builds: int
    correct: int
    finished: bool
    best: str | None
    moves: tuple[str, ...]
    unclaimed: str
    ratios: dict[Metric, float]
    ratio_intervals: dict[Metric, Interval]
    baseline: dict[Metric, float]
    roofline_ms: float | None
    roofline_share: tuple[float, float] | None


class Summary(Struct, frozen=True, kw_only=True):
    """The searches of several kernels.

    Attributes:
        kernels: the summary of each kernel.
        improved: the number of kernels with a variant that is certainly better.
        median_speedup: the median of the baseline's time divided by the best variant's.
        mean_energy_cut: the mean of 1 minus the ratio of energies.
        mean_energy_cut_interval: the interval of this mean, from the means of the ends of the
            ratios' intervals; it contains the true mean if all of these contain their ratios.
        schema_version: the version of the file's form.
    """

    kernels: tuple[KernelSummary, ...]
    improved: int
    median_speedup: float
    mean_energy_cut: float
    mean_energy_cut_interval: Interval
    schema_version: int = SUMMARY_VERSION


def summarize(searches: Iterable[tuple[KernelSpec, SearchState]]) -> Summary | None:
    """Return the summary of searches; None if no baseline was evaluated."""
    kernels = tuple(_kernel_summary(spec, state) for spec, state in searches if state.nodes)
    if not kernels:
        return None
    energies = [kernel.ratio_intervals[Metric.ENERGY] for kernel in kernels]
    return Summary(
        kernels=kernels,
        improved=sum(kernel.best is not None for kernel in kernels),
        median_speedup=median(1 / kernel.ratios[Metric.TIME] for kernel in kernels),
        mean_energy_cut=fmean(1 - kernel.ratios[Metric.ENERGY] for kernel in kernels),
        mean_energy_cut_interval=Interval(
            fmean(1 - ends.high for ends in energies), fmean(1 - ends.low for ends in energies)
        ),
    )


def summary_lines(summary: Summary) -> list[str]:
    """Return a table of the kernels, and sentences about all of them together."""
    return [*aligned([_HEADINGS, *_rows(summary)]), *_totals(summary)]


def write_summary(summary: Summary, outdir: Path) -> Path:
    """Write a summary as JSON and as Markdown, and return the path of the latter.

    Raises:
        OutputError: a file cannot be written.
    """
    text = (0, len(_HEADINGS) - 2, len(_HEADINGS) - 1)
    page = [markdown_table(_HEADINGS, _rows(summary), text=text), "", *_totals(summary), ""]
    for name, content in (("summary.json", dump(summary)), (SUMMARY_MD, "\n".join(page))):
        with writing(outdir / name):
            write_atomically(outdir / name, content)
    return outdir / SUMMARY_MD


def _rows(summary: Summary) -> list[tuple[str, ...]]:
    rows = []
    for kernel in summary.kernels:
        ratios = ["1" for _ in METRICS]
        if kernel.best is not None:
            ratios = [
                f"{kernel.ratios[metric]:.3f} [{ends.low:.3f}, {ends.high:.3f}]"
                for metric in METRICS
                if (ends := kernel.ratio_intervals[metric])
            ]
        share = kernel.roofline_share
        shares = "" if share is None else f"{100 * share[0]:.3g} % -> {100 * share[1]:.3g} %"
        moves = "; ".join(kernel.moves) or "the baseline remains"
        rows.append((kernel.name, *ratios, shares, moves))
    return rows


def _totals(summary: Summary) -> Iterator[str]:
    ends = summary.mean_energy_cut_interval
    count = len(summary.kernels)
    emulated = any(kernel.emulated for kernel in summary.kernels)
    yield (
        f"{summary.improved} of {counted(count, 'kernel')} improved: median speedup "
        f"{summary.median_speedup:.2f}x, mean energy cut {100 * summary.mean_energy_cut:.1f} % "
        f"[{100 * ends.low:.1f}, {100 * ends.high:.1f}]"
        f"{' (emulated: from a model, not measured)' if emulated else ''}"
    )
    if unclaimed := [kernel.name for kernel in summary.kernels if kernel.unclaimed]:
        yield (
            "no gain proven, because the emulated GPU's model was not compared with kernels of "
            f"this kind: {', '.join(unclaimed)}"
        )
    if unfinished := [kernel.name for kernel in summary.kernels if not kernel.finished]:
        yield f"not finished, continue with --resume: {', '.join(unfinished)}"


def _kernel_summary(spec: KernelSpec, state: SearchState) -> KernelSummary:
    gain = next((gain for gain in state.gains if gain.accepted), None)
    compared = next((gain for gain in state.gains if gain.baseline), None)
    time_ms = state.nodes[0].time_ms
    baseline = dict(compared.baseline) if compared is not None else {}
    if not baseline and time_ms is not None:
        baseline = {Metric.TIME: time_ms}
    ratios = {metric: gain.ratios.get(metric, 1.0) if gain else 1.0 for metric in METRICS}
    roofline_ms: float | None = None
    roofline_share: tuple[float, float] | None = None
    if (peaks := peaks_of(state.identity.gpu)) is not None:
        workload = workload_of(spec, spec.sizes[0], dict)
        roofline_ms = floor_ms(workload, replace(peaks, l2_bytes=0))  # nothing stays in the L2
        if before_ms := baseline.get(Metric.TIME):
            after_ms = before_ms * ratios[Metric.TIME]
            roofline_share = roofline_ms / before_ms, roofline_ms / after_ms
    return KernelSummary(
        name=spec.name,
        gpu=state.identity.gpu,
        emulated=state.identity.emulated,
        builds=state.builds,
        correct=sum(node.cost is not None for node in state.nodes[1:]),
        finished=state.finished,
        best=gain.id if gain is not None else None,
        moves=tuple(
            f"{node.move} {node.what}".strip()
            for node in path_from_baseline(state.nodes, None if gain is None else gain.id)
        ),
        unclaimed=next((gain.message for gain in state.gains if gain.unclaimed), ""),
        ratios=ratios,
        ratio_intervals={
            metric: gain.ratio_intervals.get(metric, _WHOLE) if gain else _WHOLE
            for metric in METRICS
        },
        baseline=baseline,
        roofline_ms=roofline_ms,
        roofline_share=roofline_share,
    )


def path_from_baseline(nodes: Sequence[SearchNode], state_id: str | None) -> list[SearchNode]:
    """Return the states on the way to a state, without the baseline; empty if it is unknown."""
    by_id = {node.id: node for node in nodes}
    path: list[SearchNode] = []
    node = by_id.get(state_id or "")
    while node is not None and node.parent is not None and node not in path:
        path.insert(0, node)
        node = by_id.get(node.parent)
    return path
