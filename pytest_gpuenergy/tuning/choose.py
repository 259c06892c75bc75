"""Chooses the kernels that are kept of a search: representatives that compute correctly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from msgspec.structs import replace

from pytest_gpuenergy.engine import Typical, cost_ms
from pytest_gpuenergy.kernels import Origin
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuning.bands import Contender, Representative, representatives
from pytest_gpuenergy.tuning.raw_log import TRIALS_FILE, RawLog, Trial
from pytest_gpuenergy.tuning.records import BANDS, Band, Measured
from pytest_gpuenergy.tuning.search_space import RecipeForm, SearchSpace
from pytest_gpuenergy.tuning.tuning_gpus import Confirm


@dataclass(frozen=True)
class Chosen:
    """A trial that is kept: its index, the band that it represents, and its precise figures."""

    index: int
    band: Band
    measured: Measured | None


class Chooser:
    """Chooses among the trials of one search.

    Twice as many trials as are wanted of the best band contend for it. A trial that has been
    measured precisely is ranked by that measurement. Unless the objective is time, all contenders
    are measured.

    Args:
        space: makes the kernels of the trials.
        log: the trials; a trial is amended there if its kernel turns out to be wrong.
        keep: the number of kernels to choose.
        objective: the figure that the search minimizes.
        confirm: verifies a kernel and, if ``measures``, measures it.
        measures: whether ``confirm`` measures.
        best_only: whether all kernels are chosen from the best band.

    Raises:
        InputError: no trial ran.
    """

    def __init__(
        self,
        space: SearchSpace,
        log: RawLog,
        keep: int,
        objective: Metric,
        confirm: Confirm,
        *,
        measures: bool,
        best_only: bool = False,
    ) -> None:
        self._space, self._log, self._keep = space, log, keep
        self._best_only = best_only
        self._objective, self._confirm = objective, confirm
        self._good = [trial for trial in log.trials if trial.good]
        if not self._good:
            name = space.workload.name
            raise InputError(
                f"None of the {len(log.trials)} trials of {name} ran: see the reasons in "
                f"{log.folder / TRIALS_FILE}, or try more with --trials."
                if log.trials
                else f"{name} has no trials to choose from: give --trials at least 1."
            )
        self._typical = Typical.of(self._good)
        estimates = {t.index: cost_ms(objective, t, self._typical) for t in self._good}
        best = keep if best_only else -(-keep // len(BANDS))
        contending = sorted(estimates, key=lambda index: (estimates[index], index))
        self._costs = {index: estimates[index] for index in contending[: 2 * best]}
        self._always = [] if objective == Metric.TIME or not measures else list(self._costs)
        self._right: dict[int, Measured | None] = {}
        self._wrong: dict[int, str] = {}

    @property
    def rejected(self) -> tuple[str, ...]:
        """The reasons why chosen kernels were replaced."""
        return tuple(self._wrong.values())

    def choose(self, tell: Callable[[str], None], stop: Event) -> list[Chosen]:
        """Choose representatives that compute correctly; the next nearest replaces a wrong one.

        Args:
            tell: called with lines of progress.
            stop: set by the caller to end early.

        Raises:
            InputError: no kernel is correct.
            KeyboardInterrupt: ``stop`` was set.
        """
        name = self._space.workload.name
        while fresh := self._unconfirmed(picks := self._picks()):
            tell(f"{name}: verifying {len(fresh)} chosen kernels")
            for index in fresh:
                if stop.is_set():
                    raise KeyboardInterrupt
                if problem := self._check(index):
                    tell(f"{name}: replacing {problem}")
        if not picks:
            raise InputError(
                f"No kernel of {name} is correct; {len(self._wrong)} were verified. The first one "
                f"failed: {next(iter(self._wrong.values()))}"
            )
        if len(picks) < self._keep:
            tell(f"{name}: there are only {len(picks)} kernels to keep instead of {self._keep}")
        indices = [self._good[pick.index].index for pick in picks]
        return [
            Chosen(index, pick.band, self._right[index])
            for index, pick in zip(indices, picks, strict=True)
        ]

    def _picks(self) -> list[Representative]:
        rejected = [place for place, trial in enumerate(self._good) if trial.index in self._wrong]
        found = contenders(self._good, self._log, self._space.form, self._costs)
        return representatives(found, self._keep, rejected, best_only=self._best_only)

    def _unconfirmed(self, picks: Sequence[Representative]) -> list[int]:
        wanted = dict.fromkeys([*self._always, *(self._good[pick.index].index for pick in picks)])
        return [index for index in wanted if index not in self._right and index not in self._wrong]

    def _check(self, index: int) -> str | None:
        """Confirm a kernel. Return why it must be replaced, or None if it is right."""
        trial = self._log.trials[index]
        try:
            kernel = self._space.kernel(self._log.recipes[index])
            named = dataclasses.replace(kernel, origin=Origin(self._space.form.tuner))
            measured = self._confirm(named, self._space.workload)
        except KernelFault as fault:
            self._wrong[index] = f"{(trial.digest or '')[:12]}: {fault.outcome}: {fault}"
            self._log.amend(replace(trial, outcome=fault.outcome, message=str(fault)))
            return self._wrong[index]
        self._right[index] = measured
        if measured is not None:
            slowdown = measured.time_ms / (trial.time_ms or measured.time_ms)
            self._typical = self._typical or Typical(measured.power_w, slowdown)
            precise = replace(
                trial,
                time_ms=measured.time_ms,
                sustained_ms=measured.time_ms,
                power_w=measured.power_w,
            )
            self._costs[index] = cost_ms(self._objective, precise, self._typical)
        return None


def contenders(
    good: Sequence[Trial], log: RawLog, form: RecipeForm, costs: Mapping[int, float]
) -> list[Contender]:
    """Return the trials that ran; only those in ``costs`` contend for the best band."""
    return [
        Contender(
            trial.time_ms or math.inf,
            (form.identity(log.recipes[trial.index]), trial.digest or str(trial.index)),
            costs.get(trial.index, math.inf),
        )
        for trial in good
    ]
