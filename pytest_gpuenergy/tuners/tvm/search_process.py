"""A search process, in which MetaSchedule proposes schedules and learns their cost.

The schedules are TVM's own of a workload, and those of our forms of it. Nothing is lowered or run
here. The process is separate because TVM may crash it; `TvmProposer` is the parent's side. TVM is
imported inside the functions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

from pytest_gpuenergy.support import InputError, parse
from pytest_gpuenergy.tuners.tvm.lower import cuda_target, first_line
from pytest_gpuenergy.tuners.tvm.operators import Rewrite, tvm_operator
from pytest_gpuenergy.tuners.tvm.record_form import check_record
from pytest_gpuenergy.tuners.tvm.search_settings import SearchSettings, Space
from pytest_gpuenergy.tuners.tvm.tvm_requirements import import_tvm, without_tensor_intrinsics
from pytest_gpuenergy.tuning import Feedback
from pytest_gpuenergy.workloads import Workload


def space_generator(workload: Workload, space: Space, number: int = 0, processes: int = 1) -> Any:
    """Return a MetaSchedule space generator for ``workload``.

    It contains every ``processes``-th form, starting with ``number``; the generators of all
    processes together contain all forms.
    """
    import_tvm()
    from tvm.s_tir import meta_schedule as ms

    direct = ms.space_generator.PostOrderApply(
        sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
    )
    all_forms = () if space == "direct" else tvm_operator(workload).forms(workload)
    forms = all_forms[number::processes] or all_forms
    return _with_forms(direct, forms, with_direct=space == "all") if forms else direct


def _with_forms(direct: Any, forms: Sequence[Rewrite], *, with_direct: bool) -> Any:
    """Return a generator of the forms' schedules and, if wanted, of those of ``direct``."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import Schedule, meta_schedule as ms

    @derived_object
    class Spaces(ms.space_generator.PySpaceGenerator):
        """TVM's rules, applied to every form of the computation."""

        def __init__(self) -> None:
            super().__init__()
            self.sch_rules = list(direct.sch_rules)
            self.postprocs = [
                _but_of_forms(rule) if isinstance(rule, ms.postproc.VerifyGPUCode) else rule
                for rule in direct.postprocs
            ]
            self.mutator_probs = dict(direct.mutator_probs.items())

        def _initialize_with_tune_context(self, context: Any) -> None:
            direct._initialize_with_tune_context(context)

        def generate_design_space(self, module: Any) -> Any:
            schedules = list(direct.generate_design_space(module)) if with_direct else []
            for form in forms:
                schedule = Schedule(module)
                form(schedule)
                schedules.append(schedule)
            return schedules

        def clone(self) -> Any:
            return Spaces()

    return Spaces()


def _but_of_forms(check: Any) -> Any:
    """Return TVM's check of a schedule's limits, which is skipped for forms.

    The check lowers the schedule, which takes time; forms respect the limits by construction.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Verify(ms.postproc.PyPostproc):
        """Accepts the schedules of forms unchecked."""

        def _initialize_with_tune_context(self, context: Any) -> None:
            check._initialize_with_tune_context(context)

        def apply(self, schedule: Any) -> bool:
            kinds = (str(instruction.kind.name) for instruction in schedule.trace.insts)
            return "ReIndex" in kinds or bool(check.apply(schedule))

        def clone(self) -> Any:
            return _but_of_forms(check.clone())

    return Verify()


_NO_END = 1 << 30
"""A number of trials that no search reaches."""
_LARGEST_SEED = 2**31 - 3
"""The largest seed of TVM's linear congruential generator."""
_SEEDS_APART = 15_485_863
"""The distance between the seeds of processes, which is more than a search has trials."""
_MAX_FOREIGN_TRIALS = 64
"""The most trials of other processes that a process learns when a search is continued."""


class ScheduleSearch:
    """Proposes schedules of one workload, in the child process.

    Args:
        workload: the workload that they compute.
        architecture: the architecture of the GPU, such as ``sm_90``.
        settings: the settings of this process.
        number: the number of this process, from 0; each process searches a different part.
        processes: the number of search processes.

    Raises:
        InputError: TVM is missing, or cannot search this workload.
    """

    def __init__(
        self,
        workload: Workload,
        architecture: str,
        settings: SearchSettings,
        number: int = 0,
        processes: int = 1,
    ) -> None:
        import_tvm()
        from tvm.s_tir import meta_schedule as ms

        logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.ERROR)
        self._ms = ms
        self._workload = workload
        self._settings = settings
        self._number, self._processes = number, processes
        self._costs_s: list[float] = []
        self._target = cuda_target(architecture)
        self._module = tvm_operator(workload).module(workload)
        self._database = ms.database.MemoryDatabase()
        self._stored = self._database.commit_workload(self._module)
        learns = settings.strategy != "replay-trace"  # which draws at random whatever it is told
        kind: Any = "xgb" if learns and find_spec("xgboost") else "random"
        self._model = ms.cost_model.CostModel.create(kind, num_tuning_cores=settings.threads)
        self._proposed: dict[str, Any] = {}
        self._context: Any = None

    def begin(self, known: Sequence[Feedback]) -> None:
        """Prepare to propose, continuing a search with the trials ``known``.

        Their number is part of the seed, so the same schedules are not proposed again. Each process
        learns its share of the trials and the fastest of the rest. It does not learn all, because
        rebuilding a schedule here takes as long as proposing one.
        """
        settings, strategies = self._settings, self._ms.search_strategy
        if settings.strategy == "replay-trace":
            strategy = strategies.ReplayTrace()
        else:
            strategy = strategies.EvolutionarySearch(
                population_size=settings.population,
                init_min_unmeasured=min(settings.population, settings.batch),
                # With a small population the search would otherwise end silently.
                max_fail_count=50,
                genetic_num_iters=settings.generations,
            )
        seed = settings.seed + len(known) + self._number * _SEEDS_APART
        with _in_one_sentence(), without_tensor_intrinsics():
            self._context = self._ms.TuneContext(
                self._module,
                target=self._target,
                space_generator=space_generator(
                    self._workload, self._settings.space, self._number, self._processes
                ),
                search_strategy=strategy,
                rand_state=seed % _LARGEST_SEED + 1,
                num_threads=self._settings.threads,
                logger=logging.getLogger("tvm.s_tir.meta_schedule"),
            )
            self._context.search_strategy.pre_tuning(
                _NO_END,
                self._settings.batch,
                self._context.generate_design_space(),
                self._database,
                self._model,
            )
        share = known[self._number :: self._processes]
        others = (t for i, t in enumerate(known) if i % self._processes != self._number)
        rest = sorted(others, key=lambda t: math.inf if t.cost_s is None else t.cost_s)
        self._learn(share, commit=True)
        self._learn(rest[:_MAX_FOREIGN_TRIALS], commit=False)

    def stored_workload(self) -> str:
        """Return the line of the computation in ``database_workload.json``."""
        return _json(self._ms._ffi_api.WorkloadAsJSON(self._stored))

    def propose(self) -> list[str]:
        """Return the next schedules as MetaSchedule records without a time, as JSON text.

        The list is empty if the search finds no more.
        """
        with _in_one_sentence():
            candidates = self._context.search_strategy.generate_measure_candidates() or ()
            texts = [
                _json(self._ms._ffi_api.TuningRecordAsJSON(self._record(c, 1.0)))
                for c in candidates
            ]
            self._proposed.update(zip(texts, candidates, strict=True))
        return texts

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Learn the costs of schedules, proposed by this process or by another one."""
        self._learn(feedback, commit=False)

    def _learn(self, feedback: Sequence[Feedback], *, commit: bool) -> None:
        """Update the cost model, and the database from which the next generation descends.

        Unless ``commit`` is true, only the better half of other processes' schedules is learned,
        because each has to be rebuilt here. Only a schedule that is better than all before is added
        to the database, because TVM proposes it once more.
        """
        read = self._ms.database.TuningRecord.from_json
        candidates, results = [], []
        costs_s = [one.cost_s for one in feedback if one.cost_s is not None]
        best_s = min(self._costs_s, default=math.inf)
        self._costs_s += costs_s
        typical_s = median(self._costs_s) if self._costs_s else math.inf
        with _in_one_sentence():
            for one in feedback:
                candidate = self._proposed.pop(one.recipe, None)
                if one.cost_s is None:
                    continue  # a failed one says nothing about how fast similar ones are
                ours = commit or candidate is not None
                if not ours and one.cost_s > typical_s:
                    continue
                if candidate is None:
                    record = read(check_record(parse(one.recipe)), self._stored)
                    candidate = record.as_measure_candidate()
                if ours or one.cost_s < best_s:
                    best_s = one.cost_s
                    self._database.commit_tuning_record(self._record(candidate, one.cost_s))
                candidates.append(candidate)
                results.append(self._ms.runner.RunnerResult([one.cost_s], None))
            if candidates:
                self._model.update(self._context, candidates, results)

    def _record(self, candidate: Any, cost_s: float) -> Any:
        return self._ms.database.TuningRecord(
            candidate.sch.trace, self._stored, [cost_s], self._target, candidate.args_info
        )


def _json(value: Any) -> str:
    """Return a nested container of TVM as JSON text, with objects in TVM's own form."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    import tvm
    from tvm_ffi import Array, Map

    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, Array | list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Map | dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return json.dumps(json.loads(tvm.ir.save_json(value)), separators=(",", ":"))


@contextlib.contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Turn an error of TVM into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"TVM's search ended with an error: {first_line(error)}") from None
