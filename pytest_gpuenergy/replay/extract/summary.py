"""Summarizes an extraction, as text for the terminal and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.replay.extract.exchanges import Exchanges
from pytest_gpuenergy.replay.extract.kernel_extraction import SCHEMA_VERSION, KernelExtraction
from pytest_gpuenergy.replay.extract.trace import PHASES, TraceLaunch
from pytest_gpuenergy.replay.extract.unique_kernels import TIERS
from pytest_gpuenergy.replay.power import SHORTEST_US, PowerCurve, Span
from pytest_gpuenergy.support import aligned, counted, plain

_SHOWN = 10
_LONGEST_NAME = 44


class PhasePower(Struct, frozen=True):
    """The mean power over a phase.

    Attributes:
        phase: ``prefill`` or ``decode``; None where the trace names no phases.
        longest_us: The duration of the phase; the longest where there are several runs.
        samples: The number of power samples that lie in the phase as a whole.
        power_w: The mean of these samples; None if the phase is too short, or has none.
    """

    phase: str | None
    longest_us: float
    samples: int
    power_w: float | None


def phase_powers(curve: PowerCurve, launches: Sequence[TraceLaunch]) -> list[PhasePower]:
    """Return the mean power of each phase, which in each run spans its first to its last launch."""
    by_phase: dict[str | None, dict[int | None, Span]] = {}
    for launch in launches:
        runs = by_phase.setdefault(launch.phase, {})
        begin_us, end_us = runs.get(launch.run, (math.inf, -math.inf))
        runs[launch.run] = (min(begin_us, launch.begin_us), max(end_us, launch.end_us))
    found = []
    for phase in [phase for phase in PHASES if phase in by_phase] or by_phase:
        spans = by_phase[phase].values()
        powers_w = curve.within(span for span in spans if span[1] - span[0] >= SHORTEST_US)
        longest_us = max(end_us - begin_us for begin_us, end_us in spans)
        mean_w = fmean(powers_w) if powers_w else None
        found.append(PhasePower(phase, longest_us, len(powers_w), mean_w))
    return found


def short_name(name: str) -> str:
    """Return a kernel's name without its return type, templates and arguments."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0] or plain


def headline(extraction: KernelExtraction) -> str:
    """Return the launches, the kernels and their time in a sentence without a period."""
    spent = f"{extraction.gpu_time_us / 1e3:.3f} ms"
    runs = f" in {extraction.runs} runs" if (extraction.runs or 1) > 1 else ""
    count, number = extraction.calls, len(extraction.kernels)
    if extraction.on_host:
        calls = _counted(count, "call", "calls")
        unique = counted(number, "unique operator")
        return f"{calls} of {unique} took {spent} on the host{runs}; nothing ran on a GPU"
    launches = _counted(count, "launch", "launches")
    taken = f"{launches} of {counted(number, 'unique kernel')} took {spent} of GPU time{runs}"
    if extraction.busy_us is None or extraction.span_us is None:
        return f"{taken}; when each ran is not known, so there is no timeline"
    return (
        f"{taken}; the GPU was busy for {extraction.busy_us / 1e3:.3f} of "
        f"{extraction.span_us / 1e3:.3f} ms"
    )


def _counted(count: int | None, noun: str, plural: str) -> str:
    return f"? {plural}" if count is None else counted(count, noun, plural)


def terminal(extraction: KernelExtraction) -> Iterator[str]:
    """Yield lines with the totals, categories, largest kernels, and what can be replayed."""
    total_us = extraction.gpu_time_us or 1.0
    yield headline(extraction)
    sums = [
        (category, f"{us / 1e3:.3f}", f"{us / total_us:.1%}", _text(calls))
        for category, us, calls in _by_category(extraction)
    ]
    yield from ("", *aligned([("category", "ms", "time", "calls"), *sums]))
    header = ("kernel", "calls", "ms", "time", "tier", "operator", "name")
    rows = [
        (
            kernel.id,
            _text(kernel.calls),
            f"{kernel.total_us / 1e3:.3f}",
            f"{kernel.total_us / total_us:.1%}",
            "-" if signature.tier is None else str(signature.tier),
            "" if kernel.operator is None else kernel.operator.name,
            short_name(kernel.name)[:_LONGEST_NAME],
        )
        for kernel, signature in extraction.pairs[:_SHOWN]
    ]
    yield from ("", *aligned([header, *rows]))
    if len(extraction.kernels) > _SHOWN:
        yield f"and {len(extraction.kernels) - _SHOWN} more"
    if extraction.exchanges is not None:
        yield from ("", *_exchanges(extraction.exchanges))
    if not extraction.on_host:
        yield ""
        yield from _replayable(extraction)
    yield from extraction.notes
    if extraction.power is not None:
        yield ""
        yield from map(_power_line, phase_powers(extraction.power, extraction.launches))


def _power_line(power: PhasePower) -> str:
    phase, duration = power.phase or "all launches", f"{power.longest_us / 1e3:.4g} ms"
    if power.longest_us < SHORTEST_US:
        return (
            f"power: {phase} took {duration}, less than the {SHORTEST_US / 1e3:g} ms that a mean "
            "takes"
        )
    if power.power_w is None:
        return f"power: {phase} has no samples in its {duration}"
    return f"power: {phase} {power.power_w:.1f} W as profiled, the mean of {power.samples} samples"


def _exchanges(exchanges: Exchanges) -> Iterator[str]:
    for rank, clock in enumerate(exchanges.clocks):
        moved = f", its clock moved by {clock.offset_us:+.1f} µs" if rank else ""
        if rank and clock.error_us is not None and clock.spread_us is not None:
            moved += (
                f" (wrong by {clock.error_us:.1f} µs at most; 95% of the exchanges end within "
                f"{clock.spread_us:.1f} µs on both)"
            )
        yield (
            f"rank {rank}: {len(exchanges.exchanges)} exchanges with the others took "
            f"{exchanges.transfer_us(rank) / 1e3:.3f} ms, after waiting for "
            f"{exchanges.waiting_us(rank) / 1e3:.3f} ms{moved}"
        )


def _replayable(extraction: KernelExtraction) -> Iterator[str]:
    """Yield what can be replayed, by tier, and why the rest cannot."""
    total_us = extraction.gpu_time_us or 1.0
    launches = extraction.call_coverage
    yield f"can be replayed: {extraction.time_coverage:.1%} of the GPU time" + (
        "" if launches is None else f", {launches:.1%} of the launches"
    )
    tiers = {signature.tier for signature in extraction.signatures}
    if used := sorted(tier for tier in tiers if tier is not None):
        yield "tiers: " + "; ".join(f"{tier}: {TIERS[tier]}" for tier in used)
    reasons: dict[str, float] = {}
    for kernel, signature in extraction.pairs:
        if signature.missing is not None:
            reasons[signature.missing] = reasons.get(signature.missing, 0.0) + kernel.total_us
    for reason, us in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"missing, {us / total_us:.1%} of the GPU time: {reason}"


def json_document(extraction: KernelExtraction) -> dict[str, Any]:
    """Return the totals and categories for a script; the files have everything else."""
    powers = []
    if extraction.power is not None:
        powers = phase_powers(extraction.power, extraction.launches)
    return {
        "schema_version": SCHEMA_VERSION,
        "launches": extraction.calls,
        "runs": extraction.runs,
        "unique_kernels": len(extraction.kernels),
        "gpu_time_us": extraction.gpu_time_us,
        "busy_us": extraction.busy_us,
        "span_us": extraction.span_us,
        "time_coverage": extraction.time_coverage,
        "call_coverage": extraction.call_coverage,
        "notes": list(extraction.notes),
        "phase_powers": plain(powers),
        "categories": [
            {"category": category, "total_us": us, "calls": calls}
            for category, us, calls in _by_category(extraction)
        ],
    }


def _by_category(extraction: KernelExtraction) -> list[tuple[str, float, int | None]]:
    """Return each category with its time in microseconds and its calls, the most time first."""
    sums: dict[str, tuple[float, int | None]] = {}
    for kernel, signature in extraction.pairs:
        us, calls = sums.get(signature.category, (0.0, 0))
        count = None if calls is None or kernel.calls is None else calls + kernel.calls
        sums[signature.category] = (us + kernel.total_us, count)
    return sorted(((name, *both) for name, both in sums.items()), key=lambda row: -row[1])


def _text(number: int | None) -> str:
    return "?" if number is None else str(number)
