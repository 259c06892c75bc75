"""The loop of a search: take a batch of candidates, evaluate it, log it, learn from it.

While one batch is evaluated, the next ones are made, so neither the GPU nor the CPU waits for the
other.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Event
from time import monotonic
from typing import Any, TextIO

from msgspec.structs import asdict

from pytest_gpuenergy.engine import Rig, Typical, cost_ms, quick_job
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import span
from pytest_gpuenergy.tuning.raw_log import RawLog, Trial
from pytest_gpuenergy.tuning.search_space import Candidate, Feedback, Proposer, RecipeForm
from pytest_gpuenergy.tuning.team_rig import TeamRig
from pytest_gpuenergy.workloads import Workload

_MAX_BARREN = 5
"""The search ends after this many consecutive batches without a new candidate, for each process of
the proposer."""


@dataclass(frozen=True)
class SearchLoop:
    """A search in one folder.

    Attributes:
        workload: the workload that candidates compute.
        rig: evaluates the candidates.
        form: the form of their recipes.
        log: receives every trial.
        progress: counts every trial.
        stop: when set, the remaining candidates are not tried.
    """

    workload: Workload
    rig: Rig | TeamRig
    form: RecipeForm
    log: RawLog
    progress: SearchProgress
    stop: Event

    def run(self, proposer: Proposer, trials: int) -> None:
        """Try candidates until the log has ``trials``, no more are found, or the search is stopped.

        A candidate that was tried before is not tried again.

        Raises:
            InputError: the proposer failed.
            DeviceError: the GPU does not answer.
            OutputError: the log cannot be written.
        """
        seen = {self.form.identity(recipe) for recipe in self.log.recipes}
        barren = 0
        while (wanted := trials - len(self.log.trials)) > 0 and not self.stop.is_set():
            batch = []
            for candidate in proposer.take(wanted, self.stop):
                if (identity := self.form.identity(candidate.recipe)) not in seen:
                    seen.add(identity)
                    batch.append(candidate)
            batch = batch[:wanted]
            barren = 0 if batch else barren + 1
            if barren >= _MAX_BARREN * proposer.processes:
                break
            tried = self._try(batch)
            recipes = [candidate.recipe for candidate in batch]
            proposer.learn(feedback(self.rig.objective, recipes, tried, self.log.trials))

    def _try(self, batch: Sequence[Candidate]) -> list[Trial]:
        """Evaluate a batch, and log each result immediately."""
        trials = self.log.trials
        first, known = len(trials), trials.copy()
        kernels = [candidate.kernel for candidate in batch]
        jobs = [
            quick_job(kernel, self.workload) if isinstance(kernel, Kernel) else kernel
            for kernel in kernels
        ]
        for place, evaluation in self.rig.evaluate(jobs, known, self.stop.is_set):
            kernel, index = kernels[place], first + place
            is_new = index == len(trials)
            elapsed_s = round(self.progress.elapsed_s, 3) if is_new else trials[index].elapsed_s
            digest = kernel.digest if isinstance(kernel, Kernel) else None
            trial = Trial(**asdict(evaluation), index=index, digest=digest, elapsed_s=elapsed_s)
            if is_new:
                self.progress.add(self.log.add(batch[place].recipe, trial))
            else:
                self.log.amend(trial)
        return trials[first:]


def feedback(
    objective: Metric, recipes: Sequence[str], tried: Sequence[Trial], known: Sequence[Trial]
) -> list[Feedback]:
    """Return the feedback on the trials ``tried``, which may be fewer than ``recipes``."""
    typical = Typical.of(known)
    return [
        Feedback(recipe, cost_ms(objective, trial, typical) / 1e3 if trial.good else None)
        for recipe, trial in zip(recipes, tried, strict=False)
    ]


_TELL_EVERY_S = 3.0
"""The least time between two plain lines of progress."""


class SearchProgress:
    """Counts the trials of one workload's search and reports progress; a context manager.

    Args:
        name: the workload's name.
        wanted: the total number of trials, including earlier ones.
        before: the trials of earlier searches in the same folder.
        tell: called with plain lines.
        live: a terminal on which to draw a display instead; None for plain lines only.
    """

    def __init__(
        self,
        name: str,
        wanted: int,
        before: Sequence[Trial],
        tell: Callable[[str], None],
        live: TextIO | None = None,
    ) -> None:
        self._name = name
        self._wanted = wanted
        self._before = len(before)
        self._tell = tell
        self._began_s = self._told_s = monotonic()
        self._faults: Counter[str] = Counter()
        self._timed = 0
        times_ms = (trial.time_ms for trial in before if trial.good)
        self._best_ms = min((time for time in times_ms if time is not None), default=None)
        self._display = _Display(live, wanted, self._before) if live is not None else None

    @property
    def elapsed_s(self) -> float:
        """The wall time since the search began, in seconds."""
        return monotonic() - self._began_s

    @property
    def tried(self) -> int:
        """The number of trials that have ended in this search."""
        return self._timed + self._faults.total()

    def add(self, trial: Trial) -> None:
        """Count a trial that has ended, and report progress if it is time to."""
        if trial.time_ms is None:
            self._faults[trial.outcome] += 1
        else:
            self._timed += 1
            self._best_ms = min(trial.time_ms, self._best_ms or trial.time_ms)
        if self._display is not None:
            self._display.update(self._before + self.tried, self._line())
        elif monotonic() - self._told_s >= _TELL_EVERY_S:
            self.tell_now()

    def tell_now(self) -> None:
        """Report progress now, as a plain line."""
        self._told_s = monotonic()
        self._tell(self._line())

    def _line(self) -> str:
        best = "none" if self._best_ms is None else f"{self._best_ms:.4g} ms"
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._faults.items()))
        rate = 60 * self.tried / max(self.elapsed_s, 1e-9)
        done = self._before + self.tried
        left = (
            f", {span((self._wanted - done) / rate * 60)} left"
            if rate and done < self._wanted
            else ""
        )
        return (
            f"{self._name}: {done} of {self._wanted} trials, best {best}, "
            f"failed: {kinds or 'none'}, {rate:.0f} trials/min{left}"
        )

    def __enter__(self) -> SearchProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()
        self.tell_now()


def live_stream() -> TextIO | None:
    """Return standard error if a display can be drawn on it, or else None."""
    return sys.stderr if sys.stderr.isatty() and find_spec("rich") else None


class _Display:
    """Draws a bar followed by the line of progress, with rich."""

    def __init__(self, stream: TextIO, wanted: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns: list[Any] = [BarColumn(bar_width=24), TextColumn("{task.description}")]
        self._bars = Progress(*columns, console=Console(file=stream), transient=True)
        self._task = self._bars.add_task("", total=wanted, completed=done)
        self._bars.start()

    def update(self, done: int, text: str) -> None:
        self._bars.update(self._task, completed=done, description=text)

    def close(self) -> None:
        self._bars.stop()
