"""Formats a comparison for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from pytest_gpuenergy.gate.comparison import Comparison, Unmatched
from pytest_gpuenergy.gate.shift_views import shift_json, shift_lines
from pytest_gpuenergy.gate.verdict import Judgement, Verdict, fails
from pytest_gpuenergy.record.identity import Identity
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.text import markdown_text, signed_percent
from pytest_gpuenergy.support.json_output import dump
from pytest_gpuenergy.support.text import fitted, wrapped

ROWS_SHOWN = 40


def label(identity: Identity) -> str:
    """An identity as in item ids, ``case1-k01-300W``, plus the cache state unless it is hot."""
    *names, cache = identity
    return "-".join(names if cache == "hot" else [*names, cache])


def describe(judgement: Judgement) -> str:
    """``EDP +5.2 % (+3.1 % to +7.4 %), limit 1 %: WORSE``, with the reasons, if any."""
    words = judgement.metric.label
    if judgement.change is not None:
        words += f" {_change(judgement)}"
    words += f", limit {100 * judgement.limit:.4g} %: {judgement.verdict}"
    return f"{words} ({'; '.join(judgement.reasons)})" if judgement.reasons else words


def budget_words(judgement: Judgement) -> str:
    """``EDP 0.147 mJ·ms, +5.2 % (...) against the budget of 0.14 mJ·ms, rel 3 %: WORSE``."""
    assert judgement.new is not None
    metric = judgement.metric
    words = f"{metric.label} {judgement.new:.4g} {metric.unit}"
    if judgement.change is not None:
        words += f", {_change(judgement)}"
    words += (
        f" against the budget of {judgement.base:.4g} {metric.unit}, "
        f"rel {100 * judgement.limit:.4g} %: "
        f"{judgement.verdict}"
    )
    return f"{words} ({'; '.join(judgement.reasons)})" if judgement.reasons else words


def terminal(comparison: Comparison, width: int | None = None) -> Iterator[str]:
    """The runs compared, a row per verdict, unmatched measurements and a summary.

    Lines have at most ``width`` characters; None: any number.
    """
    shown = _notable(comparison.judgements)
    for line in _above(comparison):
        yield from wrapped(line, width)
    if shown:
        titles = ("kernel", "metric", "baseline", "new", "change", "interval", "verdict")
        yield from fitted([titles, *map(_row, shown)], width)
    for line in _below(comparison, len(comparison.judgements) - len(shown)):
        yield from wrapped(line, width)


def _above(comparison: Comparison) -> Iterator[str]:
    yield f"baseline: {_run(comparison.base)}"
    yield f"new:      {_run(comparison.new)}"
    yield from shift_lines(comparison.shifts)
    for doubt in comparison.doubts:
        yield f"every verdict is in doubt: {doubt}"


def _below(comparison: Comparison, hidden: int) -> Iterator[str]:
    if hidden:
        yield f"{hidden} SAME verdicts are not listed"
    for heading, unmatched in _unmatched(comparison):
        for one in unmatched:
            yield f"{heading}: {label(one.measurement.identity)} ({one.why})"
    yield summary(comparison)


def summary(comparison: Comparison) -> str:
    """One line: the count of each verdict, the width of the intervals, and the result."""
    verdicts = [judgement.verdict for judgement in comparison.judgements]
    unchanged = len(comparison.unchanged)
    parts = [tally(verdicts)] if verdicts or not unchanged else []
    parts += [f"{unchanged} unchanged"] if unchanged else []
    words = ", ".join(parts)
    widths = [
        (judgement.change.high - judgement.change.low) / 2
        for judgement in comparison.judgements
        if judgement.change is not None
    ]
    if widths:
        words += f"; intervals are ±{100 * median(widths):.2g} % (median)"
    return f"{words}: {'passed' if comparison.passed else 'FAILED'}"


def tally(verdicts: Sequence[Verdict]) -> str:
    """``1 WORSE, 3 SAME``."""
    counts = Counter(verdicts)
    order = (Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.BETTER, Verdict.SAME)
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) or "nothing was compared"


def markdown(comparison: Comparison) -> str:
    """The comparison as a Markdown document; verdicts that fail are bold."""
    lines = [
        markdown_text(
            f"# {'Passed' if comparison.passed else 'Failed'}: {_plain(comparison.new)} against "
            f"{_plain(comparison.base)}"
        ),
        "",
        f"{summary(comparison)}.",
        "",
        *(f"{markdown_text(line)}.  " for line in shift_lines(comparison.shifts)),
        *([""] if comparison.shifts else []),
        *(markdown_text(f"Every verdict is in doubt: {doubt}.") for doubt in comparison.doubts),
    ]
    if comparison.judgements:
        lines += [
            "| kernel | metric | baseline | new | change | interval | verdict |",
            "|---|---|---:|---:|---:|---:|---|",
        ]
        for judgement in comparison.judgements:
            *cells, verdict = map(markdown_text, _row(judgement))
            mark = "**" if fails(judgement, comparison.settings) else ""
            lines.append(f"| {' | '.join(cells)} | {mark}{verdict}{mark} |")
        lines.append("")
    for heading, unmatched in _unmatched(comparison):
        lines += [
            markdown_text(f"- {heading}: {label(one.measurement.identity)} ({one.why})")
            for one in unmatched
        ]
    return "\n".join(lines).rstrip() + "\n"


def json_document(comparison: Comparison) -> str:
    """The comparison as JSON, ``schema_version`` 1; changes are fractions (0.05: +5 %).

    Where there are ``shifts``, the changes in ``judgements`` are relative to them.
    """
    settings = comparison.settings
    document: dict[str, Any] = {
        "schema_version": 1,
        "passed": comparison.passed,
        "base": _identity(comparison.base),
        "new": _identity(comparison.new),
        "limits": dict(settings.limits),
        "enforced": settings.enforced,
        "strict": settings.strict,
        "comparisons": comparison.comparisons,
        "doubts": list(comparison.doubts),
        "shifts": [shift_json(one) for one in comparison.shifts],
        "judgements": [as_json(judgement) for judgement in comparison.judgements],
        "missing_in_base": _names(comparison.missing_in_base),
        "missing_in_new": _names(comparison.missing_in_new),
        "failed": _names(comparison.failed),
        "unchanged": _names(comparison.unchanged),
    }
    return dump(document)


def as_json(judgement: Judgement) -> dict[str, Any]:
    """A judgement as plain data; ``interval`` is that of the change.

    ``shift`` is the common shift to which the change is relative, None where there is none.
    """
    change, shift = judgement.change, judgement.shift
    return {
        **judgement.identity._asdict(),
        "metric": judgement.metric,
        "unit": judgement.metric.unit,
        "verdict": str(judgement.verdict),
        "limit": judgement.limit,
        "base": judgement.base,
        "new": judgement.new,
        "change": change and math.expm1(change.value),
        "interval": change and [math.expm1(change.low), math.expm1(change.high)],
        "shift": None if shift is None else math.expm1(shift.change.value),
        "unchanged": judgement.unchanged,
        "reasons": list(judgement.reasons),
    }


def _row(judgement: Judgement) -> tuple[str, ...]:
    change, unit = judgement.change, judgement.metric.unit
    values = [
        "" if value is None else f"{value:.4g} {unit}" for value in (judgement.base, judgement.new)
    ]
    interval = ""
    if change is not None:
        interval = f"{signed_percent(change.low)} to {signed_percent(change.high)}"
    reasons = f" ({'; '.join(judgement.reasons)})" if judgement.reasons else ""
    return (
        label(judgement.identity),
        judgement.metric.label,
        *values,
        "" if change is None else signed_percent(change.value),
        interval,
        f"{judgement.verdict}{reasons}",
    )


def _notable(judgements: Sequence[Judgement]) -> list[Judgement]:
    """All judgements, or without the SAME ones when there are more than `ROWS_SHOWN`."""
    if len(judgements) <= ROWS_SHOWN:
        return list(judgements)
    return [judgement for judgement in judgements if judgement.verdict is not Verdict.SAME]


def _change(judgement: Judgement) -> str:
    assert judgement.change is not None
    ends = (signed_percent(end) for end in (judgement.change.low, judgement.change.high))
    return f"{signed_percent(judgement.change.value)} ({' to '.join(ends)})"


def _unmatched(comparison: Comparison) -> Iterator[tuple[str, Sequence[Unmatched]]]:
    yield "no longer measured", comparison.failed
    yield "missing from the baseline", comparison.missing_in_base
    yield "missing from the new run", comparison.missing_in_new
    yield "unchanged, not measured", comparison.unchanged


def _plain(run: RunInfo) -> str:
    return f"run {run.run_id}"


def _run(run: RunInfo) -> str:
    revision = f", revision {run.short_revision}" if run.git_revision else ""
    emulated = " (emulated)" if run.emulated else ""
    return f"{_plain(run)} of {run.started}, {run.gpu_name}{emulated}{revision}"


def _identity(run: RunInfo) -> dict[str, Any]:
    names = ("run_id", "started", "gpu_name", "gpu_uuid", "emulated", "git_revision")
    return {name: getattr(run, name) for name in names}


def _names(unmatched: Sequence[Unmatched]) -> list[dict[str, str]]:
    return [
        {
            **one.measurement.identity._asdict(),
            "why": one.why,
        }
        for one in unmatched
    ]
