"""TVM's schedules of a workload, as the tuner searches them; see `tuning.space.SearchSpace`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.tuning import Feedback
from pytest_gpuenergy.tvm.generators import require_space
from pytest_gpuenergy.tvm.proposer import TvmProposer
from pytest_gpuenergy.tvm.recipe import METASCHEDULE, MetaScheduleForm
from pytest_gpuenergy.tvm.requirements import installed_tvm
from pytest_gpuenergy.tvm.settings import SearchSettings
from pytest_gpuenergy.tvm.store import KernelStore
from pytest_gpuenergy.workloads import Workload


@dataclass(frozen=True)
class TvmSpace:
    """TVM's schedules of one workload on one device.

    Attributes:
        workload: what the kernels compute.
        device: compiles and runs candidates.
        store: lowers them.
        settings: how to search.

    Raises:
        InputError: there are no such schedules.
    """

    workload: Workload
    device: Device
    store: KernelStore
    settings: SearchSettings

    def __post_init__(self) -> None:
        require_space(self.workload, self.settings.space, self.device.architecture)

    @property
    def form(self) -> MetaScheduleForm:
        """Recipes are MetaSchedule records."""
        return METASCHEDULE

    @property
    def effort(self) -> str:
        """Number of threads, and of schedules in a batch."""
        threads = self.settings.threads
        plural = "" if threads == 1 else "s"
        return f"{threads} thread{plural}, {self.settings.batch} schedules per batch"

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> TvmProposer:
        """Start the search processes."""
        return TvmProposer(
            self.workload,
            self.device.architecture,
            self.settings,
            self.store,
            lambda kernel: self.device.prepare([kernel]),
            folder,
            known,
        )

    def kernel(self, recipe: str) -> Kernel:
        """The kernel that TVM makes from a record."""
        return self.store.lower(self.workload, recipe).result()

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """TVM's version and its target."""
        return {"tvm": installed_tvm() or "unknown", "target": json.loads(recipe)[2]}
