"""TVM's schedules of a workload, as the tuner searches them; see `tuning.space.SearchSpace`."""

from __future__ import annotations

import json
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
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
    is_there,
    write_atomically,
)
from pytest_gpuenergy.tuning import Candidate, Feedback, writing
from pytest_gpuenergy.tvm.database import METASCHEDULE, WORKLOAD_FILE, MetaScheduleForm
from pytest_gpuenergy.tvm.kernel_store import KernelStore
from pytest_gpuenergy.tvm.requirements import crash_hint, installed_tvm
from pytest_gpuenergy.tvm.search_process import require_space
from pytest_gpuenergy.tvm.search_settings import SearchSettings
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


_TIMEOUT_S = 600.0
_LEARNING_S = 0.5
"""Allowed for each trial that a resumed search already knows; two cores learn 14 per second."""
_MOST_DEATHS = 3
_LOOK_UP_S = 0.2


class TvmProposer:
    """The search processes of a workload, and the kernels they propose; a context manager.

    The processes start immediately. See `tuning.space.Proposer`.

    Args:
        workload: what the kernels compute.
        architecture: of the GPU.
        settings: how to search; `SearchSettings.processes` is the number of processes.
        store: lowers schedules.
        prepare: starts to compile a kernel.
        folder: where `WORKLOAD_FILE` is written, to which MetaSchedule's database refers.
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
            _Search(workload, architecture, settings, number, known)
            for number in range(settings.processes)
        ]
        self._making: dict[Future[list[Candidate]], _Search] = {}
        self._request()

    @property
    def processes(self) -> int:
        """The number of search processes."""
        return len(self._searches)

    def take(self, wanted: int, stop: Event) -> list[Candidate]:
        """The batch that is ready first; see `tuning.space.Proposer.take`."""
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
        self._keep_workload()
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
        """Have every idle search make its next batch."""
        busy = set(self._making.values())
        for search in self._searches:
            if search not in busy:
                self._making[search.submit(self._make, search)] = search

    def _keep_workload(self) -> None:
        """Write the workload that the database's records refer to, unless it is there already."""
        if self._stored is not None and not is_there(self._workload_path):
            with writing(self._workload_path):
                write_atomically(self._workload_path, self._stored + "\n")

    def _make(self, search: _Search) -> list[Candidate]:
        records = search.propose()
        if self._stored is None:
            self._stored = search.stored_workload()
        futures = [self._store.lower(self._workload, record) for record in records]
        candidates = []
        # In order: `as_completed` would wait forever for futures that `KernelStore.close` cancels.
        for record, future in zip(records, futures, strict=True):
            candidates.append(Candidate(record, kernel := _kernel(future)))
            if isinstance(kernel, Kernel):
                self._prepare(kernel)
        return candidates


class _Search:
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
            "pytest_gpuenergy.tvm.search_process:ScheduleSearch",
            *(workload, architecture, settings.of_process(), number, settings.processes),
            environment=WITHOUT_GPU,
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
        """The next records; pending feedback is learned first."""
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
                if self._closed or self._deaths > _MOST_DEATHS:
                    raise InputError(
                        f"TVM's search of {self._name} keeps ending its process "
                        f"({str(error).rstrip('.')}); {crash_hint()}"
                    ) from None


def _kernel(lowered: Future[Kernel]) -> Kernel | KernelFault:
    try:
        return lowered.result()
    except KernelFault as fault:
        return fault
