"""How MetaSchedule's records, the recipes of TVM's tuner, are stored. Needs no TVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import FormError, member, typed
from pytest_gpuenergy.tvm.database import RECORD_FILE, load_database
from pytest_gpuenergy.tvm.record_form import check_record, compact, is_failed, tensor_of
from pytest_gpuenergy.tvm.target_form import check_target
from pytest_gpuenergy.workloads import Workload

_WRITTEN_FAILED_S = 1e10


@dataclass(frozen=True)
class MetaScheduleForm:
    """Recipes are MetaSchedule records; see `tuning.space.RecipeForm`."""

    tuner: str = "tvm-metaschedule"
    file_name: str = RECORD_FILE
    variant: str = ""

    def identity(self, recipe: str) -> str:
        """The trace: schedules with the same trace are the same."""
        return compact(json.loads(recipe)[0])

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """The record with its run time; for a failed trial a very long one, as in MetaSchedule."""
        content = json.loads(recipe)
        content[1] = [_WRITTEN_FAILED_S if time_ms is None else time_ms / 1e3]
        return compact(content)

    def time_ms(self, recipe: str) -> float:
        """The mean of the record's run times."""
        run_secs = json.loads(recipe)[1]
        return float(1e3 * sum(run_secs) / len(run_secs))

    def line(self, recipe: str) -> str:
        """As in MetaSchedule's database, whose only workload has the number 0."""
        return f"[0,{recipe}]"

    def read(self, path: Path) -> list[str]:
        """The records of a database."""
        return [record.text for record in load_database(path).records]

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """If the trial ran, by its own entry or by the record's time, the trace must be known."""
        content = json.loads(recipe)
        if ran or not is_failed(content[1]):
            check_record(content)

    def check(self, value: object, workload: Workload) -> str:
        """A record of a trial that ran, of the workload's tensors."""
        content = check_record(value)
        if is_failed(content[1]):
            raise FormError("the record is of a failed trial")
        shapes = [tensor_of(argument) for argument in content[3]]
        if shapes != [(tensor.dtype, tensor.shape) for tensor in workload.tensors]:
            raise FormError(f"the record is of tensors other than those of {workload.name}")
        return compact(content)

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """TVM's version and its target."""
        top = typed(header, dict, "the document")
        target = member(top, "target", dict)
        check_target(target)
        return {"tvm": member(top, "tvm", str), "target": target}


METASCHEDULE = MetaScheduleForm()
