"""What there is to choose from: clean measurements by setpoint and workload; what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.advice.changes import Option
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.setpoints import setpoint_order, setpoints
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.support.errors import InputError

_NAMED = 5


@dataclass(frozen=True)
class Field:
    """The options of each workload at each setpoint.

    Attributes:
        options: by setpoint and workload, at least one for each that is there.
        workloads: in order of appearance, with how often each runs.
        left_out: why measurements are not used, with how many there are.
    """

    options: Mapping[str, Mapping[str, Sequence[Option]]]
    workloads: Mapping[str, float]
    left_out: Mapping[str, int]

    @classmethod
    def of(cls, report: Report, weights: Mapping[str, float]) -> Field:
        """From a report's measurements without flags; ``weights`` are 1 where none is given.

        Raises:
            InputError: none is without flags, they are of several GPU models, a workload of
                ``weights`` is not among them, or one name stands for several workloads.
        """
        rows = report.measurements
        check_one_model(report)
        _check_names(rows)
        usable = [m for m in rows if not _why_not(m)]
        left_out = Counter(why for m in rows if (why := _why_not(m)))
        if not usable:
            why = ", ".join(f"{count} {words}" for words, count in left_out.items())
            raise InputError(
                f"None of the {len(rows)} measurements can be used ({why or 'there are none'}): "
                "advice needs clean figures."
            )
        names = dict.fromkeys(m.workload.name for m in usable)
        if unknown := [name for name in weights if name not in names]:
            raise InputError(
                f"--weights names {unknown[0]!r}, of which there is no clean measurement: there "
                f"are {listed(list(names))}."
            )
        workloads = {name: weights.get(name, 1.0) for name in names}
        options: dict[str, dict[str, list[Option]]] = {name: {} for name in setpoints(usable)}
        for m in usable:
            name = m.workload.name
            options[m.cap].setdefault(name, []).append(Option(m, workloads[name]))
        return cls(options, workloads, left_out)

    def only(self, workload: str) -> Field:
        """The field of one workload alone, which runs once."""
        options = {
            setpoint: {workload: [Option(one.row) for one in found[workload]]}
            for setpoint, found in self.options.items()
            if workload in found
        }
        return Field(options, {workload: 1.0}, {})

    @property
    def complete(self) -> list[str]:
        """The setpoints at which every workload has an option, in order."""
        return [name for name in self.options if not self.missing(name)]

    def missing(self, setpoint: str) -> list[str]:
        """The workloads that have no option at a setpoint."""
        return [name for name in self.workloads if name not in self.options[setpoint]]

    def row(self, setpoint: str) -> Measurement:
        """One of the measurements at a setpoint."""
        return next(iter(self.options[setpoint].values()))[0].row

    def layers(self, setpoint: str) -> list[Sequence[Option]]:
        """The options of each workload at a complete setpoint."""
        return [self.options[setpoint][name] for name in self.workloads]

    def baseline(self, asked: str | None = None) -> str | None:
        """The complete setpoint that others are compared with; None if there is none.

        The one that ``asked`` names, otherwise one without a lock before one with, the limit as it
        was before one that was set, and then the highest.

        Raises:
            InputError: ``asked`` names no complete setpoint.
        """
        known = self.complete
        if asked is not None and known:
            by_label = {name.casefold(): name for name in known}
            if (found := by_label.get(asked.strip().casefold())) is None:
                raise InputError(
                    f"--baseline {asked[:40]!r} is no setpoint at which all workloads were "
                    f"measured: choose one of {', '.join(known)}."
                )
            return found

        def standing(name: str) -> tuple[object, ...]:
            m = self.row(name)
            return (m.sm_clock_mhz is None, m.power_limit_w is None, setpoint_order(m))

        return max(known, key=standing, default=None)

    @property
    def boards(self) -> list[str]:
        """The cards that were measured, where they are known."""
        rows = (
            option.row
            for found in self.options.values()
            for options in found.values()
            for option in options
        )
        return list(dict.fromkeys(m.gpu_uuid for m in rows if m.gpu_uuid))


def check_one_model(report: Report) -> None:
    """Check that all measurements are of one GPU model.

    Raises:
        InputError: they are not.
    """
    if len(names := models(report)) > 1:
        raise InputError(
            f"The measurements are of several GPU models ({', '.join(names)}), and what is best "
            "for one is not for another: choose one with --gpu."
        )


def models(report: Report) -> dict[str, set[str | None]]:
    """The GPU models that were measured, each with its boards."""
    titles = {
        one.gpu_uuid: _title(one.gpu_name, one.emulated)
        for one in (report.run.station, *report.stations)
    }
    own = _title(report.run.gpu_name, report.run.emulated)
    found: dict[str, set[str | None]] = {}
    for m in report.measurements:
        found.setdefault(titles.get(m.gpu_uuid or "", own), set()).add(m.gpu_uuid)
    return found


def listed(names: Sequence[str]) -> str:
    """The names with commas; of many, the first few and how many more."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def _title(gpu_name: str, emulated: bool) -> str:
    return f"{gpu_name} (emulated)" if emulated else gpu_name


def _why_not(m: Measurement) -> str:
    """Why a measurement cannot be used; empty if it can."""
    if not m.measured:
        return "only verified" if m.verified_only else "failed"
    if m.validity:
        return f"flagged {m.validity[0]}"
    return "" if m.time_ms and m.energy_mj else "without energy"


def _check_names(rows: Sequence[Measurement]) -> None:
    known: dict[str, tuple[object, ...]] = {}
    for m in rows:
        work = (m.workload.parameters, m.workload.flops)
        if known.setdefault(m.workload.name, work) != work:
            raise InputError(
                f"{m.workload.name} has other parameters in {m.node_id} than elsewhere in these "
                "runs, so it is not one workload: name runs of the same."
            )
