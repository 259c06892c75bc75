"""Updates a baseline with the measurements of a run."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.gate.comparison import Unmatched
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support.errors import InputError


@dataclass(frozen=True)
class Update:
    """A new baseline.

    Attributes:
        report: the run's identity, with its clean measurements and those kept.
        taken: clean measurements taken from the run.
        kept: measurements of the old baseline that the run does not replace.
        left_out: measurements of the run that failed or are flagged.
    """

    report: Report
    taken: tuple[Measurement, ...]
    kept: tuple[Measurement, ...]
    left_out: tuple[Unmatched, ...]


def update(old: Report | None, new: Report) -> Update:
    """Replace or add measurements of the baseline ``old`` by the clean ones of ``new``.

    Raises:
        InputError: the run has no clean measurement, is marked legacy, or was made on another board
            or with another driver than the baseline.
    """
    if new.run.legacy:
        raise InputError(f"Run {new.run.run_id} is marked legacy: measure again.")
    if old is not None:
        for name, before, now in (
            ("GPU model", old.run.gpu_name, new.run.gpu_name),
            ("kind of GPU, emulated or real", old.run.emulated, new.run.emulated),
            ("board", old.run.gpu_uuid, new.run.gpu_uuid),
            ("driver", old.run.software.get("driver"), new.run.software.get("driver")),
        ):
            if before != now:
                raise InputError(
                    f"The baseline and run {new.run.run_id} differ in the {name} ({before} and "
                    f"{now}): start a new baseline with --replace, or write another with --to."
                )
    taken = tuple(m for m in new.measurements if m.measured and not m.validity)
    if not taken:
        raise InputError(f"Run {new.run.run_id} has no measurement without a flag: measure again.")
    replaced = {measurement.identity for measurement in taken}
    items = {measurement.node_id for measurement in taken}  # one may have got another label
    kept = tuple(
        m
        for m in (old.measurements if old else ())
        if m.identity not in replaced and m.node_id not in items
    )
    left_out = tuple(
        Unmatched(m, f"flagged: {', '.join(m.validity)}" if m.measured else f"{m.outcome}")
        for m in new.measurements
        if not m.measured or m.validity
    )
    return Update(Report(new.run, kept + taken), taken, kept, left_out)
