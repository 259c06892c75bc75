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
from pytest_gpuenergy.record import Identity, RunInfo
from pytest_gpuenergy.report import markdown_text, signed_percent
from pytest_gpuenergy.support import dump, emulated_mark, fitted, wrapped

ROWS_SHOWN = 40
_NAMES_SHOWN = 5


def label(identity: Identity) -> str:
    """An identity as in item ids, ``case1-k01-300W``, plus the cache state unless it is hot."""
    *names, cache = identity
    return "-".join(names if cache == "hot" else [*names, cache])


def describe(judgement: Judgement, *, emulated: bool) -> str:
    """``EDP +5.2 % (+3.1 % to +7.4 %), limit 1 %: WORSE``, with the reasons, if any.

    It stands alone in annotations and JUnit XML, so it says itself if figures are ``emulated``.
    """
    words = f"{judgement.metric.label}{emulated_mark(emulated)}"
    if judgement.change is not None:
        words += f" {_change(judgement)}"
    words += f", limit {100 * judgement.limit:.4g} %: {judgement.verdict}"
    return f"{words} ({'; '.join(judgement.reasons)})" if judgement.reasons else words


BUDGET_VERDICTS = {
    Verdict.WORSE: "over budget",
    Verdict.AMBIGUOUS: "undecided",
    Verdict.SAME: "within budget",
}
"""What the verdict on a figure means for its budget."""


def budget_words(judgement: Judgement, *, emulated: bool) -> str:
    """``EDP 0.147 mJ·ms (0.14 to 0.15), budget 0.14 mJ·ms + 3 %: over budget by 2.1 %``."""
    assert judgement.new is not None
    assert judgement.base is not None
    metric, most = judgement.metric, judgement.base * (1 + judgement.limit)
    words = f"{metric.label}{emulated_mark(emulated)} {judgement.new:.4g} {metric.unit}"
    if (change := judgement.change) is not None:
        low, high = (judgement.base * math.exp(end) for end in (change.low, change.high))
        words += f" ({low:.4g} to {high:.4g})"
    allowed = f" + {100 * judgement.limit:.4g} %" if judgement.limit else ""
    words += f", budget {judgement.base:.4g} {metric.unit}{allowed}: "
    words += BUDGET_VERDICTS[judgement.verdict]
    if judgement.verdict is Verdict.WORSE:
        words += f" by {100 * (judgement.new / most - 1):.3g} %"
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
    yield from shift_lines(comparison.shifts, emulated=comparison.new.emulated)
    for doubt in comparison.doubts:
        yield f"every verdict is in doubt: {doubt}"


def _below(comparison: Comparison, hidden: int) -> Iterator[str]:
    if hidden:
        yield f"{hidden} SAME verdicts are not listed"
    for heading, unmatched in _unmatched(comparison):
        for one in unmatched:
            yield f"{heading}: {label(one.measurement.identity)} ({one.why})"
    narrowed = comparison.new.options.get("selection")
    if narrowed and comparison.missing_in_new:
        yield f"the new run was narrowed by {narrowed}: pytest --gpuenergy-compare allows for that"
    yield summary(comparison)


def summary(comparison: Comparison) -> str:
    """One line: the count of each verdict, the width of the intervals, the result, what is lost."""
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
    words += f": {'passed' if comparison.passed else 'FAILED'}"
    return f"{words}{loss(comparison)}"


def loss(comparison: Comparison) -> str:
    """``; 169 of 175 missing``: how much of what the baseline has the run lost, if any."""
    matched = {(one.identity, one.node_id) for one in comparison.judgements}
    missing = len(comparison.missing_in_new)
    of = len(matched) + len(comparison.failed) + len(comparison.unchanged) + missing
    return f"; {missing} of {of} missing" if missing else ""


def missing_words(comparison: Comparison) -> str:
    """A sentence about what the baseline has and the run lost, and what to do."""
    names = [label(one.measurement.identity) for one in comparison.missing_in_new]
    listed = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (
        f"{loss(comparison).removeprefix('; ')} from this run ({listed}{more}): measure them, or "
        "take what is meant to be gone out of the baseline with gpuenergy baseline update "
        "--replace."
    )


def tally(verdicts: Sequence[str]) -> str:
    """``1 WORSE, 3 SAME, 1 within budget``."""
    counts = Counter(verdicts)
    order = (
        *(Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.BETTER, Verdict.SAME),
        *(BUDGET_VERDICTS[one] for one in (Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.SAME)),
    )
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) or "nothing was compared"


def markdown(comparison: Comparison) -> str:
    """The comparison as a Markdown document; verdicts that fail are bold."""
    lines = [
        markdown_text(
            f"# {'Passed' if comparison.passed else 'Failed'}: {_plain(comparison.new)} against "
            f"{_plain(comparison.base)}{emulated_mark(comparison.new.emulated)}"
        ),
        "",
        f"{summary(comparison)}.",
        "",
        *(
            f"{markdown_text(line)}.  "
            for line in shift_lines(comparison.shifts, emulated=comparison.new.emulated)
        ),
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
        "deselected": _names(comparison.deselected),
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
    return f"{_plain(run)} of {run.started}, {run.gpu_name}{emulated_mark(run.emulated)}{revision}"


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
