"""The trials of a search, as ``gpuenergy tune`` writes them: data, never code."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuenergy.engine import Evaluation
from pytest_gpuenergy.record import NotNegative
from pytest_gpuenergy.support import FormError, InputError, decode, read_unpacked

IDENTITY_FILE = "search.json"
TRIALS_FILE = "trials.jsonl"

_LARGEST_BYTES = 256 << 20


class Trial(Evaluation, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One candidate of a search, and what is known about it.

    Attributes:
        index: its place in the search, from 0.
        digest: of its kernel; None if there is no kernel.
        elapsed_s: time from the start of its search until its result was known.
    """

    index: int
    digest: str | None = None
    elapsed_s: NotNegative | None = None


def read_trials(path: Path) -> list[Trial]:
    """Every trial in ``trials.jsonl``, as of the last line about it.

    An incomplete last line is ignored. The file may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: it cannot be read, or is damaged.
    """
    trials: list[Trial] = []
    content = read_unpacked(path, "list of trials", _LARGEST_BYTES)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            trial = decode(line, Trial)
            if trial.good and trial.time_ms is None:
                raise FormError("time_ms is missing")
            if not 0 <= trial.index <= len(trials):
                raise FormError("its index is out of order")
        except FormError as error:
            raise InputError(
                f"Line {number} of {path} cannot be used, because {error}: restore the file, or "
                "name another folder."
            ) from None
        trials[trial.index : trial.index + 1] = [trial]
    return trials
