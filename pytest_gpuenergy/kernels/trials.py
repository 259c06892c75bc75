"""How the trials of a search ended, as ``gpuenergy tune`` writes it: data, never code."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pytest_gpuenergy.errors import InputError, Outcome
from pytest_gpuenergy.kernels.json_input import FormError, parse, read_unpacked

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


_NAMES = {field.name for field in fields(Trial)}


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
            value = parse(line)
            if type(value) is not dict or not set(value) <= _NAMES:
                raise FormError("it is no trial")
            trial = Trial(**value)
            if type(trial.index) is not int or not 0 <= trial.index <= len(trials):
                raise FormError("its index is out of order")
        except (FormError, TypeError) as error:
            raise InputError(
                f"Line {number} of {path} cannot be used, because {error}: restore the file, or "
                "name another folder."
            ) from None
        trials[trial.index : trial.index + 1] = [trial]
    return trials
