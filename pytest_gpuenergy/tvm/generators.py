"""The schedules that a search considers: TVM's own of a workload, and those of our forms of it.

TVM is imported inside the functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tvm.operators import Rewrite, operator_of
from pytest_gpuenergy.tvm.requirements import import_tvm
from pytest_gpuenergy.tvm.settings import Space
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
