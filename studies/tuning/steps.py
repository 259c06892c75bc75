"""The steps of a long bench: results kept in one JSON file, resumable, within a time budget."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import GpuEnergyError, InputError, write_atomically

SCHEMA_VERSION = 1
Result = dict[str, Any]


class Budget:
    """A budget of wall time.

    Args:
        seconds: total from now on; None: unlimited.
        now_s: a monotonic clock.
    """

    def __init__(self, seconds: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._end_s = None if seconds is None else now_s() + seconds
        self._now_s = now_s

    @property
    def left_s(self) -> float:
        """Seconds left: never negative, infinite if unlimited."""
        return float("inf") if self._end_s is None else max(0.0, self._end_s - self._now_s())


@dataclass(frozen=True)
class Step:
    """Something to do once.

    Attributes:
        key: its name in the file.
        action: does it and returns the result to keep; if its ``complete`` is False, the step is
            repeated when the bench is resumed.
        least_s: the step is not started with less time left.
        spoils: the step that must be repeated after this one.
    """

    key: str
    action: Callable[[], Result]
    least_s: float
    spoils: str | None = None


class ResultFile:
    """The results of a bench by step, written to disk after each step.

    Args:
        path: the file.
        bench: the bench's name.
        settings: what makes results comparable; must be the same when a file is continued, except
            that lists, such as the cases requested so far, may grow.
        about: other useful information, such as versions.
        resume: continue the file if it exists, rather than refuse it.

    Raises:
        InputError: the file exists and is not to be resumed, or is from another bench or has other
            settings.
    """

    def __init__(
        self, path: Path, bench: str, settings: Result, about: Result, *, resume: bool
    ) -> None:
        self.path = path
        if path.exists() and not resume:
            raise InputError(f"{path} already exists: continue it with --resume, or name another.")
        # Through JSON, so that values in memory compare equal to those on disk.
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
        """The settings of all runs of this file."""
        found: Result = self.content["settings"]
        return found

    @property
    def results(self) -> dict[str, Result]:
        """By step."""
        found: dict[str, Result] = self.content["results"]
        return found

    def is_done(self, step: Step) -> bool:
        """Whether ``step`` is done and need not be repeated."""
        return bool(self.results.get(step.key, {}).get("complete"))

    def keep(self, step: Step, result: Result) -> None:
        """Write a result to disk.

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
        raise InputError(f"{path} is not a result of {bench}: name another file.")
    return dict(content)


def do_steps(steps: Iterable[Step], file: ResultFile, budget: Budget) -> bool:
    """Do the remaining steps one after another; return whether all are done now.

    If a step fails, its error is kept and the next step is started.
    """
    complete = True
    for step in steps:
        if file.is_done(step):
            continue
        if budget.left_s < step.least_s:
            tell(f"{step.key}: the time is up; continue with --resume")
            return False
        tell(f"{step.key}: starting, {budget.left_s:.0f} s left")
        with _reported(step.key) as problem:
            file.keep(step, step.action())
        if problem:
            file.keep(step, {"complete": False, "error": problem[0]})
        complete = complete and file.is_done(step)
    return complete


def tell(line: str) -> None:
    """Print progress on standard error."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _reported(key: str) -> Iterator[list[str]]:
    """Collect and print an error that occurs in the context; the list stays empty without one."""
    problems: list[str] = []
    try:
        yield problems
    except GpuEnergyError as error:
        problems.append(str(error))
        tell(f"{key}: failed: {error}")
