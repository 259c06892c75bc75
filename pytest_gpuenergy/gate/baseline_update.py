"""Updates a baseline with the measurements of a run."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.gate.run_comparison import Unmatched
from pytest_gpuenergy.record import Measurement, StationInfo
from pytest_gpuenergy.report import Models, Report
from pytest_gpuenergy.support import InputError


@dataclass(frozen=True)
class Update:
    """A new baseline: what it took from the run, kept of the old one, and left out of the run."""

    report: Report
    taken: tuple[Measurement, ...]
    kept: tuple[Measurement, ...]
    left_out: tuple[Unmatched, ...]


def update(old: Report | None, new: Report) -> Update:
    """Replace or add measurements of the baseline ``old`` by the clean ones of ``new``.

    Raises:
        InputError: the run has no clean measurement, is marked legacy, or was made on a board that
            the baseline does not have, or with another driver than there.
    """
    if new.run.legacy:
        raise InputError(f"Run {new.run.run_id} is marked legacy: measure again.")
    if old is not None:
        _check_alike(old, new)
    taken = tuple(m for m in new.measurements if m.measured and not m.validity)
    if not taken:
        raise InputError(f"Run {new.run.run_id} has no measurement without a flag: measure again.")
    now, then = Models(new), Models(old or new)
    replaced = {(now.of(m), m.identity) for m in taken}
    items = {(now.of(m), m.node_id) for m in taken}  # one may have got another label
    kept = tuple(
        m
        for m in (old.measurements if old else ())
        if (then.of(m), m.identity) not in replaced and (then.of(m), m.node_id) not in items
    )
    left_out = tuple(
        Unmatched(m, f"flagged: {', '.join(m.validity)}" if m.measured else f"{m.outcome}")
        for m in new.measurements
        if not m.measured or m.validity
    )
    # The GPUs of both, as described last; none if the run's own GPU is the only one.
    known = {gpu.gpu_uuid: gpu for report in filter(None, (old, new)) for gpu in _gpus(report)}
    stations = tuple(known.values())
    if stations == (new.run.station,):
        stations = ()
    report = Report(new.run, kept + taken, stations=stations)
    return Update(report, taken, kept, left_out)


def _check_alike(old: Report, new: Report) -> None:
    """Check that each GPU of a run is one of the baseline's, with the same driver.

    Raises:
        InputError: one is not.
    """
    before = {station.gpu_uuid: station for station in _gpus(old)}
    models = [station.gpu_name for station in before.values()]
    for station in _gpus(new):
        alike = [known for known in before.values() if known.gpu_name == station.gpu_name]
        here = before.get(station.gpu_uuid, station)
        for name, then, now in (
            ("GPU model", models, station.gpu_name),
            (
                "kind of GPU, emulated or real",
                [_kind(known.emulated) for known in alike],
                _kind(station.emulated),
            ),
            ("board", [known.gpu_uuid for known in alike], station.gpu_uuid),
            ("driver", [_driver(here)], _driver(station)),
        ):
            if now not in then:
                listed = " or ".join(dict.fromkeys(then))
                raise InputError(
                    f"The baseline and run {new.run.run_id} differ in the {name} ({listed} and "
                    f"{now}): start a new baseline with --replace, or write another with --to."
                )


def _gpus(report: Report) -> tuple[StationInfo, ...]:
    """Return all GPUs of a report; an older one names only that of its run."""
    return report.stations or (report.run.station,)


def _kind(emulated: bool) -> str:
    return "emulated" if emulated else "real"


def _driver(station: StationInfo) -> str:
    return station.software.get("driver", "unknown")
