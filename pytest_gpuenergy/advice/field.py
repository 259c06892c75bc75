"""The field to choose from: clean measurements by setpoint and workload, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.advice.plans import PlanOption
from pytest_gpuenergy.record import WIDE_FLAGS, Measurement, setpoint_order, setpoints, split_mode
from pytest_gpuenergy.report import Report, Subjects, by_model
from pytest_gpuenergy.support import InputError, emulated_mark

_NAMED = 5
_VARIANT_PARAMETERS = ("mode", "layout", "dtype")
"""The parameters in which a convolution may differ from another one of the same sizes."""


@dataclass(frozen=True)
class Field:
    """The options of each workload at each setpoint.

    Attributes:
        options: the options by setpoint and workload, at least one for each.
        workloads: the workloads in order of appearance, with how often each runs.
        left_out: the reasons why measurements are not used, with the number of each.
        gpu_name: the GPU model of all measurements.
        emulated: whether the GPU is emulated.
        shared: names that stand for several workloads, which are told apart (`Subjects`).
    """

    options: Mapping[str, Mapping[str, Sequence[PlanOption]]]
    workloads: Mapping[str, float]
    left_out: Mapping[str, int]
    gpu_name: str
    emulated: bool
    shared: Sequence[str] = ()

    @classmethod
    def of(cls, report: Report, weights: Mapping[str, float]) -> Field:
        """Make the field of a report's measurements without flags; absent ``weights`` are 1.

        Raises:
            InputError: none is without flags, they are of several GPU models, or a workload of
                ``weights`` is not among them.
        """
        model = single_model(report)
        subjects = Subjects(report.measurements)
        rows = [
            replace(m, workload=replace(m.workload, name=subjects.name(m)))
            for m in report.measurements
        ]
        usable = [m for m in rows if is_usable(m)]
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
        options: dict[str, dict[str, list[PlanOption]]] = {name: {} for name in setpoints(usable)}
        for m in usable:
            name = m.workload.name
            options[m.cap].setdefault(name, []).append(PlanOption(m, workloads[name]))
        return cls(options, workloads, left_out, model.gpu_name, model.emulated, subjects.shared)

    def only(self, workload: str) -> Field:
        """Return the field of one workload alone, which runs once."""
        options = {
            setpoint: {workload: [PlanOption(one.row) for one in by_workload[workload]]}
            for setpoint, by_workload in self.options.items()
            if workload in by_workload
        }
        return Field(options, {workload: 1.0}, {}, self.gpu_name, self.emulated)

    @property
    def complete(self) -> list[str]:
        """The setpoints at which every workload has an option, in order."""
        return [name for name in self.options if not self.missing(name)]

    def missing(self, setpoint: str) -> list[str]:
        """Return the workloads that have no option at a setpoint."""
        return [name for name in self.workloads if name not in self.options[setpoint]]

    def row(self, setpoint: str) -> Measurement:
        """Return one of the measurements at a setpoint."""
        return next(iter(self.options[setpoint].values()))[0].row

    def layers(self, setpoint: str) -> list[Sequence[PlanOption]]:
        """Return the options of each workload at a complete setpoint."""
        return [self.options[setpoint][name] for name in self.workloads]

    def baseline(self, asked: str | None = None) -> str | None:
        """Return the complete setpoint that others are compared with; None if there is none.

        It is the one that ``asked`` names. Without it, a setpoint without a locked clock is
        preferred to one with, then the card's own limit to one that was set, then a higher limit to
        a lower one.

        Raises:
            InputError: ``asked`` names no complete setpoint.
        """
        known = self.complete
        if asked is not None and known:
            by_label = {name.casefold(): name for name in known}
            if (label := by_label.get(asked.strip().casefold())) is None:
                raise InputError(
                    f"--baseline {asked[:40]!r} is no setpoint at which all workloads were "
                    f"measured: choose one of {', '.join(known)}."
                )
            return label

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


class Model(NamedTuple):
    """A GPU model; an emulated one is another than the real one."""

    gpu_name: str
    emulated: bool

    @property
    def title(self) -> str:
        """The name, with ``(emulated)`` where it is."""
        return f"{self.gpu_name}{emulated_mark(self.emulated)}"


def measured_names(measurements: Sequence[Measurement]) -> set[str]:
    """Return the names of workloads with clean figures, also those that they have in every mode."""
    usable = [m.workload for m in measurements if is_usable(m)]
    return {name for w in usable for name in (w.name, split_mode(w.name, w.parameters)[0])}


def named_after(
    measurements: Sequence[Measurement], layers: Mapping[str, Mapping[str, object]]
) -> list[Measurement]:
    """Rename measurements so that a layer without any has those of a convolution of equal sizes.

    Equal sizes mean the same work under another name, in every mode and layout.

    Args:
        measurements: the measurements.
        layers: the parameters of the layers that are wanted, by their names.
    """
    plain = [split_mode(m.workload.name, m.workload.parameters)[0] for m in measurements]
    measured = {name for name, m in zip(plain, measurements, strict=True) if is_usable(m)}
    found = []
    for name, m in zip(plain, measurements, strict=True):
        equals = [
            layer
            for layer, parameters in layers.items()
            if layer not in measured and (sizes := _sizes(parameters))
            if sizes == _sizes(m.workload.parameters)
        ]
        if name in layers or not equals:
            found.append(m)
        for layer in equals if name not in equals else ():
            renamed = m.workload.name.replace(name, layer, 1)
            found.append(replace(m, workload=replace(m.workload, name=renamed)))
    return found


def _sizes(parameters: Mapping[str, object]) -> dict[str, object] | None:
    """Return what convolutions of the same sizes have in common; None for another kind."""
    if parameters.get("kind") != "conv2d":
        return None
    return {name: value for name, value in parameters.items() if name not in _VARIANT_PARAMETERS}


def select_model(reports: Sequence[Report], name: str) -> list[Report]:
    """Return the parts of reports that are of the GPU model whose name contains ``name``.

    Raises:
        InputError: none or several are called so.
    """
    parts = _parts(reports)
    wanted = name.strip().casefold()
    exact = [
        model for model in parts if wanted in (model.title.casefold(), model.gpu_name.casefold())
    ]
    matches = exact or [model for model in parts if wanted in model.title.casefold()]
    if not wanted or len(matches) != 1:
        raise InputError(
            f"--gpu {name[:40]!r} names {len(matches)} of the GPU models that were measured: "
            f"choose one of {', '.join(model.title for model in parts)}."
        )
    return parts[matches[0]]


def single_model(*reports: Report) -> Model:
    """Return the GPU model of all measurements.

    Raises:
        InputError: they are of several.
    """
    known = _parts(reports)
    if len(known) > 1:
        names = ", ".join(model.title for model in known)
        raise InputError(
            f"The measurements are of several GPU models ({names}), and what is best for one is "
            "not for another: choose one with --gpu."
        )
    return next(iter(known))


def _parts(reports: Sequence[Report]) -> dict[Model, list[Report]]:
    """Return the GPU models of reports, each with what they have of it."""
    by_gpu: dict[Model, list[Report]] = {}
    for part in (part for report in reports for part in by_model(report) or [report]):
        by_gpu.setdefault(Model(part.run.gpu_name, part.run.emulated), []).append(part)
    return by_gpu


def listed(names: Sequence[str]) -> str:
    """Return the names with commas; of many, the first few and how many more."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def is_usable(m: Measurement) -> bool:
    """Return whether a measurement has clean figures; how wide their intervals are does not matter.

    Advice has intervals too, which follow from these.
    """
    return not _why_not(m)


def _why_not(m: Measurement) -> str:
    """Why a measurement cannot be used; empty if it can."""
    if not m.measured:
        return "only verified" if m.verified_only else "failed"
    if doubts := [flag for flag in m.validity if flag not in WIDE_FLAGS]:
        return f"flagged {doubts[0]}"
    return "" if m.time_ms and m.energy_mj else "without energy"
