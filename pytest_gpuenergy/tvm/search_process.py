"""A search process: MetaSchedule proposes schedules and learns their cost.

It neither lowers nor runs anything. It has a process of its own because TVM may crash it;
`TvmProposer` is the parent's side. TVM is imported inside the functions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

from pytest_gpuenergy.support import InputError, UnavailableError, parse
from pytest_gpuenergy.tuning import Feedback
from pytest_gpuenergy.tvm.lower import cuda_target, first_line
from pytest_gpuenergy.tvm.operators import Rewrite, operator_of
from pytest_gpuenergy.tvm.record_form import check_record
from pytest_gpuenergy.tvm.requirements import import_tvm, without_tensor_intrinsics
from pytest_gpuenergy.tvm.search_settings import SearchSettings, Space
from pytest_gpuenergy.workloads import BFLOAT16, Workload

_FIRST_WITH_BFLOAT16 = 80
"""Of TVM's header: ``__CUDA_ARCH__ >= 800``."""


def require_space(workload: Workload, space: Space, architecture: str) -> None:
    """Refuse a search without schedules to consider.

    Args:
        workload: what they compute.
        space: the schedules that are wanted.
        architecture: of the GPU, such as ``sm_90``.

    Raises:
        UnavailableError: TVM has no schedules of the workload, or none for the GPU.
        InputError: it does not know its kind, or only forms are wanted and there are none.
    """
    operator = operator_of(workload)
    number = int(re.sub(r"\D", "", architecture))
    if number < _FIRST_WITH_BFLOAT16 and any(t.dtype == BFLOAT16 for t in workload.tensors):
        raise UnavailableError(
            f"{workload.name} cannot be computed with TVM on this GPU, since TVM uses bfloat16 "
            f"from sm_{_FIRST_WITH_BFLOAT16} on and it is of {architecture}: choose float16."
        )
    forms = operator.forms(workload)
    if space == "gemm" and not forms:
        raise InputError(
            f"{workload.name} has no schedules as a matrix product, because {operator.formless}: "
            "omit --space gemm."
        )


def space_generator(workload: Workload, space: Space, number: int = 0, processes: int = 1) -> Any:
    """A MetaSchedule space generator for ``workload``.

    It contains every ``processes``-th form, starting with ``number``; the generators of all
    processes together contain all forms.
    """
    import_tvm()
    from tvm.s_tir import meta_schedule as ms

    direct = ms.space_generator.PostOrderApply(
        sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
    )
    all_forms = () if space == "direct" else operator_of(workload).forms(workload)
    forms = all_forms[number::processes] or all_forms
    return _with_forms(direct, forms, with_direct=space == "all") if forms else direct


def _with_forms(direct: Any, forms: Sequence[Rewrite], *, with_direct: bool) -> Any:
    """A generator of the schedules of the forms and, if wanted, of those of ``direct``."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import Schedule, meta_schedule as ms

    @derived_object
    class Spaces(ms.space_generator.PySpaceGenerator):  # type: ignore[misc]
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
            found = list(direct.generate_design_space(module)) if with_direct else []
            for form in forms:
                schedule = Schedule(module)
                form(schedule)
                found.append(schedule)
            return found

        def clone(self) -> Any:
            return Spaces()

    return Spaces()


def _but_of_forms(check: Any) -> Any:
    """TVM's check of a schedule's limits, skipped for forms.

    The check lowers the schedule, which takes time; forms respect the limits by construction.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Verify(ms.postproc.PyPostproc):  # type: ignore[misc]
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
_LARGEST_SEED = 2**31 - 3  # of TVM's linear congruential generator
_SEEDS_APART = 15_485_863  # more than a search has trials
_MOST_OF_OTHERS = 64


class ScheduleSearch:
    """Proposes schedules of one workload; the child's side.

    Args:
        workload: what they compute.
        architecture: of the GPU, such as ``sm_90``.
        settings: how to search; the share of this process.
        number: of this process, from 0; each process searches a different part.
        processes: number of search processes.

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
        self._module = operator_of(workload).module(workload)
        self._database = ms.database.MemoryDatabase()
        self._stored = self._database.commit_workload(self._module)
        kind: Any = "xgb" if find_spec("xgboost") else "random"
        self._model = ms.cost_model.CostModel.create(kind, num_tuning_cores=settings.threads)
        self._proposed: dict[str, Any] = {}
        self._context: Any = None

    def begin(self, known: Sequence[Feedback]) -> None:
        """Get ready to propose, continuing a search with the trials ``known``.

        Their number is part of the seed, so the same schedules are not proposed again. Each process
        learns its share of the trials and the fastest of the rest: every schedule has to be rebuilt
        here, which takes as long as proposing one.
        """
        with _in_one_sentence(), without_tensor_intrinsics():
            self._context = self._ms.TuneContext(
                self._module,
                target=self._target,
                space_generator=space_generator(
                    self._workload, self._settings.space, self._number, self._processes
                ),
                search_strategy=self._strategy(),
                rand_state=self._seed(len(known)),
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
        rest = sorted(others, key=_cost_s)
        self._learn(share, commit=True)
        self._learn(rest[:_MOST_OF_OTHERS], commit=False)

    def stored_workload(self) -> str:
        """The line of the computation in ``database_workload.json``."""
        return _json(self._ms._ffi_api.WorkloadAsJSON(self._stored))

    def propose(self) -> list[str]:
        """The next schedules as MetaSchedule records without a time, as JSON text.

        The list is empty if the search finds no more.
        """
        with _in_one_sentence():
            found = self._context.search_strategy.generate_measure_candidates() or ()
            texts = [
                _json(self._ms._ffi_api.TuningRecordAsJSON(self._record(c, 1.0))) for c in found
            ]
            self._proposed.update(zip(texts, found, strict=True))
        return texts

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Learn the costs of schedules, proposed by this process or by another one."""
        self._learn(feedback, commit=False)

    def _learn(self, feedback: Sequence[Feedback], *, commit: bool) -> None:
        """Update the cost model, and the database from which the next generation descends.

        Of other processes' schedules (unless ``commit``) only the better half is learned, because
        each has to be rebuilt here, and only one that is better than all before is added to the
        database, because TVM proposes it once more.
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

    def _seed(self, length: int) -> int:
        seed = self._settings.seed + length + self._number * _SEEDS_APART
        return seed % _LARGEST_SEED + 1

    def _record(self, candidate: Any, cost_s: float) -> Any:
        return self._ms.database.TuningRecord(
            candidate.sch.trace, self._stored, [cost_s], self._target, candidate.args_info
        )

    def _strategy(self) -> Any:
        settings, strategies = self._settings, self._ms.search_strategy
        if settings.strategy == "replay-trace":
            return strategies.ReplayTrace()
        return strategies.EvolutionarySearch(
            population_size=settings.population,
            init_min_unmeasured=min(settings.population, settings.batch),
            # With a small population the search would otherwise end silently.
            max_fail_count=50,
            genetic_num_iters=settings.generations,
        )


def _cost_s(one: Feedback) -> float:
    return math.inf if one.cost_s is None else one.cost_s


def _json(value: Any) -> str:
    """A nested container of TVM as JSON text, with objects in TVM's own form."""
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
