"""A comparison for the terminal, as Markdown, as JSON, on the HTML page and as annotations.

Annotations are lines that the GitHub Actions runner shows on the job's page: workflow commands in
the format of the runner's own toolkit (``packages/core/src/command.ts`` of
github.com/actions/toolkit).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any

from pytest_gpuenergy.gate.gate_settings import GateSettings
from pytest_gpuenergy.gate.run_comparison import Comparison, Unmatched, compare
from pytest_gpuenergy.gate.verdict import JudgedShift, Judgement, Verdict, fails
from pytest_gpuenergy.record import Estimate, RunInfo
from pytest_gpuenergy.report import (
    USUAL_SCATTER,
    Report,
    ShiftPlace,
    markdown_lines,
    markdown_text,
    signed_percent,
)
from pytest_gpuenergy.support import (
    InputError,
    dump,
    emulated_mark,
    fitted,
    printable_text,
    wrapped,
)


def shift_lines(shifts: Iterable[JudgedShift], *, emulated: bool) -> Iterator[str]:
    """Yield what unchanged kernels have in common, a line per place, and what is unusual."""
    places: dict[ShiftPlace, list[JudgedShift]] = {}
    for one in shifts:
        places.setdefault(one.shift.place, []).append(one)
    for place, judged in places.items():
        parts = []
        for shift in (judgement.shift for judgement in judged):
            apart = f" without {shift.apart} that lie apart" if shift.apart else ""
            scatter = f"scatter {100 * shift.scatter:.2g} %{apart}"
            parts.append(f"{shift.metric.label} {_change_words(shift.change)}, {scatter}")
        first = judged[0].shift
        board = "" if first.same_board else ", another board"
        yield (
            f"{first.kernels} unchanged kernels at {place.cap}{board}{emulated_mark(emulated)} "
            f"changed in common by {'; '.join(parts)}: changes are relative to that"
        )
        yield from filter(
            None, (shift_problem(judgement, emulated=emulated) for judgement in judged)
        )


def shift_problem(judged: JudgedShift, *, emulated: bool) -> str:
    """Return what is unusual about a common shift, or an empty string."""
    shift = judged.shift
    parts: list[str] = []
    between = "between sessions on one board" if shift.same_board else "between boards"
    if judged.unusual:
        parts.append(f"more than is usual {between} (±{100 * math.expm1(judged.usual):.1f} %)")
    if shift.scattered:
        most = USUAL_SCATTER[shift.metric]
        parts.append(f"with a scatter of more than {100 * most:.1f} %")
    if judged.verdict is Verdict.WORSE:
        parts.append(f"beyond the limit of {100 * judged.limit:.4g} %: {judged.verdict}")
    if not parts:
        return ""
    where = f"{shift.place.cap}{emulated_mark(emulated)}"
    return (
        f"{shift.metric.label} of what has not changed at {where}: "
        f"{signed_percent(shift.change.value)}, {', '.join(parts)} "
        "(did the driver, the compiler or the harness change?)"
    )


def shift_json(judged: JudgedShift) -> dict[str, Any]:
    """Return a shift as plain data; changes and scatters are fractions."""
    shift = judged.shift
    return {
        "metric": shift.metric,
        "cap": shift.place.cap,
        "base_gpu_uuid": shift.place.before,
        "gpu_uuid": shift.place.now,
        "kernels": shift.kernels,
        "apart": shift.apart,
        "change": math.expm1(shift.change.value),
        "interval": [math.expm1(shift.change.low), math.expm1(shift.change.high)],
        "scatter": shift.scatter,
        "scatter_beyond_intervals": shift.lasting,
        "limit": judged.limit,
        "verdict": str(judged.verdict),
        "usual": math.expm1(judged.usual),
        "unusual": judged.unusual,
    }


ROWS_SHOWN = 40
_NAMES_SHOWN = 5


def describe(judgement: Judgement, *, emulated: bool) -> str:
    """``EDP +5.2 % (+3.1 % to +7.4 %), limit 1 %: WORSE``, with the reasons, if any.

    It stands alone in annotations and JUnit XML, so it says itself if figures are ``emulated``.
    """
    words = f"{judgement.metric.label}{emulated_mark(emulated)}"
    if judgement.change is not None:
        words += f" {_change_words(judgement.change)}"
    words += f", limit {100 * judgement.limit:.4g} %: {judgement.verdict}"
    return f"{words} ({'; '.join(judgement.reasons)})" if judgement.reasons else words


BUDGET_VERDICTS = {
    Verdict.WORSE: "over budget",
    Verdict.AMBIGUOUS: "undecided",
    Verdict.SAME: "within budget",
}
"""The words for a verdict on a figure that is judged by a budget."""


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
    """Yield the runs compared, a row per verdict, unmatched measurements and a summary.

    Lines have at most ``width`` characters; None: any number.
    """
    emulated, judgements = comparison.new.emulated, comparison.judgements
    shown = list(judgements)
    if len(shown) > ROWS_SHOWN:
        shown = [judgement for judgement in judgements if judgement.verdict is not Verdict.SAME]
    above = [f"baseline: {_run_words(comparison.base)}", f"new:      {_run_words(comparison.new)}"]
    above += shift_lines(comparison.shifts, emulated=emulated)
    above += [f"every verdict is in doubt: {doubt}" for doubt in comparison.doubts]
    below = []
    if hidden := len(judgements) - len(shown):
        below.append(f"{hidden} SAME verdicts are not listed")
    for heading, unmatched in _unmatched_by_heading(comparison).items():
        below += [
            f"{heading}: {entry.measurement.identity.label} ({entry.why})" for entry in unmatched
        ]
    narrowed = comparison.new.options.get("selection")
    if narrowed and comparison.missing_in_new:
        below.append(
            f"the new run was narrowed by {narrowed}: pytest --gpuenergy-compare allows for that"
        )
    for line in above:
        yield from wrapped(line, width)
    if shown:
        yield from fitted([_TITLES, *map(_row, shown)], width)
    for line in [*below, summary(comparison)]:
        yield from wrapped(line, width)


def summary(comparison: Comparison) -> str:
    """Return one line: verdicts counted, ends of the intervals, the result, what is lost."""
    verdicts = [judgement.verdict for judgement in comparison.judgements]
    unchanged = len(comparison.unchanged)
    parts = [tally(verdicts)] if verdicts or not unchanged else []
    parts += [f"{unchanged} unchanged"] if unchanged else []
    words = ", ".join(parts)
    changes = [one.change for one in comparison.judgements if one.change is not None]
    if changes:
        low = median(change.low - change.value for change in changes)
        high = median(change.high - change.value for change in changes)
        words += f"; intervals extend by {signed_percent(low)} and {signed_percent(high)} (median)"
    words += f": {'passed' if comparison.passed else 'FAILED'}"
    return f"{words}{loss(comparison)}"


def loss(comparison: Comparison) -> str:
    """``; 169 of 175 missing``: how much of what the baseline has the run lost, if any."""
    matched = {(judgement.identity, judgement.node_id) for judgement in comparison.judgements}
    missing = len(comparison.missing_in_new)
    of = len(matched) + len(comparison.failed) + len(comparison.unchanged) + missing
    return f"; {missing} of {of} missing" if missing else ""


def missing_words(comparison: Comparison) -> str:
    """Return a sentence about what the baseline has and the run lost, and what to do."""
    names = [lost.measurement.identity.label for lost in comparison.missing_in_new]
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
    order = (*_ORDER, *BUDGET_VERDICTS.values())
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) or "nothing was compared"


def markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown document; verdicts that fail are bold."""
    base, new = comparison.base, comparison.new
    result = "Passed" if comparison.passed else "Failed"
    title = f"# {result}: run {new.run_id} against run {base.run_id}{emulated_mark(new.emulated)}"
    lines = [markdown_text(title), "", f"{summary(comparison)}.", ""]
    shifts = [*shift_lines(comparison.shifts, emulated=new.emulated)]
    lines += [f"{markdown_text(line)}.  " for line in shifts]
    lines += [""] if shifts else []
    lines += [markdown_text(f"Every verdict is in doubt: {doubt}.") for doubt in comparison.doubts]
    if comparison.judgements:
        lines += markdown_lines(_TITLES, (), figures={2, 3, 4, 5})
        for judgement in comparison.judgements:
            *cells, verdict = map(markdown_text, _row(judgement))
            mark = "**" if fails(judgement, comparison.settings) else ""
            lines.append(f"| {' | '.join(cells)} | {mark}{verdict}{mark} |")
        lines.append("")
    for heading, unmatched in _unmatched_by_heading(comparison).items():
        lines += [
            markdown_text(f"- {heading}: {entry.measurement.identity.label} ({entry.why})")
            for entry in unmatched
        ]
    return "\n".join(lines).rstrip() + "\n"


def json_document(comparison: Comparison) -> str:
    """Return the comparison as JSON, ``schema_version`` 1; changes are fractions (0.05: +5 %).

    Where there are ``shifts``, the changes in ``judgements`` are relative to them.
    """
    settings = comparison.settings
    names = ("run_id", "started", "gpu_name", "gpu_uuid", "emulated", "git_revision")
    document: dict[str, Any] = {
        "schema_version": 1,
        "passed": comparison.passed,
        "base": {name: getattr(comparison.base, name) for name in names},
        "new": {name: getattr(comparison.new, name) for name in names},
        "limits": dict(settings.limits),
        "enforced": settings.enforced,
        "strict": settings.strict,
        "comparisons": comparison.comparisons,
        "doubts": list(comparison.doubts),
        "shifts": [shift_json(shift) for shift in comparison.shifts],
        "judgements": [as_json(judgement) for judgement in comparison.judgements],
    }
    for name in ("missing_in_base", "missing_in_new", "deselected", "failed", "unchanged"):
        unmatched: Sequence[Unmatched] = getattr(comparison, name)
        document[name] = [
            {**entry.measurement.identity._asdict(), "why": entry.why} for entry in unmatched
        ]
    return dump(document)


def as_json(judgement: Judgement) -> dict[str, Any]:
    """Return a judgement as plain data; ``interval`` is that of the change.

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


_TITLES = ("kernel", "metric", "baseline", "new", "change", "interval", "verdict")


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
        judgement.identity.label,
        judgement.metric.label,
        *values,
        "" if change is None else signed_percent(change.value),
        interval,
        f"{judgement.verdict}{reasons}",
    )


def _change_words(change: Estimate) -> str:
    """``+5.2 % (+3.1 % to +7.4 %)`` for the logarithm of a ratio."""
    value, *ends = map(signed_percent, (change.value, change.low, change.high))
    return f"{value} ({' to '.join(ends)})"


def _unmatched_by_heading(comparison: Comparison) -> dict[str, Sequence[Unmatched]]:
    return {
        "no longer measured": comparison.failed,
        "missing from the baseline": comparison.missing_in_base,
        "missing from the new run": comparison.missing_in_new,
        "unchanged, not measured": comparison.unchanged,
    }


def _run_words(run: RunInfo) -> str:
    revision = f", revision {run.short_revision}" if run.git_revision else ""
    gpu = f"{run.gpu_name}{emulated_mark(run.emulated)}"
    return f"run {run.run_id} of {run.started}, {gpu}{revision}"


MAX_ANNOTATIONS = 10
"""Number of annotations of one kind that GitHub keeps per step."""


def in_github_actions() -> bool:
    """Return whether this runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(comparison: Comparison) -> Iterator[str]:
    """Yield an error for each failure, a warning for each WORSE verdict that does not fail.

    All AMBIGUOUS verdicts together are one notice.
    """
    settings, emulated = comparison.settings, comparison.new.emulated
    errors, warnings = list[tuple[str, str]](), list[tuple[str, str]]()
    for judgement in comparison.judgements:
        if fails(judgement, settings):
            errors.append((judgement.identity.label, describe(judgement, emulated=emulated)))
        elif judgement.verdict is Verdict.WORSE:
            warnings.append((judgement.identity.label, describe(judgement, emulated=emulated)))
    for judged in comparison.failing_shifts:
        title = f"unchanged kernels at {judged.shift.place.cap}"
        errors.append((title, shift_problem(judged, emulated=emulated)))
    unmatched = [*(comparison.failed if settings.enforced else ())]
    unmatched += comparison.missing_in_base if settings.strict else ()
    errors += [(lost.measurement.identity.label, lost.why) for lost in unmatched]
    yield from annotate_all("error", errors)
    yield from annotate_all("warning", warnings)
    yield from annotate_counts(comparison)


def annotate_counts(comparison: Comparison) -> Iterator[str]:
    """Yield what the run lacks, and one notice for all AMBIGUOUS verdicts that do not fail it."""
    if lost := loss(comparison):
        result = "passed" if comparison.passed else "FAILED"
        level = "error" if comparison.settings.strict else "warning"
        yield annotation(level, "gate", f"{result}{lost}")
    open_ = [j for j in comparison.judgements if j.verdict is Verdict.AMBIGUOUS]
    if open_ and not comparison.settings.strict:
        reasons = dict.fromkeys(reason for judgement in open_ for reason in judgement.reasons)
        why = "; ".join(islice(reasons, 3)) or "the intervals cross the limit"
        total = len(comparison.judgements)
        yield annotation("notice", "gate", f"{len(open_)} of {total} verdicts are AMBIGUOUS: {why}")


def annotate_all(level: str, texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Annotations for (title, message) pairs; the last one counts those GitHub would drop."""
    listed = list(texts)
    shown = listed if len(listed) <= MAX_ANNOTATIONS else listed[: MAX_ANNOTATIONS - 1]
    for title, message in shown:
        yield annotation(level, title, message)
    if len(listed) > len(shown):
        yield annotation(level, "gate", f"{len(listed) - len(shown)} more in the job's summary")


def annotation(level: str, title: str, message: str) -> str:
    """``::error title=case1-k01-300W::EDP +5.2 % ...``, escaped."""
    title, message = (
        printable_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        for text in (title, message)
    )
    return f"::{level} title={title.replace(':', '%3A').replace(',', '%2C')}::{message}"


_ORDER = (Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.BETTER, Verdict.SAME)
"""The verdicts, the worst first."""


def page_verdicts(base: Report, new: Report, settings: GateSettings) -> dict[str, Any]:
    """`verdict_values` of two reports, or the reason why there are none."""
    try:
        return verdict_values(compare(base, new, settings))
    except InputError as error:
        return {"why": str(error), "judgements": []}


def verdict_values(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values; judgements are sorted, the worst first."""
    settings = comparison.settings
    *groups, _unchanged = _unmatched_by_heading(comparison).items()

    def badness(one: Judgement) -> tuple[int, float]:
        change = -math.inf if one.change is None else one.change.value
        return _ORDER.index(one.verdict), -change

    return {
        "why": None,
        "passed": comparison.passed,
        "enforced": settings.enforced,
        "summary": summary(comparison),
        "doubts": list(comparison.doubts),
        "shifts": list(shift_lines(comparison.shifts, emulated=comparison.new.emulated)),
        "judgements": [
            {
                **as_json(judgement),
                "label": judgement.identity.label,
                "fails": fails(judgement, settings),
            }
            for judgement in sorted(comparison.judgements, key=badness)
        ],
        "unmatched": [
            {
                "what": heading,
                "label": entry.measurement.identity.label,
                "why": entry.why,
            }
            for heading, unmatched in groups
            for entry in unmatched
        ],
    }
