"""Advice for a report: for its workloads together, and for each by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.advice.advise import (
    Advice,
    Change,
    Goal,
    advise,
    advise_apart,
    sentences,
)
from pytest_gpuenergy.advice.field import Field
from pytest_gpuenergy.record import Metric, RunInfo
from pytest_gpuenergy.report import Report


@dataclass(frozen=True)
class Outcome:
    """What ``gpuenergy advise`` has found.

    Attributes:
        run: the run, or the last of several.
        gpu_name: the GPU model.
        emulated: whether it is emulated.
        boards: the cards that were measured.
        goal: what is least.
        weights: how often each workload runs.
        whole: for all workloads at one setpoint; None if none has all of them.
        apart: the changes of the sums if each workload had its own setpoint; None if that is not
            known, or there is only one workload.
        each: for each workload by itself.
        sentences: what is left out and what is missing.
    """

    run: RunInfo
    gpu_name: str
    emulated: bool
    boards: tuple[str, ...]
    goal: Goal
    weights: Mapping[str, float]
    whole: Advice | None
    apart: Mapping[Metric, Change] | None
    each: tuple[Advice, ...]
    sentences: tuple[str, ...]


def advise_on(
    report: Report,
    goal: Goal,
    *,
    weights: Mapping[str, float],
    baseline: str | None = None,
    expected: Sequence[str] = (),
) -> Outcome:
    """Advice on the measurements of a report.

    A workload by itself has the baseline of the whole where it was measured there.

    Args:
        report: measurements of one GPU model.
        goal: what shall be least.
        weights: how often a workload runs; once where it is not named.
        baseline: the label of the setpoint that others are compared with; None: see
            `Field.baseline`.
        expected: names of the workloads that were asked for, which may be missing.

    Raises:
        InputError: see `Field.of` and `Field.baseline`.
    """
    field = Field.of(report, weights)
    whole = advise(field, goal, baseline)
    common = None if whole is None else whole.baseline.setpoint
    each = []
    for name in field.workloads:
        own = field.only(name)
        wanted = common or baseline
        known = wanted is not None and wanted in own.options
        found = advise(own, goal, wanted if known else None)
        assert found is not None  # it was measured somewhere
        each.append(found)
    apart = None
    if whole is not None and len(field.workloads) > 1:
        apart = advise_apart(field, goal, whole.baseline)
    return Outcome(
        report.run,
        field.gpu_name,
        field.emulated,
        tuple(field.boards),
        goal,
        field.workloads,
        whole,
        apart,
        tuple(each),
        tuple(sentences(field, expected)),
    )
