"""How the trials of a search ended, as ``gpuenergy tune`` writes it: data, never code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_gpuenergy.support.errors import InputError, Outcome
from pytest_gpuenergy.support.json_input import (
    FormError,
    parse,
    positive,
    read_unpacked,
    shown,
    typed,
)

IDENTITY_FILE = "search.json"
TRIALS_FILE = "trials.jsonl"

_LARGEST_BYTES = 256 << 20

TrialOutcome = Outcome | Literal["timed"]
"""How a trial ended: ``timed``, which says nothing yet of its results, or a kernel's fault."""


@dataclass(frozen=True)
class Trial:
    """One candidate of a search.

    Attributes:
        index: its place in the search, from 0.
        outcome: how it ended.
        time_ms: of one launch; None when it failed.
        message: why it failed.
        digest: of its kernel; None when there is none.
        elapsed_s: since the search it is of began.
        power_w: mean while it ran, if that was measured.
        energy_mj: of one launch, if that was measured.
    """

    index: int
    outcome: TrialOutcome
    time_ms: float | None = None
    message: str | None = None
    digest: str | None = None
    elapsed_s: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None

    @property
    def good(self) -> bool:
        """Whether it ran and nothing is known against it."""
        return self.outcome == "timed"


def read_trials(path: Path) -> list[Trial]:
    """Every trial of ``trials.jsonl`` by the last line about it; half a line at the end is none.

    The file may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: it cannot be read, or is damaged.
    """
    trials: list[Trial] = []
    content = read_unpacked(path, "list of trials", _LARGEST_BYTES)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            trial = _trial(parse(line))
            if not 0 <= trial.index <= len(trials):
                raise FormError("its index is out of order")
        except FormError as error:
            raise InputError(
                f"Line {number} of {path} cannot be used, because {error}: restore the file, or "
                "name another folder."
            ) from None
        trials[trial.index : trial.index + 1] = [trial]
    return trials


def _trial(value: object) -> Trial:
    # Older searches wrote null for what there is none of.
    parts = {name: part for name, part in typed(value, dict, "it").items() if part is not None}
    if not {"index", "outcome"} <= set(parts) <= set(_CHECKS):
        raise FormError("it is no trial")
    checked: Any = {name: _CHECKS[name](part, repr(name)) for name, part in parts.items()}
    trial = Trial(**checked)
    if trial.good and trial.time_ms is None:
        raise FormError("'time_ms' is missing")
    return trial


def _outcome(value: object, what: str) -> object:
    known = ("timed", *get_args(Outcome))
    if value not in known:
        raise FormError(f"{what} is {shown(value)} instead of one of {', '.join(known)}")
    return value


def _amount(value: object, what: str) -> float:
    """A number that may be zero, as the power is where a counter has not moved."""
    return 0.0 if type(value) in (int, float) and value == 0 else positive(value, what)


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "index": lambda value, what: typed(value, int, what),
    "outcome": _outcome,
    "time_ms": positive,
    "message": lambda value, what: typed(value, str, what),
    "digest": lambda value, what: typed(value, str, what),
    "elapsed_s": _amount,
    "power_w": _amount,
    "energy_mj": _amount,
}
