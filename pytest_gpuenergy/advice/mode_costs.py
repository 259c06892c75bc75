"""The cost of successive workloads in each mode, and the saving of an exact mode.

A mode decides how large the errors of a result may be, so modes are compared, never mixed. One
exception has the same bound: where ``3xtf32`` is accepted beside ``float32``, each workload has the
better of both. A network has one layout, because converting between two takes longer than a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.advice.advice import Goal, PlanChange, Setting, changes, setting_at
from pytest_gpuenergy.advice.field import Field, is_usable, listed
from pytest_gpuenergy.advice.plans import cost_figure
from pytest_gpuenergy.record import AS_EXACT, MODES, Measurement, Metric, split_mode
from pytest_gpuenergy.report import Report, arithmetic
from pytest_gpuenergy.support import InputError

CUDNN = "cuDNN"
"""The library whose kernels are compared with all others, and not among them."""
_EXACT = MODES[0]
_ANY_MODE = ""
"""The mode of workloads of other kinds, which are the same in all modes."""


class ModeKey(NamedTuple):
    """A mode, a layout of convolutions other than NCHW, and a library if its kernels are meant."""

    mode: str
    layout: str = ""
    library: str = ""

    @property
    def title(self) -> str:
        """Such as ``tf32 nhwc`` or ``cuDNN float32``."""
        return " ".join(filter(None, (self.library, self.mode, self.layout)))

    @property
    def is_exact(self) -> bool:
        """Whether its error bound is that of float32."""
        return AS_EXACT.get(self.mode, self.mode) == _EXACT

    @property
    def order(self) -> tuple[object, ...]:
        """Its place in a table: libraries last, then by mode."""
        place = MODES.index(self.mode) if self.mode in MODES else len(MODES)
        return self.library, place, self.layout


@dataclass(frozen=True)
class Acceptance:
    """The modes that a user accepts.

    Attributes:
        modes: their names; None: those with the bound of float32 unless ``error`` is given,
            otherwise all.
        error: the largest bound of relative errors that is accepted; None: any.
    """

    modes: tuple[str, ...] | None = None
    error: float | None = None

    def refusal(self, key: ModeKey, bound: float | None) -> str:
        """Return why a mode is not accepted; empty if it is.

        Args:
            key: the mode.
            bound: the largest error bound of its measurements; None if one does not tell it.
        """
        if self.modes is not None and key.mode not in self.modes:
            return "not among --modes"
        if self.modes is None and self.error is None and not key.is_exact:
            return "its errors may be larger than those of float32"
        if self.error is not None and (bound is None or bound > self.error):
            return "its error bound is unknown" if bound is None else f"its bound is {bound:.2g}"
        return ""


@dataclass(frozen=True)
class ModeCost:
    """The cost of all workloads in one mode.

    Attributes:
        key: the mode.
        report: the measurements, under the names that the workloads have in every mode.
        missing: the workloads without a clean measurement at the common setpoint.
        bound: the largest error bound of its measurements; None if one does not tell it.
        setting: the best kernels at the common setpoint; None if workloads are missing.
        borrowed: the workloads whose best kernel is of another mode that is as exact.
    """

    key: ModeKey
    report: Report
    missing: tuple[str, ...]
    bound: float | None
    setting: Setting | None
    borrowed: tuple[str, ...]


@dataclass(frozen=True)
class ModeCosts:
    """A comparison of modes at one setpoint.

    Attributes:
        setpoint: the common setpoint; empty if no mode has all workloads.
        rows: the accepted modes, then those of cuDNN, in order.
        refused: other modes of the report, with the reason.
        best: the accepted mode that is best by the goal; None if none has all workloads.
        reference: the mode that the changes are relative to.
        changes: the changes of time, energy and EDP of each row that has all workloads.
        exact: the best accepted mode with the bound of float32, if any has all workloads.
        rival: cuDNN in float32, in its better layout, if all workloads were measured with it.
        saving: the changes from ``rival`` to ``exact``; None if either is missing.
        images: the images that all workloads process in one run; None if that is not one number.
    """

    setpoint: str
    rows: tuple[ModeCost, ...]
    refused: Mapping[str, str]
    best: ModeCost | None
    reference: ModeCost | None
    changes: Mapping[ModeKey, Mapping[Metric, PlanChange]]
    exact: ModeCost | None
    rival: ModeCost | None
    saving: Mapping[Metric, PlanChange] | None
    images: int | None

    @property
    def sentences(self) -> Iterator[str]:
        """Sentences about what is not compared."""
        for row in self.rows:
            if row.missing:
                yield f"{row.key.title} lacks {listed(row.missing)}, and has no sums"
        if self.refused:
            by_reason: dict[str, list[str]] = {}
            for name, reason in self.refused.items():
                by_reason.setdefault(reason, []).append(name)
            parts = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
            yield f"modes that are not accepted: {'; '.join(parts)}"


def has_modes(measurements: Sequence[Measurement]) -> bool:
    """Return whether a workload was measured in several modes or layouts."""
    found: dict[str, set[tuple[str, str]]] = {}
    for m in measurements:
        name, mode, layout = split_mode(m.workload.name, m.workload.parameters)
        found.setdefault(name, set()).add((_mode_of(m, mode), layout))
    return any(len(variants) > 1 for variants in found.values())


def compare_modes(
    report: Report,
    accepted: Acceptance,
    goal: Goal,
    *,
    weights: Mapping[str, float],
    baseline: str | None = None,
) -> ModeCosts:
    """Return what the workloads of a report cost in each mode, at one setpoint.

    Args:
        report: measurements of one GPU model.
        accepted: the modes that may be advised.
        goal: the metric to minimize, and the allowed slowdown.
        weights: how often a workload runs, by its name in every mode; once where it is not named.
        baseline: the label of the setpoint; None: see `Field.baseline`.

    Raises:
        InputError: no accepted mode was measured, a workload of ``weights`` was not, or
            ``baseline`` is no setpoint at which a mode has all workloads.
    """
    groups = _groups(report.measurements)
    bounds = {key: _bound(rows) for key, rows in groups.items()}
    reasons = {key: accepted.refusal(key, bounds[key]) for key in groups}
    kept = {
        key: rows
        for key, rows in groups.items()
        if not reasons[key] or key == ModeKey(_EXACT, key.layout, CUDNN)
    }
    ours = [key for key in kept if not key.library]
    if not ours:
        names = listed([f"{key.title} ({reason})" for key, reason in reasons.items()])
        raise InputError(
            f"No accepted mode was measured, only {names or 'nothing'}: name modes with --modes."
        )
    own = {key: {m.node_id for m in rows} for key, rows in kept.items()}
    _mix_exact(kept)
    candidates = [m for key in ours for m in kept[key]]
    clean = [m for m in candidates if is_usable(m)]
    layers = list(dict.fromkeys(m.workload.name for m in clean or candidates))
    if unknown := [name for name in weights if name not in layers]:
        raise InputError(
            f"--weights names {unknown[0]!r}, of which there is no clean measurement: there "
            f"are {listed(layers)}."
        )
    fields = {key: _field(report, rows, weights) for key, rows in kept.items()}
    setpoint = _setpoint(fields, layers, baseline)
    rows = [
        _row(
            key,
            replace(report, measurements=tuple(kept[key])),
            field,
            layers,
            setpoint,
            goal,
            own[key],
        )
        for key, field in fields.items()
    ]
    return _compared(rows, setpoint, goal, {k.title: why for k, why in reasons.items() if why})


def _groups(measurements: Sequence[Measurement]) -> dict[ModeKey, list[Measurement]]:
    """Return the measurements of each mode, under the names that workloads have in every mode.

    The kernels of cuDNN have groups of their own if there are others.
    """
    cudnn_ids = {m.node_id for m in measurements if _is_cudnn_ids(m)}
    has_others = any(
        m.node_id not in cudnn_ids and split_mode(m.workload.name, m.workload.parameters)[1]
        for m in measurements
    )
    groups: dict[ModeKey, list[Measurement]] = {}
    everywhere = []
    for m in measurements:
        name, mode, layout = split_mode(m.workload.name, m.workload.parameters)
        if mode == _ANY_MODE:
            everywhere.append(m)
            continue
        mode = _mode_of(m, mode)
        library = CUDNN if has_others and m.node_id in cudnn_ids else ""
        rest = {key: value for key, value in m.workload.parameters.items() if key != "mode"}
        renamed = replace(m, workload=replace(m.workload, name=name, parameters=rest))
        groups.setdefault(ModeKey(mode, layout, library), []).append(renamed)
    return {key: groups[key] + everywhere for key in sorted(groups, key=lambda key: key.order)}


def _mode_of(m: Measurement, mode: str) -> str:
    """Return the mode whose error bound a kernel was verified with; it may be looser."""
    return (arithmetic(m) or mode) if mode != _ANY_MODE else mode


def _is_cudnn_ids(m: Measurement) -> bool:
    return m.kernel.label.casefold().startswith(CUDNN.casefold())


def _mix_exact(kept: dict[ModeKey, list[Measurement]]) -> None:
    """Add the kernels of float32 to those of modes that are as exact, and mark which is which."""
    for key, rows in kept.items():
        if (other := AS_EXACT.get(key.mode)) is None or key.library:
            continue
        plain = kept.get(ModeKey(other, key.layout), [])
        kept[key] = [
            replace(m, kernel=replace(m.kernel, label=f"{m.kernel.label} ({mode})"))
            for mode, some in ((key.mode, rows), (other, plain))
            for m in some
        ]


def _bound(rows: Sequence[Measurement]) -> float | None:
    bounds = [
        None if m.correctness is None else m.correctness.max_relative_bound
        for m in rows
        if is_usable(m)
    ]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def _field(
    report: Report, rows: Sequence[Measurement], weights: Mapping[str, float]
) -> Field | None:
    usable = {m.workload.name for m in rows if is_usable(m)}
    if not usable:
        return None
    known = {name: times for name, times in weights.items() if name in usable}
    return Field.of(replace(report, measurements=tuple(rows)), known)


def _setpoint(
    fields: Mapping[ModeKey, Field | None], layers: Sequence[str], baseline: str | None
) -> str:
    """Return the setpoint at which most modes have all workloads, the usual baseline of several."""
    able = [
        {name for name in field.options if set(layers) <= field.options[name].keys()}
        for field in fields.values()
        if field is not None
    ]
    counts = {
        name: sum(name in mode_names for mode_names in able)
        for mode_names in able
        for name in mode_names
    }
    if not counts:
        return ""
    most = counts if baseline is not None else _most(counts)
    for field in fields.values():
        if field is None:
            continue
        options = {
            name: found
            for name, found in field.options.items()
            if name in most and set(layers) <= found.keys()
        }
        if options:
            label = Field(options, field.workloads, {}, field.gpu_name, field.emulated).baseline(
                baseline
            )
            assert label is not None
            return label
    raise AssertionError("a setpoint of `counts` is one of a field")


def _most(counts: Mapping[str, int]) -> set[str]:
    return {name for name, count in counts.items() if count == max(counts.values())}


def _row(
    key: ModeKey,
    report: Report,
    field: Field | None,
    layers: Sequence[str],
    setpoint: str,
    goal: Goal,
    own: Collection[str],
) -> ModeCost:
    options = {} if field is None else field.options
    # Without a common setpoint, that which lacks the fewest workloads.
    found = options.get(setpoint, {}) if setpoint else max(options.values(), key=len, default={})
    missing = tuple(name for name in layers if name not in found)
    setting = None if missing or field is None else setting_at(field, setpoint, goal)
    borrowed = tuple(
        option.row.workload.name
        for option in (() if setting is None else setting.plan)
        if option.row.node_id not in own
    )
    return ModeCost(key, report, missing, _bound(report.measurements), setting, borrowed)


def _compared(
    rows: Sequence[ModeCost], setpoint: str, goal: Goal, refused: Mapping[str, str]
) -> ModeCosts:
    def best(some: Sequence[ModeCost]) -> ModeCost | None:
        known = [(row, row.setting) for row in some if row.setting is not None]
        by_cost = [(cost_figure(setting.cost, goal.metric), row) for row, setting in known]
        return min(by_cost, key=lambda one: one[0])[1] if by_cost else None

    ours = [row for row in rows if not row.key.library]
    exact = best([row for row in ours if row.key.is_exact])
    rival = best([row for row in rows if row.key.library and row.key.mode == _EXACT])
    reference = next((row for row in rows if row.setting is not None), None)
    compared = {
        row.key: changes(reference.setting.candidate, row.setting.candidate)
        for row in rows
        if reference is not None and reference.setting is not None and row.setting is not None
    }
    saving = None
    if exact is not None and rival is not None:
        assert exact.setting is not None
        assert rival.setting is not None
        saving = changes(rival.setting.candidate, exact.setting.candidate)
    return ModeCosts(
        setpoint,
        tuple(rows),
        refused,
        best(ours),
        reference,
        compared,
        exact,
        rival,
        saving,
        _images(rows),
    )


def _images(rows: Sequence[ModeCost]) -> int | None:
    found = {
        m.workload.parameters.get("N") if m.workload.parameters.get("kind") == "conv2d" else None
        for row in rows
        for m in row.report.measurements
    }
    (number, *others) = found
    return number if not others and type(number) is int and number > 0 else None
