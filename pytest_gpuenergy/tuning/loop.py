"""The loop of a search: take a batch of candidates, evaluate it, log it, learn from it.

While one batch is evaluated, the next ones are made, so neither the GPU nor the CPU waits for the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from msgspec.structs import asdict

from pytest_gpuenergy.engine import Rig, Typical, cost_ms, quick_job
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.tuning.progress import SearchProgress
from pytest_gpuenergy.tuning.raw_log import RawLog
from pytest_gpuenergy.tuning.space import Candidate, Feedback, Proposer, RecipeForm
from pytest_gpuenergy.tuning.team_rig import TeamRig
from pytest_gpuenergy.tuning.trial import Trial
from pytest_gpuenergy.workloads import Workload

_MOST_BARREN = 5  # consecutive batches without a new candidate, per process of the proposer


@dataclass(frozen=True)
class Loop:
    """A search in one folder.

    Attributes:
        workload: what candidates compute.
        rig: where they are evaluated.
        form: of their recipes.
        log: where every trial is written.
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
            batch = self._fresh(proposer.take(wanted, self.stop), seen)[:wanted]
            barren = 0 if batch else barren + 1
            if barren >= _MOST_BARREN * proposer.processes:
                break
            tried = self._try(batch)
            recipes = [candidate.recipe for candidate in batch]
            proposer.learn(feedback(self.rig.objective, recipes, tried, self.log.trials))

    def _fresh(self, batch: Sequence[Candidate], seen: set[str]) -> list[Candidate]:
        """The candidates that have not been seen, each once; adds them to ``seen``."""
        fresh = []
        for candidate in batch:
            if (identity := self.form.identity(candidate.recipe)) not in seen:
                seen.add(identity)
                fresh.append(candidate)
        return fresh

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
    """The proposer's feedback on the trials in ``tried``, which may be fewer than ``recipes``."""
    typical = Typical.of(known)
    return [
        Feedback(recipe, cost_ms(objective, trial, typical) / 1e3 if trial.good else None)
        for recipe, trial in zip(recipes, tried, strict=False)
    ]
