"""What a long bench does step by step: kept in one JSON file, continued later, stopped in time."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.support.files import write_atomically

SCHEMA_VERSION = 1
Result = dict[str, Any]


class Budget:
    """Wall time that is left, in s.

    Args:
        seconds: in all, from now on; None for no end.
        now_s: a monotonic clock.
    """

    def __init__(self, seconds: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._end_s = None if seconds is None else now_s() + seconds
        self._now_s = now_s

    @property
    def left_s(self) -> float:
        """Infinite without an end, never negative."""
        return float("inf") if self._end_s is None else max(0.0, self._end_s - self._now_s())


@dataclass(frozen=True)
class Step:
    """Something to do once.

    Attributes:
        key: its name in the file.
        action: does it and returns what to keep; a result whose ``complete`` is False is kept, and
            the step is done again when the bench is resumed.
        least_s: it is not begun with less time left.
        spoils: the step that has to be done again after this one.
    """

    key: str
    action: Callable[[], Result]
    least_s: float
    spoils: str | None = None


class ResultFile:
    """The results of a bench by step, on disk after every one of them.

    Args:
        path: the file.
        bench: the bench's name.
        settings: what makes results comparable; a file that is continued must have the same. Lists,
            such as of cases, are what has been asked for so far, and grow.
        about: other things worth knowing, such as versions.
        resume: continue the file if there is one, rather than refuse it.

    Raises:
        InputError: the file is there and is not to be resumed, or is not one of this bench with
            these settings.
    """

    def __init__(
        self, path: Path, bench: str, settings: Result, about: Result, *, resume: bool
    ) -> None:
        self.path = path
        if path.exists() and not resume:
            raise InputError(f"{path} is there already: go on with --resume, or name another.")
        # By way of JSON, so that what is in memory compares with what is on disk.
        settings = json.loads(json.dumps(settings))
        if path.exists():
            self.content = load_results(path, bench)
            found = self.settings
            for name, value in settings.items():
                if isinstance(value, list):
                    found[name] += [word for word in value if word not in found[name]]
                elif found.get(name) != value:
                    raise InputError(
                        f"{path} was made with {name} {found.get(name)!r} instead of {value!r}: "
                        "give it the same settings, or name another file."
                    )
        else:
            self.content = {
                "schema_version": SCHEMA_VERSION,
                "bench": bench,
                "settings": settings,
                "about": about,
                "results": {},
            }

    @property
    def settings(self) -> Result:
        """Those of all runs of this file."""
        found: Result = self.content["settings"]
        return found

    @property
    def results(self) -> dict[str, Result]:
        """By step."""
        found: dict[str, Result] = self.content["results"]
        return found

    def is_done(self, step: Step) -> bool:
        """Whether ``step`` need not be done again."""
        return bool(self.results.get(step.key, {}).get("complete"))

    def keep(self, step: Step, result: Result) -> None:
        """Put a result on disk.

        Raises:
            InputError: the file cannot be written.
        """
        self.results[step.key] = {"complete": True, **result}
        if step.spoils is not None:
            self.results.pop(step.spoils, None)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps(self.content, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}.") from None


def load_results(path: Path, bench: str) -> Result:
    """The content of a result file of ``bench``.

    Raises:
        InputError: it is missing or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: run the bench first.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): name another file.") from None
    known = isinstance(content, dict) and content.get("schema_version") == SCHEMA_VERSION
    if not known or content.get("bench") != bench:
        raise InputError(f"{path} is no result of {bench}: name another file.")
    return dict(content)


def do_steps(steps: Iterable[Step], file: ResultFile, budget: Budget) -> bool:
    """Do what is not done yet, one after the other; whether all of it is done now.

    A step that fails is kept with its error, and the next one is begun.
    """
    complete = True
    for step in steps:
        if file.is_done(step):
            continue
        if budget.left_s < step.least_s:
            tell(f"{step.key}: the time is up; go on with --resume")
            return False
        tell(f"{step.key}: begins, {budget.left_s:.0f} s left")
        with _told(step.key) as problem:
            file.keep(step, step.action())
        if problem:
            file.keep(step, {"complete": False, "error": problem[0]})
        complete = complete and file.is_done(step)
    return complete


def tell(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _told(key: str) -> Iterator[list[str]]:
    """What goes wrong, as a sentence; the list stays empty when nothing does."""
    problems: list[str] = []
    try:
        yield problems
    except GpuEnergyError as error:
        problems.append(str(error))
        tell(f"{key}: failed: {error}")
