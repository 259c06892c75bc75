"""The search space of TVM: its schedules of a workload, proposed by search processes.

Several processes search the same workload, each with a population of its own. TVM counts references
atomically, so more than a few threads of one process would wait for one another. All processes
learn from the trials of all. Schedules are lowered and compiled in the background. This module does
not import TVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import (
    WITHOUT_GPU,
    InputError,
    KernelFault,
    UnavailableError,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
    is_there,
    write_atomically,
)
from pytest_gpuenergy.tuners.tvm.database import METASCHEDULE, WORKLOAD_FILE, MetaScheduleForm
from pytest_gpuenergy.tuners.tvm.kernel_store import KernelStore
from pytest_gpuenergy.tuners.tvm.operators import tvm_operator
from pytest_gpuenergy.tuners.tvm.search_settings import SearchSettings, Space
from pytest_gpuenergy.tuners.tvm.tvm_requirements import crash_hint, installed_tvm
from pytest_gpuenergy.tuning import Candidate, Feedback, writing
from pytest_gpuenergy.workloads import BFLOAT16, Workload


@dataclass(frozen=True)
class TvmSpace:
    """A `SearchSpace` of TVM's schedules of one workload on one device.

    Attributes:
        workload: the workload that the kernels compute.
        device: compiles and runs candidates.
        store: lowers candidates.
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
        """The form of the recipes, which are MetaSchedule records."""
        return METASCHEDULE

    @property
    def effort(self) -> str:
        """The number of threads, and of schedules in a batch."""
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
        """Return the kernel that TVM makes from a record."""
        return self.store.lower(self.workload, recipe).result()

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """Return TVM's version and its target."""
        return {"tvm": installed_tvm() or "unknown", "target": json.loads(recipe)[2]}


_FIRST_WITH_BFLOAT16 = 80
"""The first capability for which TVM's header has bfloat16 (``__CUDA_ARCH__ >= 800``)."""


def require_space(workload: Workload, space: Space, architecture: str) -> None:
    """Refuse a search without schedules to consider.

    Args:
        workload: the workload that the schedules compute.
        space: the schedules to consider.
        architecture: the architecture of the GPU, such as ``sm_90``.

    Raises:
        UnavailableError: TVM has no schedules of the workload, or none for the GPU.
        InputError: TVM does not know the workload's kind, or only forms are to be considered and
            there are none.
    """
    operator = tvm_operator(workload)
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


_TIMEOUT_S = 600.0
"""The time that a search process may take to answer."""
_LEARNING_S = 0.5
"""The further time for each trial that a resumed search already knows; two cores learn 14 per
second."""
_MAX_DEATHS = 3
"""The number of times that a search process may die before the search fails."""
# Threads of XGBoost would otherwise wait for one another in busy loops, on the cores that compile.
_ENVIRONMENT = {**WITHOUT_GPU, "OMP_WAIT_POLICY": "passive"}
_LOOK_UP_S = 0.2
"""The interval at which a waiting `take` looks whether it is to stop."""


class TvmProposer:
    """The search processes of a workload, and the kernels they propose; a context manager.

    It is a `Proposer`, whose processes start immediately.

    Args:
        workload: the workload that the kernels compute.
        architecture: the architecture of the GPU.
        settings: how to search; `SearchSettings.processes` is the number of processes.
        store: lowers schedules.
        prepare: starts to compile a kernel.
        folder: the folder for `WORKLOAD_FILE`, to which MetaSchedule's database refers.
        known: returns the trials so far, for a search process that starts.
    """

    def __init__(
        self,
        workload: Workload,
        architecture: str,
        settings: SearchSettings,
        store: KernelStore,
        prepare: Callable[[Kernel], object],
        folder: Path,
        known: Callable[[], Sequence[Feedback]],
    ) -> None:
        self._workload = workload
        self._store = store
        self._prepare = prepare
        self._workload_path = folder / WORKLOAD_FILE
        self._stored: str | None = None
        self._searches = [
            _SearchProcess(workload, architecture, settings, number, known)
            for number in range(settings.processes)
        ]
        self._making: dict[Future[list[Candidate]], _SearchProcess] = {}
        self._request()

    @property
    def processes(self) -> int:
        """The number of search processes."""
        return len(self._searches)

    def take(self, wanted: int, stop: Event) -> list[Candidate]:
        """Return the batch that is ready first; see `Proposer.take`."""
        if not self._making:
            self._request()
        done: set[Future[list[Candidate]]] = set()
        while not done and not stop.is_set():
            done = wait(self._making, _LOOK_UP_S, FIRST_COMPLETED).done
        if not done:
            return []
        first = next(future for future in self._making if future in done)
        del self._making[first]
        batch = first.result()
        # The database's records refer to the workload.
        if self._stored is not None and not is_there(self._workload_path):
            with writing(self._workload_path):
                write_atomically(self._workload_path, self._stored + "\n")
        if len(batch) < wanted:
            self._request()
        return batch

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Pass the costs of schedules to all searches, which learn them before their next batch."""
        for search in self._searches:
            search.tell(feedback)

    def close(self) -> None:
        """End the processes immediately. Idempotent."""
        for search in self._searches:
            search.close()

    def __enter__(self) -> TvmProposer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _request(self) -> None:
        """Let every idle search make its next batch."""
        busy = set(self._making.values())
        for search in self._searches:
            if search not in busy:
                self._making[search.submit(self._make, search)] = search

    def _make(self, search: _SearchProcess) -> list[Candidate]:
        records = search.propose()
        if self._stored is None:
            self._stored = search.stored_workload()
        futures = [self._store.lower(self._workload, record) for record in records]
        candidates = []
        # In order: `as_completed` would wait forever for futures that `KernelStore.close` cancels.
        for record, future in zip(records, futures, strict=True):
            try:
                kernel = future.result()
            except KernelFault as fault:
                candidates.append(Candidate(record, fault))
                continue
            candidates.append(Candidate(record, kernel))
            self._prepare(kernel)
        return candidates


class _SearchProcess:
    """One search process. All methods but `tell` run in its own thread, through `submit`."""

    def __init__(
        self,
        workload: Workload,
        architecture: str,
        settings: SearchSettings,
        number: int,
        known: Callable[[], Sequence[Feedback]],
    ) -> None:
        self._name = workload.name
        self._known = known
        self._worker = Worker(
            "pytest_gpuenergy.tuners.tvm.search_process:ScheduleSearch",
            *(workload, architecture, settings.of_process(), number, settings.processes),
            environment=_ENVIRONMENT,
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix=f"search-{number}")
        self._pending: list[Feedback] = []
        self._lock = Lock()
        self._begun = self._closed = False
        self._deaths = 0

    def submit(self, action: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Run ``action`` in the thread of this search, after everything submitted before."""
        return self._background.submit(action, *arguments)

    def stored_workload(self) -> str:
        stored: str = self._call("stored_workload")
        return stored

    def propose(self) -> list[str]:
        """Return the next records; pending feedback is learned first."""
        with self._lock:
            pending, self._pending = self._pending, []
        if pending and self._begun:
            self._call("learn", pending)
        records: list[str] = self._call("propose")
        return records

    def tell(self, feedback: Sequence[Feedback]) -> None:
        """Queue feedback to learn from."""
        with self._lock:
            self._pending += feedback

    def close(self) -> None:
        """End the process immediately."""
        self._closed = True  # the process is not started again
        self._background.shutdown(wait=False, cancel_futures=True)
        self._worker.retire()

    def _call(self, method: str, *arguments: object) -> Any:
        """Call the search process, starting it again if TVM has ended it."""
        while True:
            try:
                if not self._begun:
                    known = self._known()
                    patience_s = _TIMEOUT_S + _LEARNING_S * len(known)
                    self._worker.call("begin", known, timeout_s=patience_s)
                    self._begun = True
                return self._worker.call(method, *arguments, timeout_s=_TIMEOUT_S)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._begun = False
                self._deaths += 1
                if self._closed or self._deaths > _MAX_DEATHS:
                    raise InputError(
                        f"TVM's search of {self._name} keeps ending its process "
                        f"({str(error).rstrip('.')}); {crash_hint()}"
                    ) from None
