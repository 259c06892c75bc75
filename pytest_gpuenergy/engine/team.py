"""Several GPUs of one model that work at the same time, each in a process of its own.

This process claims the GPUs and holds their power limits, so that nothing is left to be restored
when one of the others is killed; of a GPU on another host, a process there does. What goes wrong
has one of three reasons:

- A process dies or does not answer. Its task is tried once more, in a new process on the same GPU;
  if that ends likewise, the task has failed.
- A host is lost, or the way to it. Its task is done by the next GPU; if that is lost too, the task
  has failed. The GPU is used again if it can be reached again.
- A GPU cannot be used. The search goes on with the rest, which do its task too.
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
"""Far more than a task takes whose kernels all use up their time."""

_STARTS_WITHIN_S = 120.0
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class HostLostError(WorkerDiedError):
    """The process of a GPU is gone with its host, or the way to it."""


class GpuProcess(Protocol):
    """The process of a GPU, as `support.worker.Worker` is one, wherever it runs.

    Its object has the methods ``is_ready``, ``evaluate`` (of a task) and ``rest`` (keep no context
    on the GPU).
    """

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        """Call a method of its object.

        Raises:
            WorkerDiedError: it died; the next call starts another.
            HostLostError: its host was lost, or the way to it; the next call tries to reach it.
            WorkerTimeoutError: it did not answer, and was ended.
            Exception: whatever the method raised.
        """
        ...

    def retire(self) -> None:
        """End it for good. Idempotent."""
        ...


class Errand(Protocol[R_co]):
    """A task for any GPU of a team, which travels to its process."""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        ...

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> R_co:
        """The result if the process of the GPU with this UUID ends twice."""
        ...


class Member:
    """One GPU of a team, with its process and the thread that calls it.

    Args:
        uuid: of the GPU.
        process: that works on it.
        title: what it is called in messages; its UUID if empty.
        prepare: has it compile kernels that it may be given, if it does not find those compiled
            that this process compiles.

    Attributes:
        lost: why it is used no more; empty while it is.
        thread: calls the process, one task after the other.
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
        """Note that the process has another GPU now, in the place of a lost one."""
        self.uuid = uuid

    def evaluate(self, errand: Errand[R], tell: Callable[[str], None]) -> R:
        """The result of a task, which is a failure if its process ends twice.

        Raises:
            HostLostError: it was lost during the task.
            DeviceError: the GPU cannot be used.
            InputError: the task cannot be done on any.
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
        """Let nothing happen on the GPU, once what was begun there has ended."""
        rests, goes_on = Event(), Event()

        def rest() -> None:
            with suppress(DeviceError):  # a process that has died keeps no context
                if self._begun:
                    self._process.call("rest", timeout_s=_STARTS_WITHIN_S)
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
        self._process.retire()
        self.thread.shutdown(cancel_futures=True)

    def _call(self, errand: Errand[R]) -> R:
        found: R = self._process.call("evaluate", errand, timeout_s=HANGS_AFTER_S)
        return found

    def _wake(self) -> None:
        """Have the process ready; one that died meanwhile is replaced.

        Raises:
            DeviceError: it cannot be.
        """
        self._begun = True
        try:
            self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
        except WorkerDiedError:
            try:
                self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
            except HostLostError as error:  # in no task
                raise DeviceError(str(error)) from error


class Team:
    """GPUs for several searches, one after the other; a context manager.

    Args:
        members: at least one.
        tell: called with sentences, from any thread.

    Attributes:
        members: in the order in which they were named.
    """

    def __init__(self, members: Sequence[Member], tell: Callable[[str], None]) -> None:
        self.members = tuple(members)
        self._listener = tell
        self._lock = Lock()
        self._closed = False

    @property
    def first(self) -> Member:
        """The first member that is used."""
        return next(member for member in self.members if not member.lost)

    @property
    def working(self) -> tuple[str, ...]:
        """The UUIDs of the members that are used."""
        return tuple(member.uuid for member in self.members if not member.lost)

    def start(self, turn: int, errand: Errand[R]) -> Future[R]:
        """Have a task done.

        The future has the result, or the error with which the search must end.

        Args:
            turn: the GPU is that of this number, counted on beyond the last one; if it is lost, the
                next one.
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
        """Use a member no more, unless it is the last one.

        Raises:
            DeviceError: ``error``, if it is.
        """
        with self._lock:
            if all(one.lost for one in self.members if one is not member):
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
        if not self._closed:  # what is ended then has not failed
            self._listener(sentence)

    def _next(self, turn: int) -> Member | None:
        """The member whose turn it is, or the next one that works."""
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
        """Hand a task to the member whose turn it is; ``lost_with`` was lost during it already."""
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
    """Why something is not tried a third time."""
    return f"It was tried twice, and each time the host was lost. {error}"
