"""The search itself: MetaSchedule's evolutionary search with a builder and runner of our own.

Kernels never run through TVM. TVM is imported inside the functions, and lives in this process.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.tuning.lower import first_line
from pytest_gpuenergy.tuning.requirements import import_tvm
from pytest_gpuenergy.tuning.workbench import INTERRUPTED, Workbench

_FAILED_S = 1e10
_INTRINSICS = "tvm.s_tir.tensor_intrin"


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Attributes:
        trials: candidates to time.
        seed: of the search; the times decide too, so that two searches still differ.
        threads: processor cores for the search.
        largest_population: most schedules of one generation.
        generations: between two batches of trials.
    """

    trials: int
    seed: int
    threads: int
    largest_population: int = 128
    generations: int = 3

    @property
    def batch(self) -> int:
        """Trials between two updates of the cost model: two of them even in a short search."""
        return max(1, min(64, max(16, self.trials // 2), self.trials))

    @property
    def population(self) -> int:
        """Schedules of one generation; many are of no use for a small batch, and take long."""
        return min(self.largest_population, max(8, 4 * self.batch))


def search(
    module: Any, target: Any, folder: Path, bench: Workbench, settings: SearchSettings, stop: Event
) -> None:
    """Search schedules of ``module``; what is found is added to the database in ``folder``.

    A database that is there already is continued. When ``stop`` is set the search ends early,
    without an error.

    Raises:
        InputError: TVM's search cannot work on this.
    """
    import_tvm()
    from tvm.s_tir import meta_schedule as ms

    quiet = logging.getLogger("tvm.s_tir.meta_schedule")
    quiet.setLevel(logging.ERROR)
    raised: list[BaseException] = []
    try:
        database = ms.database.JSONDatabase(work_dir=str(folder))
        with _without_tensor_intrinsics():
            context = ms.TuneContext(
                module,
                target=target,
                space_generator=ms.space_generator.PostOrderApply(
                    sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
                ),
                search_strategy=ms.search_strategy.EvolutionarySearch(
                    population_size=settings.population,
                    init_min_unmeasured=min(settings.population, settings.batch),
                    # With a small population the search else ends without a word.
                    max_fail_count=50,
                    genetic_num_iters=settings.generations,
                ),
                rand_state=settings.seed + 1,
                num_threads=settings.threads,
                logger=quiet,
            )
        builder, runner, keep = _callbacks(module, target, database, bench, stop, raised)
        ms.tune.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir=str(folder),
            max_trials_global=settings.trials,
            num_trials_per_iter=settings.batch,
            builder=builder,
            runner=runner,
            database=database,
            cost_model="xgb" if find_spec("xgboost") else "random",
            measure_callbacks=[keep, ms.measure_callback.UpdateCostModel()],
            task_scheduler="round-robin",
        )
    except Exception as error:
        if stop.is_set():
            return
        if raised:  # TVM has made an error of its own class of it
            raise raised[0] from None
        raise InputError(f"TVM's search ended with an error: {first_line(error)}") from error


class _StoppedError(RuntimeError):
    """Ends TVM's loop."""


def _callbacks(
    module: Any,
    target: Any,
    database: Any,
    bench: Workbench,
    stop: Event,
    raised: list[BaseException],
) -> Any:
    """Builder, runner and the callback that keeps results, as TVM objects.

    What they raise is added to ``raised``.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @contextlib.contextmanager
    def remembering() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            raised.append(error)
            raise

    @derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: Any) -> Any:
            with remembering():
                built = bench.build([build_input.mod for build_input in build_inputs])
            return [ms.builder.BuilderResult(b.artifact, b.message) for b in built]

    @derived_object
    class Done(ms.runner.PyRunnerFuture):  # type: ignore[misc]
        def __init__(self, time_s: float | None, message: str | None) -> None:
            super().__init__()
            self._result = (None if time_s is None else [time_s], message)

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return ms.runner.RunnerResult(*self._result)

    @derived_object
    class Runner(ms.runner.PyRunner):  # type: ignore[misc]
        def run(self, runner_inputs: Any) -> Any:
            names = [str(runner_input.artifact_path) for runner_input in runner_inputs]
            with remembering():
                return [Done(timed.time_s, timed.message) for timed in bench.time(names)]

    workload = database.commit_workload(module)

    @derived_object
    class Keep(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """As TVM's AddToDatabase, without the candidates that were not tried."""

        def apply(
            self,
            task_scheduler: Any,  # noqa: ARG002
            task_id: int,  # noqa: ARG002
            measure_candidates: Any,
            builder_results: Any,  # noqa: ARG002
            runner_results: Any,
        ) -> None:
            for candidate, result in zip(measure_candidates, runner_results, strict=True):
                if result.error_msg is not None and str(result.error_msg) == INTERRUPTED:
                    continue
                seconds = [_FAILED_S] if result.run_secs is None else list(result.run_secs)
                record = ms.database.TuningRecord(
                    candidate.sch.trace, workload, seconds, target, candidate.args_info
                )
                database.commit_tuning_record(record)
            if stop.is_set():
                raise _StoppedError

    return Builder(), Runner(), Keep()


@contextlib.contextmanager
def _without_tensor_intrinsics() -> Iterator[None]:
    """`TuneContext` imports all tensor intrinsics, which takes seconds; our rules use none."""
    if _INTRINSICS in sys.modules:
        yield
        return
    parent = sys.modules["tvm.s_tir"]
    sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS]
        vars(parent).pop("tensor_intrin", None)
