"""Runs a search on several GPUs of one model at the same time, each in a process of its own.

This process claims the GPUs and holds their power limits (a GPU on another host is claimed by a
process there), so that nothing has to be restored when one of the processes is killed. Three things
may go wrong:

- A process dies or does not answer. Its task is tried once more, in a new process on the same GPU;
  if that fails likewise, the task has failed.
- A host, or the connection to it, is lost. The next GPU does the task; if that is lost too, the
  task has failed. The GPU is used again once it can be reached again.
- A GPU cannot be used. The search goes on with the others, which do its task too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Any, Literal, Protocol, TypeVar

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.support import DeviceError, WorkerDiedError, WorkerTimeoutError

HANGS_AFTER_S = 1800.0
"""The time limit of a task, far more than it takes if all of its kernels run into their timeout."""

_STARTS_WITHIN_S = 120.0
"""The time limit of starting a process, or of having it release its GPU."""

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class HostLostError(WorkerDiedError):
    """A GPU's process was lost together with its host or the connection to that host."""


class GpuProcess(Protocol):
    """The process of a GPU on this host (`support.worker.Worker`) or on another one.

    Its object has the methods ``is_ready``, ``evaluate`` (a task) and ``rest`` (release the context
    on the GPU).
    """

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        """Call a method of its object.

        Raises:
            WorkerDiedError: the process died; the next call starts another one.
            HostLostError: its host or the connection was lost; the next call tries to connect.
            WorkerTimeoutError: the process did not answer, and was killed.
            Exception: whatever the method raised.
        """
        ...

    def retire(self) -> None:
        """End the process and never start another one. Idempotent."""
        ...


class Errand(Protocol[R_co]):
    """A task for any GPU of a team, which is sent to the GPU's process."""

    @property
    def title(self) -> str:
        """The task's name in messages."""
        ...

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> R_co:
        """Return the task's result if it fails twice on the GPU with this UUID."""
        ...


class Member:
    """One GPU of a team, with its process and the thread that calls it.

    Args:
        uuid: the UUID of the GPU.
        process: the process that works on it.
        title: the GPU's name in messages; by default its UUID.
        prepare: has the GPU's host compile kernels that it may be given, if it has no access to
            what this process compiles.

    Attributes:
        uuid: the UUID of the GPU.
        title: its name in messages.
        prepare: see above.
        lost: why the GPU is no longer used; empty while it is used.
        thread: the thread that calls the process, one task after the other.
    """

    def __init__(
        self,
        uuid: str,
        process: GpuProcess,
        title: str = "",
        prepare: Callable[[Sequence[AnyKernel]], None] = lambda _: None,
    ) -> None:
        self.uuid = uuid
        self.title = title or uuid
        self.prepare = prepare
        self.lost = ""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=self.uuid)
        self._process = process
        self._begun = False

    def move(self, uuid: str) -> None:
        """Record that the process now uses another GPU, in place of a lost one."""
        self.uuid = uuid

    def evaluate(self, errand: Errand[R], tell: Callable[[str], None]) -> R:
        """Do a task and return its result, which is a failure if the process ends twice.

        Raises:
            HostLostError: the host was lost during the task.
            DeviceError: the GPU cannot be used.
            InputError: the task cannot be done on any GPU.
        """
        self._wake()
        try:
            return self._call(errand)
        except HostLostError:
            raise
        except (WorkerDiedError, WorkerTimeoutError) as error:
            tell(f"{errand.title} is tried once more, because: {error}")
        self._wake()
        try:
            return self._call(errand)
        except HostLostError:
            raise
        except (WorkerDiedError, WorkerTimeoutError) as error:
            timeout = isinstance(error, WorkerTimeoutError)
            message = f"It was tried twice. {error}"
            return errand.failed("timeout" if timeout else "runtime", message, self.uuid)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Keep the GPU idle during the block, which begins once its current tasks are done."""
        is_idle, may_resume = Event(), Event()

        def rest() -> None:
            with suppress(DeviceError):  # a process that has died keeps no context
                if self._begun:
                    self._process.call("rest", timeout_s=_STARTS_WITHIN_S)
            is_idle.set()
            may_resume.wait()

        self.thread.submit(rest)
        try:
            is_idle.wait()
            yield
        finally:
            may_resume.set()

    def close(self) -> None:
        """End the process and the thread. Idempotent."""
        self._process.retire()
        self.thread.shutdown(cancel_futures=True)

    def _call(self, errand: Errand[R]) -> R:
        found: R = self._process.call("evaluate", errand, timeout_s=HANGS_AFTER_S)
        return found

    def _wake(self) -> None:
        """Make sure that the process is ready; replace it if it has died meanwhile.

        Raises:
            DeviceError: no process can be started.
        """
        self._begun = True
        try:
            self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
        except WorkerDiedError:
            try:
                self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
            except HostLostError as error:  # no task has begun, so none need be tried again
                raise DeviceError(str(error)) from error


class Team:
    """GPUs for several searches, one after the other; a context manager.

    Args:
        members: the GPUs, at least one.
        tell: called with sentences, from any thread.

    Attributes:
        members: the GPUs, in the order in which the user named them.
    """

    def __init__(self, members: Sequence[Member], tell: Callable[[str], None]) -> None:
        self.members = tuple(members)
        self._listener = tell
        self._lock = Lock()
        self._closed = False

    @property
    def first(self) -> Member:
        """The first member that has not been lost."""
        return next(member for member in self.members if not member.lost)

    @property
    def working(self) -> tuple[str, ...]:
        """The UUIDs of the members that have not been lost."""
        return tuple(member.uuid for member in self.members if not member.lost)

    def start(self, turn: int, errand: Errand[R]) -> Future[R]:
        """Give a task to a GPU and return its future result.

        If the search has to end, the future has the error that ends it.

        Args:
            turn: the number of the GPU, modulo the size of the team; if that GPU has been lost, the
                next one does the task.
            errand: the task.
        """
        answer: Future[R] = Future()
        self._submit(turn, errand, answer, DeviceError("No GPU is left."))
        return answer

    def prepare(self, turn: int, kernels: Sequence[AnyKernel]) -> None:
        """Announce kernels to the GPU whose turn it is, see `start`."""
        if (member := self._next(turn)) is not None:
            member.prepare(kernels)

    def leave(self, member: Member, error: DeviceError) -> None:
        """Stop using a member, unless it is the last one.

        Raises:
            DeviceError: ``error``, if the member is the last one.
        """
        with self._lock:
            if all(other.lost for other in self.members if other is not member):
                raise error
            if not member.lost:
                member.lost = str(error)
                self._tell(f"the search goes on without {member.title}: {error}")

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
        if not self._closed:  # tasks that `close` ends have not failed
            self._listener(sentence)

    def _next(self, turn: int) -> Member | None:
        """Return the member whose turn it is, or the next one that has not been lost."""
        places = [(turn + step) % len(self.members) for step in range(len(self.members))]
        return next((self.members[place] for place in places if not self.members[place].lost), None)

    def _submit(
        self,
        turn: int,
        errand: Errand[R],
        answer: Future[R],
        otherwise: DeviceError,
        lost_with: Member | None = None,
    ) -> None:
        """Give a task to the member whose turn it is.

        Args:
            turn: see `start`.
            errand: the task.
            answer: gets the result.
            otherwise: the error for ``answer`` if no member is left.
            lost_with: the member that was lost during an earlier try, if any.
        """
        member = self._next(turn)
        if member is None:
            answer.set_exception(otherwise)
        else:
            member.thread.submit(self._run, member, turn, errand, answer, lost_with)

    def _run(
        self,
        member: Member,
        turn: int,
        errand: Errand[R],
        answer: Future[R],
        lost_with: Member | None,
    ) -> None:
        try:
            answer.set_result(member.evaluate(errand, self._tell))
        except HostLostError as error:
            if lost_with is None:
                self._tell(f"{errand.title} is tried once more, because: {error}")
                self._submit(self.members.index(member) + 1, errand, answer, error, member)
            else:
                answer.set_result(errand.failed("runtime", lost_twice(error), member.uuid))
        except DeviceError as error:
            try:
                self.leave(member, error)
            except DeviceError:
                answer.set_exception(error)
            else:
                self._submit(turn, errand, answer, error, lost_with)
        except BaseException as error:
            answer.set_exception(error)


def lost_twice(error: DeviceError) -> str:
    """Return the sentence that says why something is not tried a third time."""
    return f"It was tried twice, and each time the host was lost. {error}"
