"""Savings of a step by changes of a model's calls, each measured by replaying what is changed.

    saved = n (E(as now) - E(changed)),  n: how often a step makes the call

The interval of a saving adds up those of its two energies. Each saving is that of one change by
itself: two changes of the same call do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.call_figures import (
    half_width_mj,
    time_ms_of,
)
from pytest_gpuenergy.support import aligned, plain_numbers

SHOWN = 5
"""The number of changes of a step in the terminal."""


class CallChange(Struct, frozen=True):
    """A change of what a model calls.

    Attributes:
        words: The change in words.
        before: The key of the measurement of what is changed.
        after: The key of the measurement of what takes its place.
        steps: How often each step makes what is changed.
        error: The norm of what changes in the result, relative to the norm of the result; None if
            nothing changes in what is read of it.
    """

    words: str
    before: str
    after: str
    steps: dict[int, int]
    error: float | None = None


class ChangeSaving(Struct, frozen=True):
    """The saving of a change in a step.

    Attributes:
        step: The number of the step.
        cap: The label of the power limit.
        change: The change.
        calls: How often the step makes what is changed.
        energy_mj: The energy of all these, as now.
        saved_mj: The part of it that the change saves; negative if it takes more.
        saved_mj_half_width: The half width of its 95 % interval.
        saved_ms: The time that the change saves.
    """

    step: int
    cap: str
    change: CallChange
    calls: int
    energy_mj: float
    saved_mj: float
    saved_mj_half_width: float
    saved_ms: float


def change_savings(
    changes: Sequence[CallChange], measured: Mapping[str, Measurement], cap: str
) -> list[ChangeSaving]:
    """Return the savings of the changes that were measured, for each step the largest first."""
    found = []
    for change in changes:
        before, after = measured.get(change.before), measured.get(change.after)
        if before is None or after is None or not (before.measured and after.measured):
            continue
        saved_mj = (before.energy_mj or 0.0) - (after.energy_mj or 0.0)
        for step, count in change.steps.items():
            found.append(
                ChangeSaving(
                    step=step,
                    cap=cap,
                    change=change,
                    calls=count,
                    energy_mj=count * (before.energy_mj or 0.0),
                    saved_mj=count * saved_mj,
                    saved_mj_half_width=count * (half_width_mj(before) + half_width_mj(after)),
                    saved_ms=count * (time_ms_of(before) - time_ms_of(after)),
                )
            )
    return sorted(found, key=lambda saving: (saving.step, -saving.saved_mj))


def change_lines(found: Sequence[ChangeSaving], step: str) -> Iterator[str]:
    """Yield a table of the changes that save most in a step."""
    shown = [saving for saving in found if saving.saved_mj > saving.saved_mj_half_width][:SHOWN]
    yield f"{step}: {len(shown)} changes that save most, of {len(found)} that were measured"
    if not shown:
        return
    header = ("mJ saved", "ms saved", "of", "mJ", "changes the result by", "change")
    rows = [
        (
            f"{saving.saved_mj:.4g} ±{saving.saved_mj_half_width:.2g}",
            f"{saving.saved_ms:.3g}",
            f"{saving.calls} x {saving.change.before}",
            f"{saving.energy_mj:.4g}",
            "nothing" if not saving.change.error else f"{saving.change.error:.2g}",
            saving.change.words,
        )
        for saving in shown
    ]
    yield from aligned([header, *([*map(plain_numbers, row)] for row in rows)])
