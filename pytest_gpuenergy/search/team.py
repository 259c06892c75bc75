"""Several GPUs of one model that evaluate states at the same time, each in a process of its own.

This process claims the GPUs and holds their power limits, so that nothing is left to be restored
when one of the others is killed. What goes wrong there has one of two reasons:

- A process dies or does not answer. Its state is tried once more, in a new process on the same GPU;
  if that ends likewise, the state has failed.
- A GPU cannot be used. The search goes on with the rest, which evaluate its state too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.search.evaluation import Bench
from pytest_gpuenergy.search.gpu_process import Task
from pytest_gpuenergy.search.limit import Limit
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.support.worker import Worker, WorkerDiedError, WorkerTimeoutError

HANGS_AFTER_S = 1800.0
"""Far more than an evaluation takes whose kernels all use up their time."""

_STARTS_WITHIN_S = 120.0


class Member:
    """One GPU of a team, with its process and the thread that calls it.

    Args:
        device: the GPU as this process has opened it.
        gpu, index: see `GpuProcess`.

    Attributes:
        uuid: of the GPU.
        lost: why it is used no more; empty while it is.
        thread: calls the process, one task after the other.
    """

    def __init__(self, device: Device, gpu: str, index: int) -> None:
        self.uuid = device.uuid
        self._emulated = device.emulated
        self.lost = ""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=self.uuid)
        self._worker = Worker("pytest_gpuenergy.search.gpu_process:GpuProcess", gpu, index)

    def evaluate(self, task: Task, tell: Callable[[str], None]) -> Result:
        """The result of a task, which is a failure if its process ends twice.

        Raises:
            DeviceError: the GPU cannot be used.
            InputError: the reference cannot be computed.
        """
        self._wake()
        try:
            return self._call(task)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            tell(f"{task.spec.name}: {task.state.id} is tried once more, because: {error}")
        self._wake()
        try:
            return self._call(task)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            return Result(
                id=task.state.id,
                outcome="timeout" if isinstance(error, WorkerTimeoutError) else "runtime",
                emulated=self._emulated,
                objective=task.objective,
                gpu=self.uuid,
                message=f"It was tried twice. {error}",
            )

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let nothing happen on the GPU, once what was begun there has ended."""
        rests, goes_on = Event(), Event()

        def rest() -> None:
            with suppress(DeviceError):  # a process that has died keeps no context
                self._worker.call("rest", timeout_s=_STARTS_WITHIN_S)
            rests.set()
            goes_on.wait()

        self.thread.submit(rest)
        try:
            rests.wait()
            yield
        finally:
            goes_on.set()

    def close(self) -> None:
        """End the process and the thread. Idempotent."""
        self._worker.retire()
        self.thread.shutdown(cancel_futures=True)

    def _call(self, task: Task) -> Result:
        found: Result = self._worker.call("evaluate", task, timeout_s=HANGS_AFTER_S)
        return found

    def _wake(self) -> None:
        """Have the process ready; one that died meanwhile is replaced."""
        try:
            self._worker.call("is_ready", timeout_s=_STARTS_WITHIN_S)
        except WorkerDiedError:
            self._worker.call("is_ready", timeout_s=_STARTS_WITHIN_S)


class Team:
    """GPUs for the searches of several kernels, one after the other; a context manager.

    Args:
        members: at least one.
        tell: called with sentences, from any thread.

    Attributes:
        members: in the order of ``--gpus``.
    """

    def __init__(self, members: Sequence[Member], tell: Callable[[str], None]) -> None:
        self.members = tuple(members)
        self._listener = tell
        self._lock = Lock()
        self._closed = False

    def start(self, turn: int, task: Task) -> Future[Result]:
        """See `Evaluator.start`."""
        answer: Future[Result] = Future()
        self._submit(turn, task, answer, DeviceError("No GPU is left."))
        return answer

    def leave(self, member: Member, error: DeviceError) -> None:
        """Use a member no more, unless it is the last one.

        Raises:
            DeviceError: ``error``, if it is.
        """
        with self._lock:
            if all(one.lost for one in self.members if one is not member):
                raise error
            if not member.lost:
                member.lost = str(error)
                self._tell(f"the search goes on without {member.uuid}: {error}")

    def close(self) -> None:
        """End all processes, whatever they are doing. Idempotent."""
        self._closed = True
        for member in self.members:
            member.close()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, sentence: str) -> None:
        if not self._closed:  # what is ended then has not failed
            self._listener(sentence)

    def _submit(
        self, turn: int, task: Task, answer: Future[Result], otherwise: DeviceError
    ) -> None:
        """Hand a task to the member whose turn it is, or to the next one that works."""
        places = [(turn + step) % len(self.members) for step in range(len(self.members))]
        members = [self.members[place] for place in places]
        working = next((one for one in members if not one.lost), None)
        if working is None:
            answer.set_exception(otherwise)
        else:
            working.thread.submit(self._run, working, turn, task, answer)

    def _run(self, member: Member, turn: int, task: Task, answer: Future[Result]) -> None:
        try:
            answer.set_result(member.evaluate(task, self._tell))
        except DeviceError as error:
            try:
                self.leave(member, error)
            except DeviceError:
                answer.set_exception(error)
            else:
                self._submit(turn, task, answer, error)
        except BaseException as error:
            answer.set_exception(error)


@dataclass(frozen=True)
class TeamEvaluator:
    """A team that evaluates the states of one spec.

    Attributes:
        team: of GPUs.
        benches: of the members in their order, in this process.
    """

    team: Team
    benches: tuple[Bench, ...]
    _prepared: set[str] = field(default_factory=set)

    @property
    def bench(self) -> Bench:
        """Of the first GPU that is used."""
        return self.benches[self.team.members.index(self._first)]

    @property
    def gpus(self) -> tuple[str, ...]:
        """All of the team."""
        return tuple(member.uuid for member in self.team.members)

    @property
    def working(self) -> tuple[str, ...]:
        """Those that are used."""
        return tuple(member.uuid for member in self.team.members if not member.lost)

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: Limit | None = None
    ) -> Future[Result]:
        """Hand a state to the team; each one is compiled ahead by one process only."""
        new = tuple(one for one in ahead if one.id not in self._prepared)
        self._prepared.update(one.id for one in (state, *new))
        bench = self.benches[0]
        task = Task(bench.spec, bench.objective, bench.seed, state, new, limit)
        return self.team.start(turn, task)

    def alone(self) -> AbstractContextManager[None]:
        """Let the process of the first GPU that is used rest."""
        return self._first.resting()

    def leave(self, gpu: str, why: str) -> None:
        """Use a GPU no more."""
        [member] = [one for one in self.team.members if one.uuid == gpu]
        name = self.benches[0].device.name
        self.team.leave(member, DeviceError(f"{name} ({gpu}) cannot be used, because {why}."))

    @property
    def _first(self) -> Member:
        return next(member for member in self.team.members if not member.lost)
