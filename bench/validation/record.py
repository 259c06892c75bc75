"""The results of a validation run, in a file that grows kernel by kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.support import InputError, write_atomically

KIND = "gpuenergy-validation"
VERSION = 1
OURS = "gpuenergy"


@dataclass(frozen=True)
class Span:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Attempt:
    """One protocol's result for one launch.

    Attributes:
        protocol: its name.
        energy_mj: of one launch.
        time_ms: of one launch.
        seconds: duration of the attempt, on the device's clock.
        intervals: 95 % intervals of the metrics that have one; EDP's in mJ ms.
        phases_s: wall time of the phases of our protocol.
        busy: fraction of the window in which the GPU was busy; None if the protocol cannot tell.
        temperature_c: of the GPU when the window began.
        validity: flags of our protocol.
        scatter: standard deviation of our protocol's trials, as a fraction.
    """

    protocol: str
    energy_mj: float
    time_ms: float
    seconds: float
    intervals: Mapping[Metric, Span] | None = None
    phases_s: Mapping[str, float] | None = None
    busy: float | None = None
    temperature_c: int | None = None
    validity: tuple[str, ...] = ()
    scatter: Mapping[Metric, float] | None = None


@dataclass(frozen=True)
class Part:
    """Uninterrupted steady running of a newly loaded kernel."""

    energy_mj: float
    time_ms: float


@dataclass(frozen=True)
class Reference:
    """Steady running before and after the repeats.

    Attributes:
        energy_mj: of one launch, over both stretches.
        time_ms: of one launch, likewise.
        power_w: likewise.
        seconds: of both stretches together.
        change: of the energy from the first stretch to the second, as a fraction.
        temperatures_c: at the end of each part.
        parts: of both stretches; empty in files written before parts were kept.
    """

    energy_mj: float
    time_ms: float
    power_w: float
    seconds: float
    change: float
    temperatures_c: tuple[int | None, ...]
    parts: tuple[Part, ...] = ()

    def figure(self, metric: Metric) -> float:
        """The reference value of a metric."""
        figures: dict[Metric, float] = {
            "time": self.time_ms,
            "energy": self.energy_mj,
            "edp": self.energy_mj * self.time_ms,
        }
        return figures[metric]


@dataclass(frozen=True)
class Validated:
    """One kernel: every protocol once, and repeats of ours between stretches of the reference."""

    name: str
    kernel: str
    reference: Reference
    attempts: tuple[Attempt, ...]
    repeats: tuple[Attempt, ...] = ()

    @property
    def ours(self) -> Attempt:
        """Our protocol's attempt."""
        return next(one for one in self.attempts if one.protocol == OURS)

    def error(self, attempt: Attempt, metric: Metric) -> float:
        """Error of an attempt relative to the reference, as a fraction."""
        figures: dict[Metric, float] = {
            "time": attempt.time_ms,
            "energy": attempt.energy_mj,
            "edp": attempt.energy_mj * attempt.time_ms,
        }
        return figures[metric] / self.reference.figure(metric) - 1

    def covered(self, metric: Metric) -> int:
        """How many of the repeats' intervals contain the reference."""
        truth = self.reference.figure(metric)
        spans = [one.intervals[metric] for one in self.repeats if one.intervals]
        return sum(span.low <= truth <= span.high for span in spans)


@dataclass(frozen=True)
class Validation:
    """A run of the bench; ``run`` describes the GPU and the software."""

    run: Mapping[str, Any]
    kernels: tuple[Validated, ...] = ()

    def with_kernel(self, validated: Validated) -> Validation:
        """The results with one more kernel, which replaces its earlier results."""
        others = [one for one in self.kernels if one.name != validated.name]
        return replace(self, kernels=(*others, validated))

    def write(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            InputError: it cannot be written.
        """
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}).") from None


def read_validation(path: Path) -> Validation:
    """Read what `Validation.write` has written.

    Raises:
        InputError: the file cannot be read or is something else.
    """
    try:
        data = json.loads(path.read_text())
        if data["kind"] != KIND or data["version"] != VERSION:
            raise ValueError
        return Validation(data["run"], tuple(map(_validated, data["kernels"])))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path} was not written by --validation-json of pytest bench/validation."
        ) from None


def _validated(data: dict[str, Any]) -> Validated:
    reference = data["reference"]
    parts = tuple(Part(**part) for part in reference.get("parts", ()))
    return Validated(
        data["name"],
        data["kernel"],
        Reference(
            **{
                **reference,
                "temperatures_c": tuple(reference["temperatures_c"]),
                "parts": parts,
            }
        ),
        tuple(map(_attempt, data["attempts"])),
        tuple(map(_attempt, data["repeats"])),
    )


def _attempt(data: dict[str, Any]) -> Attempt:
    spans = data["intervals"]
    intervals = {metric: Span(**spans[metric]) for metric in METRICS} if spans else None
    return Attempt(**{**data, "intervals": intervals, "validity": tuple(data["validity"])})
