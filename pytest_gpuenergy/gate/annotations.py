"""Failures as GitHub Actions annotations: lines that the runner shows on the job's page.

They are workflow commands in the format of the runner's own toolkit
(``packages/core/src/command.ts`` of github.com/actions/toolkit).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice

from pytest_gpuenergy.gate.comparison import Comparison
from pytest_gpuenergy.gate.shift_views import shift_problem
from pytest_gpuenergy.gate.verdict import Verdict, fails
from pytest_gpuenergy.gate.views import describe, label, loss
from pytest_gpuenergy.support import printable_text

SHOWN = 10
"""Number of annotations of one kind that GitHub keeps per step."""


def wanted() -> bool:
    """Whether this runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(comparison: Comparison) -> Iterator[str]:
    """An error for each failure, a warning for each WORSE verdict that does not fail.

    All AMBIGUOUS verdicts together are one notice.
    """
    yield from limited("error", _errors(comparison))
    worse = (
        (label(judgement.identity), describe(judgement, emulated=comparison.new.emulated))
        for judgement in comparison.judgements
        if judgement.verdict is Verdict.WORSE and not fails(judgement, comparison.settings)
    )
    yield from limited("warning", worse)
    yield from annotate_counts(comparison)


def annotate_counts(comparison: Comparison) -> Iterator[str]:
    """What the run lacks, and one notice for all AMBIGUOUS verdicts that do not fail it."""
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


def limited(level: str, texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Annotations for (title, message) pairs; the last one counts those GitHub would drop."""
    listed = list(texts)
    shown = listed if len(listed) <= SHOWN else listed[: SHOWN - 1]
    for title, message in shown:
        yield annotation(level, title, message)
    if len(listed) > len(shown):
        yield annotation(level, "gate", f"{len(listed) - len(shown)} more in the job's summary")


def annotation(level: str, title: str, message: str) -> str:
    """``::error title=case1-k01-300W::EDP +5.2 % ...``, escaped."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _errors(comparison: Comparison) -> Iterator[tuple[str, str]]:
    settings, emulated = comparison.settings, comparison.new.emulated
    for judgement in comparison.judgements:
        if fails(judgement, settings):
            yield label(judgement.identity), describe(judgement, emulated=emulated)
    for judged in comparison.failing_shifts:
        yield (
            f"unchanged kernels at {judged.shift.place.cap}",
            shift_problem(judged, emulated=emulated),
        )
    unmatched = [*(comparison.failed if settings.enforced else ())]
    unmatched += comparison.missing_in_base if settings.strict else ()
    for one in unmatched:
        yield label(one.measurement.identity), one.why


def _data(text: str) -> str:
    return printable_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
