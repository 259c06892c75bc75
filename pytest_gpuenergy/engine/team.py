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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Literal, Protocol, TypeVar

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.station import Settings, Station, claim
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.opening import check_spec, open_device
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
)

HANGS_AFTER_S = 1800.0
"""The time limit of a task, far more than it takes if all of its kernels run into their timeout."""

_STARTS_WITHIN_S = 120.0
"""The time limit of starting a process, or of having it release its GPU."""

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class HostLostError(WorkerDiedError):
    """A GPU's process was lost together with its host or the connection to that host."""


class GpuTask(Protocol[R_co]):
    """A task for any GPU of a team, which is sent to the GPU's process. It must be picklable."""

    @property
    def title(self) -> str:
        """The task's name in messages."""
        ...

    def run(self, gpu: GpuWorker) -> R_co:
        """Do the task in the GPU's process, and return its result.

        Raises:
            DeviceError: the GPU does not answer.
            InputError: the task cannot be done on any GPU.
        """
        ...

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> R_co:
        """Return the task's result if it fails twice on the GPU with this UUID."""
        ...


class GpuWorker:
    """The object in a GPU's process, which runs tasks there; the parent has claimed the GPU.

    Args:
        gpu: the GPU, as ``--gpu-device`` takes it.
        index: the index of an emulated GPU, see `open_device`.

    Attributes:
        device: the GPU.
    """

    def __init__(self, gpu: str, index: int) -> None:
        self.device = open_device(gpu, index=index)
        self._stack = ExitStack()
        self._kept: tuple[object, Any] = (None, None)

    @staticmethod
    def process(device: Device, gpu: str, index: int) -> Worker:
        """Return a process for a device that was opened so, which starts when it is first used."""
        place = (gpu, index) if device.emulated else (device.uuid, 0)
        return Worker(f"{__name__}:{GpuWorker.__name__}", *place)

    def is_ready(self) -> None:
        """Do nothing; if the GPU cannot be opened, the process does not get this far."""

    def run(self, task: GpuTask[R]) -> R:
        """Run a task."""
        return task.run(self)

    def keep(self, key: object, make: Callable[[ExitStack], R]) -> R:
        """Return what ``make`` returned for this key, which tasks with the same key share.

        Args:
            key: identifies the value; only that of the last key is kept.
            make: makes the value; its stack is closed when the value is no longer kept.
        """
        if key != self._kept[0]:
            self._stack.close()
            self._kept = (None, None)
            self._kept = (key, make(self._stack))
        value: R = self._kept[1]
        return value

    def rest(self) -> None:
        """Release the context on the GPU, whose mode may allow only one process."""
        self.device.renew()

    def close(self) -> None:
        """Close the device and end its processes."""
        self._stack.close()
        self.device.close()


class GpuProcess(Protocol):
    """A process with a `GpuWorker`, on this host (`support.Worker`) or on another one."""

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        """Call a method of the `GpuWorker`.

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

    def run(self, task: GpuTask[R], tell: Callable[[str], None]) -> R:
        """Run a task and return its result, which is a failure if the process ends twice.

        Raises:
            HostLostError: the host was lost during the task.
            DeviceError: the GPU cannot be used.
            InputError: the task cannot be done on any GPU.
        """
        try:
            return self._try(task)
        except HostLostError:
            raise
        except (WorkerDiedError, WorkerTimeoutError) as error:
            tell(f"{task.title} is tried once more, because: {error}")
        try:
            return self._try(task)
        except HostLostError:
            raise
        except (WorkerDiedError, WorkerTimeoutError) as error:
            timeout = isinstance(error, WorkerTimeoutError)
            message = f"It was tried twice. {error}"
            return task.failed("timeout" if timeout else "runtime", message, self.uuid)

    def _try(self, task: GpuTask[R]) -> R:
        """Run a task in the process, which is replaced first if it has died meanwhile."""
        self._begun = True
        try:
            self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
        except WorkerDiedError:
            try:
                self._process.call("is_ready", timeout_s=_STARTS_WITHIN_S)
            except HostLostError as error:  # no task has begun, so none need be tried again
                raise DeviceError(str(error)) from error
        result: R = self._process.call("run", task, timeout_s=HANGS_AFTER_S)
        return result

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

    def start(self, turn: int, task: GpuTask[R]) -> Future[R]:
        """Give a task to a GPU and return its future result.

        If the search has to end, the future has the error that ends it.

        Args:
            turn: the number of the GPU, modulo the size of the team; if that GPU has been lost, the
                next one does the task.
            task: the task.
        """
        answer: Future[R] = Future()
        self._submit(turn, task, answer, is_retry=False)
        return answer

    def prepare(self, turn: int, kernels: Sequence[AnyKernel]) -> None:
        """Announce kernels to the GPU whose turn it is, see `start`."""
        self._next(turn).prepare(kernels)

    def leave(self, gpu: str, why: str) -> None:
        """Stop using the GPU with this UUID for a reason, which is a clause.

        Raises:
            DeviceError: it is the last GPU.
        """
        [member] = [member for member in self.members if member.uuid == gpu]
        self.lose(member, DeviceError(f"{member.title} cannot be used, because {why}."))

    def lose(self, member: Member, error: DeviceError) -> None:
        """Stop using a member after an error, unless it is the last one.

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

    def _next(self, turn: int) -> Member:
        """Return the member whose turn it is, or the next one that has not been lost."""
        place = turn % len(self.members)
        in_turn = (*self.members[place:], *self.members[:place])
        return next(member for member in in_turn if not member.lost)  # the last one never is

    def _submit(self, turn: int, task: GpuTask[R], answer: Future[R], *, is_retry: bool) -> None:
        member = self._next(turn)
        member.thread.submit(self._run, member, turn, task, answer, is_retry=is_retry)

    def _run(
        self, member: Member, turn: int, task: GpuTask[R], answer: Future[R], *, is_retry: bool
    ) -> None:
        """Run a task in a member's thread, for the second time if a host was lost with it."""
        try:
            answer.set_result(member.run(task, self._tell))
        except HostLostError as error:
            if is_retry:
                answer.set_result(task.failed("runtime", lost_twice(error), member.uuid))
            else:
                self._tell(f"{task.title} is tried once more, because: {error}")
                self._submit(self.members.index(member) + 1, task, answer, is_retry=True)
        except DeviceError as error:
            try:
                self.lose(member, error)
            except DeviceError:
                answer.set_exception(error)
            else:
                self._submit(turn, task, answer, is_retry=is_retry)
        except BaseException as error:
            answer.set_exception(error)


def lost_twice(error: DeviceError) -> str:
    """Return the sentence that says why something is not tried a third time."""
    return f"It was tried twice, and each time the host was lost. {error}"


@dataclass(frozen=True)
class ClaimedGpus:
    """The GPUs of a search on this host.

    Attributes:
        stations: the claimed GPUs, in the order in which they were named.
        team: the GPUs' own processes, which start when they are first needed.
    """

    stations: tuple[Station, ...]
    team: Team

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this process has opened."""
        return tuple(station.device for station in self.stations)


def claim_gpus(
    stack: ExitStack, gpus: str, settings: Settings, tell: Callable[[str], None], option: str
) -> ClaimedGpus:
    """Claim GPUs of one model, all with the same settings, until the stack is closed.

    Args:
        stack: releases the GPUs when the caller closes it.
        gpus: values of ``--gpu-device``, separated by commas.
        settings: the settings of all GPUs.
        tell: called with sentences for the user, from any thread.
        option: the option that gave the list, for messages.

    Raises:
        InputError: there is no such GPU, one is named twice, or they are of different models or
            under different power limits.
        DeviceError: one cannot be used or claimed.
    """
    names = gpu_names(gpus, option)
    devices = [stack.enter_context(open_device(gpu, index=index)) for gpu, index in names]
    _check_alike(f"{option} {gpus}", devices)
    stations = tuple(claim(stack, device, settings, tell) for device in devices)
    limits_w = [enforced_setpoint(device).power_limit_w for device in devices]
    if len(set(limits_w)) > 1:  # as --powercap current leaves them
        listed = " and ".join(f"{limit_w:g} W" for limit_w in limits_w if limit_w is not None)
        raise InputError(
            f"{option} {gpus} names GPUs under different power limits, {listed}, whose figures "
            "cannot be compared: give one limit with --powercap."
        )
    members = [
        Member(
            device.uuid,
            GpuWorker.process(device, *name),
        )
        for device, name in zip(devices, names, strict=True)
    ]
    return ClaimedGpus(stations, stack.enter_context(Team(members, tell)))


def gpu_names(gpus: str, option: str) -> list[tuple[str, int]]:
    """Return the arguments of `open_device` for each GPU of a list; ``emulated:h200x2`` is two.

    Raises:
        InputError: a name is not understood.
    """
    names = []
    for name in map(str.strip, gpus.split(",")):
        if not name:
            raise InputError(f"{option} {gpus!r} has an empty name: separate GPUs by one comma.")
        emulated = check_spec(name)
        count = 1 if emulated is None else emulated.count
        names += [(name, index) for index in range(count)]
    return names


def _check_alike(named: str, devices: Sequence[Device]) -> None:
    """Check that the GPUs are different ones of the same model."""
    uuids = [device.uuid for device in devices]
    if twice := next((uuid for uuid in uuids if uuids.count(uuid) > 1), None):
        raise InputError(
            f"{named} names {twice} twice: name each GPU once; two emulated ones are "
            "emulated:h200x2."
        )
    titles = [f"{'the emulated ' * device.emulated}{device.name}" for device in devices]
    if other := next((title for title in titles if title != titles[0]), None):
        raise InputError(
            f"{named} names {titles[0]} and {other}, whose figures cannot be compared: name GPUs "
            "of one model, and search on others into a folder of their own."
        )
