"""The summary's lines about anchor kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record import DRIFT, AnchorCheck, Estimate, Measurement, Metric, distance
from pytest_gpuenergy.support import emulated_mark


def anchor_lines(
    measurements: Sequence[Measurement], checks: Sequence[AnchorCheck], *, emulated: bool
) -> Iterator[str]:
    """The summary's lines about the anchor checks of a run; none without checks."""
    if not checks:
        return
    drifted = [check for check in checks if check.verdict == "drift"]
    unsure = [check for check in checks if check.verdict == "unsure"]
    times = "once" if len(checks) == 1 else f"{len(checks)} times"
    widest = max(
        ((ratio, metric, check) for check in checks for metric, ratio in check.ratios.items()),
        key=lambda found: distance(found[0]),
        default=None,
    )
    most = "" if widest is None else f", largest change: {_words(*widest)}"
    label = emulated_mark(emulated)
    yield f"anchor kernels{label} were measured again {times}{most}"
    if drifted:
        flagged = sum(DRIFT in m.validity for m in measurements)
        yield f"drift in {len(drifted)} of these checks: {flagged} measurements are flagged {DRIFT}"
    if unsure:
        why = unsure[0].error or ", ".join(unsure[0].validity)
        yield f"{len(unsure)} of these checks could not be judged: {why}"


def _words(ratio: Estimate, metric: Metric, check: AnchorCheck) -> str:
    percent, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
    return (
        f"{metric.label} {percent:+.1f} % [{low:+.1f}, {high:+.1f}] "
        f"({check.kernel} of {check.workload} at {check.cap})"
    )
