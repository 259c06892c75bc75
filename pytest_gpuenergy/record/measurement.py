"""The frozen record of one item, and its form in JSON."""

from __future__ import annotations

import functools
import reprlib
import sys
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpuenergy.energy.sensors import Conditions
from pytest_gpuenergy.energy.trials import Trial
from pytest_gpuenergy.engine.verification import Correctness
from pytest_gpuenergy.support.errors import Outcome, ReportInputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA_VERSION = 1
FIGURES = ("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")
PHASES = ("compile", "verify", "load", "heat", "measure")
_LARGEST = sys.float_info.max
_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkloadInfo:
    """Which workload was measured; ``flops`` and ``bytes_moved`` are of one run."""

    name: str
    parameters: dict[str, int | str]
    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class KernelInfo:
    """Which kernel was measured: its label in item ids, its content's hash, where it is from."""

    label: str
    digest: str
    origin: str
    rank: int | None = None
    details: dict[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Interval:
    """Ends of a 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Measurement:
    """One kernel of one workload on one device under one power cap.

    A kernel that failed has an ``outcome`` other than ``correct``, an ``error``, and no figures.
    ``power_limit_w`` is what was asked for (None: the card was left as it was),
    ``enforced_power_limit_w`` what the card enforced. ``cap_binding`` tells whether the limit held
    the kernel back; ``validity`` names what makes the figures doubtful. ``cache`` tells whether the
    buffers stayed in place from launch to launch (``hot``) or rotated through more than the L2
    (``cold``); ``gpu_uuid`` is the card, ``energy_source`` where its joules come from.
    ``warm_trials`` are of the end of the heat-up: they tell of the scatter that the intervals are
    made of, and are no part of a figure. All figures are of one launch: ms, mJ, W, GFLOP/s,
    GFLOP/s/W, mJ ms. ``wall_s`` is what the item took, and ``phases_s`` what each of `PHASES` took
    of it.
    """

    node_id: str
    workload: WorkloadInfo
    kernel: KernelInfo
    outcome: Outcome
    cap: str
    cap_index: int | None = None
    power_limit_w: float | None = None
    enforced_power_limit_w: float | None = None
    cache: str = "hot"
    gpu_uuid: str | None = None
    energy_source: str | None = None
    error: str | None = None
    time_ms: float | None = None
    time_ms_ci95: Interval | None = None
    energy_mj: float | None = None
    energy_mj_ci95: Interval | None = None
    edp_mj_ms: float | None = None
    edp_mj_ms_ci95: Interval | None = None
    power_w: float | None = None
    gflops: float | None = None
    gflops_per_w: float | None = None
    trials: tuple[Trial, ...] = ()
    warm_trials: tuple[Trial, ...] = ()
    correctness: Correctness | None = None
    start: Conditions | None = None
    begin: Conditions | None = None
    end: Conditions | None = None
    cap_binding: bool | None = None
    validity: tuple[str, ...] = ()
    started: str = ""
    wall_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether there are figures: all of them, or none."""
        return self.energy_mj is not None

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What makes it comparable between runs: workload, kernel label, cap, cache state."""
        return (self.workload.name, self.kernel.label, self.cap, self.cache)

    @property
    def scatter_count(self) -> int:
        """How many trials the intervals are Student's t over."""
        return len(self.warm_trials) + len(self.trials)

    def flagged(self, *flags: str) -> Measurement:
        """The same with these flags too."""
        return replace(self, validity=tuple(dict.fromkeys((*self.validity, *flags))))


@dataclass(frozen=True)
class RunInfo:
    """The identity of a run: where, on what, with which software and options.

    ``git_revision`` ends in ``-dirty`` when tracked files differed from the commit. ``legacy``
    tells that the figures were read from outputs of an older tool. ``cap_table_w`` has the GPU's
    power caps in W, lowest first, of which `Measurement.cap_index` counts from 1; it is empty when
    none of them was asked for.
    """

    run_id: str
    started: str
    host: str
    gpu_name: str
    gpu_uuid: str
    architecture: str
    emulated: bool
    power_limits_w: dict[str, float]
    software: dict[str, str]
    options: dict[str, str]
    git_revision: str | None = None
    legacy: bool = False
    cap_table_w: tuple[float, ...] = ()

    @property
    def short_revision(self) -> str | None:
        """The revision with twelve digits, for people."""
        if self.git_revision is None:
            return None
        commit, dash, rest = self.git_revision.partition("-")
        return f"{commit[:12]}{dash}{rest}"


NOT_NEGATIVE: Mapping[type, Collection[str]] = {
    Measurement: (
        *("time_ms", "energy_mj", "edp_mj_ms", "power_w"),
        *("power_limit_w", "enforced_power_limit_w"),
    ),
    Trial: ("joules", "busy_seconds"),
}
"""Fields that nothing can make negative: a report that says so is refused."""

ABOVE_ZERO: Mapping[type, Collection[str]] = {Trial: ("seconds", "launches")}
"""Fields that cannot be zero either."""


def to_json(record: DataclassInstance) -> dict[str, Any]:
    """Plain dictionaries, lists, strings, numbers and None."""
    return asdict(record)


def from_json(kind: type[_T], data: object) -> _T:
    """The dataclass ``kind`` from what `to_json` gave. Unknown fields are left out.

    Raises:
        ReportInputError: a field is missing, of the wrong type or an impossible number, some
            figures of a measurement are there and others are not, or one is not in its interval;
            the message names it.
    """
    record = _decode(kind, data, kind.__name__)
    if isinstance(record, Measurement):
        known = [name for name in FIGURES if getattr(record, name) is not None]
        if 0 < len(known) < len(FIGURES):
            missing = next(name for name in FIGURES if name not in known)
            raise ReportInputError(f"Measurement has {known[0]!r} and lacks {missing!r}.")
        _check_intervals(record)
    return typing.cast(_T, record)


def _check_intervals(m: Measurement) -> None:
    for name, value, ends in (
        ("time_ms", m.time_ms, m.time_ms_ci95),
        ("energy_mj", m.energy_mj, m.energy_mj_ci95),
        ("edp_mj_ms", m.edp_mj_ms, m.edp_mj_ms_ci95),
    ):
        if value is not None and ends is not None and not ends.low <= value <= ends.high:
            raise ReportInputError(
                f"Measurement.{name}_ci95 goes from {ends.low} to {ends.high}, which does not "
                f"hold the {name} of {value}."
            )


def _decode(kind: Any, data: object, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, data, where)
    if origin is typing.Literal:
        if data in arguments:
            return data
    elif is_dataclass(kind) and isinstance(kind, type):
        if isinstance(data, Mapping):
            return _decode_fields(kind, data, where)
    elif origin is tuple:
        if isinstance(data, list | tuple):
            return tuple(_decode(arguments[0], item, f"{where}[]") for item in data)
    elif origin is dict:
        if isinstance(data, Mapping) and all(isinstance(key, str) for key in data):
            return {
                key: _decode(arguments[1], item, f"{where}.{key}") for key, item in data.items()
            }
    elif kind is float:
        if type(data) in (int, float) and abs(number := typing.cast(float, data)) <= _LARGEST:
            return float(number)
    elif type(data) is kind:
        return data
    raise _misplaced(where, data)


def _misplaced(where: str, data: object) -> ReportInputError:
    # reprlib: what is nested too deeply, or endless, is cut short.
    return ReportInputError(f"{where} holds {reprlib.repr(data)}, which does not belong there.")


def _decode_union(arguments: tuple[Any, ...], data: object, where: str) -> Any:
    for argument in arguments:
        if argument is type(None):
            if data is None:
                return None
            continue
        try:
            return _decode(argument, data, where)
        except ReportInputError as error:
            problem = error
    raise problem


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode_fields(kind: type, data: Mapping[str, object], where: str) -> Any:
    hints = _hints(kind)
    values = {}
    for item in fields(kind):
        if item.name in data:
            inner = f"{where}.{item.name}"
            values[item.name] = value = _decode(hints[item.name], data[item.name], inner)
            if value is not None and not _is_possible(kind, item.name, value):
                raise _misplaced(inner, value)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise ReportInputError(f"{where} lacks the field {item.name!r}.")
    return kind(**values)


def _is_possible(kind: type, name: str, value: Any) -> bool:
    if name in ABOVE_ZERO.get(kind, ()):
        return bool(value > 0)
    return name not in NOT_NEGATIVE.get(kind, ()) or bool(value >= 0)
