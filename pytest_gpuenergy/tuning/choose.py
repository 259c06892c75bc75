"""Chooses the kernels that are kept of a search: representatives that compute correctly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event

from msgspec.structs import replace

from pytest_gpuenergy.engine import Typical, cost_ms
from pytest_gpuenergy.kernels import Kernel, Origin
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import InputError, KernelFault, counted
from pytest_gpuenergy.tuning.raw_log import TRIALS_FILE, RawLog, Trial
from pytest_gpuenergy.tuning.records import BANDS, Band, Measured
from pytest_gpuenergy.tuning.search_space import RecipeForm, SearchSpace
from pytest_gpuenergy.tuning.tuning_gpus import Confirmed, TuningGpus


@dataclass(frozen=True)
class TuneSettings:
    """The request for one tuning.

    Attributes:
        trials: the number of candidates to time, in all searches of a folder together.
        keep: the number of kernels in a record file.
        objective: what the search minimizes.
        energy: whether power and energy of the kept kernels are measured.
        resume: whether a folder that contains a search is continued rather than refused.
        best_only: whether all kept kernels are the best ones, and none is near a percentile.
    """

    trials: int
    keep: int
    objective: Metric = Metric.TIME
    energy: bool = True
    resume: bool = False
    best_only: bool = False


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
        settings: which kernels to choose.
        gpus: confirm the kernels.

    Raises:
        InputError: no trial ran.
    """

    def __init__(
        self,
        space: SearchSpace,
        log: RawLog,
        settings: TuneSettings,
        gpus: TuningGpus,
    ) -> None:
        self._space, self._log, self._settings, self._gpus = space, log, settings, gpus
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
        objective, keep = settings.objective, settings.keep
        estimates = {t.index: cost_ms(objective, t, self._typical) for t in self._good}
        best = keep if settings.best_only else -(-keep // len(BANDS))
        contending = sorted(estimates, key=lambda index: (estimates[index], index))
        self._costs = {index: estimates[index] for index in contending[: 2 * best]}
        self._always = [] if objective == Metric.TIME or not settings.energy else list(self._costs)
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
        name, keep = self._space.workload.name, self._settings.keep
        while True:
            rejected = [
                place for place, trial in enumerate(self._good) if trial.index in self._wrong
            ]
            contending = contenders(self._good, self._log, self._space.form, self._costs)
            best_only = self._settings.best_only
            picks = representatives(contending, self._settings.keep, rejected, best_only=best_only)
            chosen = (self._good[pick.index].index for pick in picks)
            confirmed = {*self._right, *self._wrong}
            fresh = [i for i in dict.fromkeys([*self._always, *chosen]) if i not in confirmed]
            if not fresh:
                break
            tell(f"{name}: verifying {len(fresh)} chosen kernels")
            for index, outcome in self._outcomes(fresh, stop):
                if problem := self._note(index, outcome):
                    tell(f"{name}: replacing {problem}")
        if not picks:
            raise InputError(
                f"No kernel of {name} is correct; {len(self._wrong)} were verified. The first one "
                f"failed: {next(iter(self._wrong.values()))}"
            )
        if len(picks) < keep:
            tell(f"{name}: only {counted(len(picks), 'kernel')} to keep instead of {keep}")
        indices = [self._good[pick.index].index for pick in picks]
        return [
            Chosen(index, pick.band, self._right[index])
            for index, pick in zip(indices, picks, strict=True)
        ]

    def _outcomes(self, indices: Sequence[int], stop: Event) -> Iterator[tuple[int, Confirmed]]:
        """Confirm kernels, and yield what was found of each as soon as it is.

        Raises:
            KeyboardInterrupt: ``stop`` was set.
        """
        kernels = dict[int, Kernel]()
        origin = Origin(self._space.form.tuner)
        for index in indices:
            try:
                kernel = self._space.kernel(self._log.recipes[index])
            except KernelFault as fault:
                yield index, fault
            else:
                kernels[index] = dataclasses.replace(kernel, origin=origin)
        outcomes = self._gpus.confirm_all(
            [*kernels.values()], self._space.workload, energy=self._settings.energy
        )
        with closing(outcomes):
            for index in kernels:
                if stop.is_set():
                    raise KeyboardInterrupt
                yield index, next(outcomes)

    def _note(self, index: int, outcome: Confirmed) -> str | None:
        """Note what was found; return why the kernel must be replaced, or None if it is right."""
        trial = self._log.trials[index]
        if isinstance(outcome, KernelFault):
            self._wrong[index] = f"{(trial.digest or '')[:12]}: {outcome.outcome}: {outcome}"
            self._log.amend(replace(trial, outcome=outcome.outcome, message=str(outcome)))
            return self._wrong[index]
        self._right[index] = outcome
        if outcome is not None:
            slowdown = outcome.time_ms / (trial.time_ms or outcome.time_ms)
            self._typical = self._typical or Typical(outcome.power_w, slowdown)
            precise = replace(
                trial,
                time_ms=outcome.time_ms,
                sustained_ms=outcome.time_ms,
                power_w=outcome.power_w,
            )
            self._costs[index] = cost_ms(self._settings.objective, precise, self._typical)
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


_POSITIONS: dict[Band, float] = {"fastest": 0.0, "p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75}


@dataclass(frozen=True)
class Contender:
    """A trial that ran.

    Attributes:
        time_ms: the time of one launch.
        identities: keys of its recipe and its kernel; trials that share a key are the same.
        cost: ranks the best trials, lower is better; None stands for the time.
    """

    time_ms: float
    identities: tuple[str, ...]
    cost: float | None = None

    @property
    def merit(self) -> float:
        """The number by which the best trials are chosen: lower is better."""
        return self.time_ms if self.cost is None else self.cost


@dataclass(frozen=True)
class Representative:
    """The trial at ``index`` of the given list, and the band that it represents."""

    index: int
    band: Band


def representatives(
    trials: Sequence[Contender],
    count: int,
    rejected: Collection[int] = (),
    *,
    best_only: bool = False,
) -> list[Representative]:
    """Choose ``count`` of ``trials``, distributed evenly over the bands; fewer if there are fewer.

    Of trials that share an identity only the fastest is considered. They are sorted by time. The
    band of a percentile q takes the trials nearest to the place q (n - 1) among all n, and of two
    equally near the faster; ``fastest`` takes the trials with the lowest cost. Bands choose in
    their order, and none takes a trial that another has taken. The same trials always give the
    same choice.

    Args:
        trials: the trials that ran, in any order.
        count: the number to choose; if the bands cannot be equal, the earlier ones get more.
        rejected: indices that must not be chosen, although they count for the percentiles.
        best_only: whether all are chosen from the first band.

    Returns:
        The chosen trials: the first band by cost, then the others by time.
    """
    places = _distinct(trials)
    free = [place for place, index in enumerate(places) if index not in set(rejected)]
    chosen: dict[int, Band] = {}
    positions: dict[Band, float] = {"fastest": 0.0} if best_only else _POSITIONS
    for number, (band, position) in enumerate(positions.items()):
        wanted = count // len(positions) + (number < count % len(positions))
        at = position * (len(places) - 1)
        order: list[tuple[float, int]] = [
            (trials[places[place]].merit if band == "fastest" else abs(place - at), place)
            for place in free
        ]
        for _, place in sorted(order)[:wanted]:
            chosen[place] = band
            free.remove(place)
    best = [place for place, band in chosen.items() if band == "fastest"]
    others = sorted(place for place, band in chosen.items() if band != "fastest")
    return [Representative(places[place], chosen[place]) for place in best + others]


def _distinct(trials: Sequence[Contender]) -> list[int]:
    """Return the indices by ascending time, without trials that repeat a faster one's identity."""
    seen: set[str] = set()
    distinct = []
    for index in sorted(range(len(trials)), key=lambda index: (trials[index].time_ms, index)):
        identities = trials[index].identities
        if seen.isdisjoint(identities):
            distinct.append(index)
        seen.update(identities)
    return distinct
