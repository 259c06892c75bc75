"""Gives a search a GPU on another host, whose process it reaches through a command's pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from pytest_gpuenergy.engine import HostLostError
from pytest_gpuenergy.fleet.commands import BOOTSTRAP, failure_reason, package_environment
from pytest_gpuenergy.fleet.gpu_messages import (
    BEAT,
    INPUTS,
    MARK,
    PREPARE,
    RESULTS,
    Answer,
    Beaten,
    Failed,
    Message,
    Ready,
    Started,
    Told,
    Unfit,
    framed_request,
)
from pytest_gpuenergy.fleet.heartbeat import PATIENCE, Beat, Watch
from pytest_gpuenergy.fleet.slots import SLURM_PLACE, Slot
from pytest_gpuenergy.fleet.spec import SILENCE_S
from pytest_gpuenergy.kernels import AnyKernel, Kernel
from pytest_gpuenergy.support import DeviceError, FormError, WorkerTimeoutError, convert, decode
from pytest_gpuenergy.tuning import Measured, RemoteDevice, TimingTask
from pytest_gpuenergy.workloads import Workload

ENDS_WITHIN_S = 10.0
"""The time that a process has to restore the settings of its GPU."""

_TAIL_BYTES = 2000
_PIECE_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 1 << 20
"""The longest line of an answer, which has the evaluation of a candidate."""


class _Connection:
    """A command that starts a process on another host, and the pipes to that process.

    Attributes:
        messages: The messages of the process; None at their end.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.messages: SimpleQueue[Message | None] = SimpleQueue()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as this object
        self._words = self._problem = ""
        self._beat: Beat | None = None
        self._watch: Watch | None = None
        self._writing, self._ending = threading.Lock(), threading.Lock()
        try:
            self._process = subprocess.Popen(
                [*command, "-u", "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=package_environment(),
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the search to handle
            )
        except OSError as error:
            self._log.close()
            raise DeviceError(f"{command[0]} cannot be started: {error.strerror}.") from None
        threading.Thread(target=self._listen, daemon=True).start()

    def write_line(self, text: str) -> None:
        """Have the interpreter run a line of Python.

        Raises:
            OSError: The interpreter has ended.
        """
        self.write(f"{text!r}\n".encode())

    def write(self, data: bytes, file: Any = None) -> None:
        """Send bytes, and then the contents of a file.

        Raises:
            OSError: the process has ended.
        """
        stream = self._process.stdin
        assert stream is not None
        with self._writing:
            if stream.closed:
                raise BrokenPipeError
            while data:
                rest = memoryview(data)
                while rest:
                    rest = rest[stream.write(rest) :]
                data = b"" if file is None else file.read(_PIECE_BYTES)

    def watch(self, silence_s: float) -> None:
        """Send beats to the process, and kill its command if it does not answer."""
        allowed_s = PATIENCE * silence_s

        def give_up() -> None:
            self._problem = f"it has not answered for {allowed_s:g} s."
            self._kill(signal.SIGKILL)

        self._watch = Watch(give_up, allowed_s)
        self._watch.start()
        self._beat = Beat(lambda: self.write(framed_request((BEAT, ()))), silence_s)
        self._beat.start()

    def end(self, *, patience_s: float = ENDS_WITHIN_S) -> None:
        """Wait until the process ends by itself; terminate the command otherwise. Idempotent."""
        with self._ending:
            if not self._log.closed:
                self._end(patience_s)
                descriptor = self._log.fileno()
                start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
                errors = os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
                code = self._process.poll()
                self._words = failure_reason(errors) or f"its command ended with exit code {code}."
                self._log.close()

    def last_words(self) -> str:
        """Return why the process has ended, or what the command last printed as an error."""
        return self._problem or self._words

    def _end(self, patience_s: float) -> None:
        if self._beat is not None and self._watch is not None:
            self._beat.stop()
            self._watch.stop()
        # A write to a host that does not answer may hold the lock for long.
        if self._writing.acquire(timeout=1.0):
            try:
                assert self._process.stdin is not None
                self._process.stdin.close()
            finally:
                self._writing.release()
            if self._has_ended(patience_s):
                return
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._kill(number)
            if self._has_ended(ENDS_WITHIN_S):
                return

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=within_s)
        return self._process.poll() is not None

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream, contextlib.suppress(OSError):
            try:
                for content in _marked_lines(stream):
                    # decode takes a class, as far as mypy knows; msgspec takes a union as well.
                    message: Message = decode(content, Message, "the answer")  # type: ignore[arg-type]
                    if self._watch is not None:
                        self._watch.heard()
                    if not isinstance(message, Beaten):
                        self.messages.put(message)
            except FormError as error:
                self._problem = f"its answer cannot be read: {error}."
        self.messages.put(None)


def _marked_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what follows the mark in the lines that have it."""
    rest = b""
    while piece := stream.read(_PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _, mark, content = line.partition(MARK)
            if mark:
                yield content
        rest = rest[-_MAX_ANSWER_BYTES:]


MAX_LOSSES = 4
"""The number of losses after which a GPU is not used any more."""

_SERVER = "from pytest_gpuenergy.fleet.gpu_server import serve;serve()"
_GRACE_S = 60.0
"""The time that an answer may take beyond its timeout, after which the other host gives up."""


class RemoteGpu:
    """A GPU on another host, see `engine.team.GpuProcess`; a call is sent with its files.

    Args:
        slot: The slot of the GPU.
        first_request: The first request to `gpu_server.serve`.
        wait_s: The longest time that its process may take to start.
        tell: Called with sentences for the user, from any thread.
        silence_s: The time after which its process ends if it hears nothing from this one.

    Attributes:
        station: The description of the GPU when it was last claimed.
        losses: The reason of each loss.
        moved: Called with the UUID of the GPU by which Ray or Slurm replaces a lost one.
    """

    def __init__(
        self,
        slot: Slot,
        first_request: Mapping[str, Any],
        wait_s: float,
        tell: Callable[[str], None],
        silence_s: float = SILENCE_S,
    ) -> None:
        self.station: Started | None = None
        self.losses: list[str] = []
        self.moved: Callable[[str], None] = lambda _: None
        self._slot = slot
        self._first_request = {**first_request, "silence_s": silence_s}
        self._wait_s = wait_s
        self._silence_s = silence_s
        self._tell = tell
        self._calling = threading.Lock()
        self._connection: _Connection | None = None
        self._inputs: Path | None = None
        self._retired = False

    @property
    def host(self) -> str:
        """The name of the host for the user; if Slurm chose the host, its own name."""
        if self.station is not None and self._slot.host == SLURM_PLACE:
            return self.station.host
        return self._slot.host

    @property
    def title(self) -> str:
        """The name of the GPU for the user."""
        return self.host if self.station is None else f"{self.host} ({self.station.uuid})"

    @property
    def claimed(self) -> Started:
        """The description of the GPU, which has been started, when it was last claimed."""
        assert self.station is not None
        return self.station

    def device(self) -> RemoteDevice:
        """Return the description of the GPU for search spaces and logs."""
        claimed = self.claimed
        return RemoteDevice(
            claimed.name,
            claimed.uuid,
            claimed.architecture,
            emulated=claimed.emulated,
            versions=claimed.versions,
            cores=claimed.cores,
            enforced=claimed.setpoint,
            energy_mj=self.energy_mj,
        )

    def start(self) -> None:
        """Start the process of the GPU, which claims it.

        Raises:
            DeviceError: The GPU cannot be reached or used.
        """
        with self._calling:
            self._reach()

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        wait_s = None if timeout_s is None else timeout_s + _GRACE_S
        with self._calling:
            connection = self._reach()
            try:
                if method == "run":
                    (task,) = args
                    assert isinstance(task, TimingTask)
                    self._send_inputs(connection, task.inputs)
                    args = (task, timeout_s)
                connection.write(framed_request((method, args)))
                answer = self._next(connection, wait_s)
                if answer is None:
                    raise WorkerTimeoutError(
                        f"{self.title} did not answer {method} within {wait_s:g} s."
                    )
            except (OSError, EOFError):
                raise self._lost() from None
            except BaseException:
                self._drop()  # the answer to an interrupted call is still to come
                raise
        if isinstance(answer, Failed):
            raise answer.error()
        assert isinstance(answer, Answer)
        try:
            return convert(answer.value, RESULTS[method], "the answer")
        except FormError as error:
            raise DeviceError(f"{self.title}: its answer cannot be read: {error}.") from None

    def _send_inputs(self, connection: _Connection, inputs: Path) -> None:
        """Send the file of a task's inputs, unless the other host has it from the last task."""
        if inputs != self._inputs:
            with inputs.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                connection.write(framed_request((INPUTS, (inputs.name, size))), file)
            self._inputs = inputs

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Have the other host compile kernels as soon as possible."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):  # the next call will notice the loss
                connection.write(framed_request((PREPARE, (list(kernels),))))

    def confirm(self, kernel: Kernel, workload: Workload, *, energy: bool) -> Measured | None:
        """See `tuning.Confirm`."""
        measured: Measured | None = self.call("confirm", kernel, workload, energy)
        return measured

    def energy_mj(self) -> float | None:
        """Return the reading of the energy counter; None if there is none, or the GPU is lost."""
        if self._connection is None:
            return None
        try:
            reading_mj: float | None = self.call("energy_mj", timeout_s=_GRACE_S)
        except DeviceError:
            return None
        return reading_mj

    def retire(self) -> None:
        self._retired = True
        connection = self._connection
        if connection is not None:
            connection.end()

    def _reach(self) -> _Connection:
        """Return the connection to the process, which is started if there is none."""
        if self._connection is not None:
            return self._connection
        if self._retired:
            raise DeviceError(f"{self.title} is not used any more.")
        if len(self.losses) > MAX_LOSSES:
            raise DeviceError(f"{self.title} was lost {len(self.losses)} times.")
        connection = self._connection = _Connection(self._slot.command)
        try:
            if self._retired:  # meanwhile
                raise DeviceError(f"{self.title} is not used any more.")
            station = self._begin(connection)
        except (OSError, EOFError):
            raise DeviceError(f"{self.title}: {self._end_reason(connection)}") from None
        except BaseException:
            self._drop(patience_s=0.0)
            raise
        if self.station is not None and self.station.uuid != station.uuid:
            self.moved(station.uuid)
        self.station = station
        return connection

    def _begin(self, connection: _Connection) -> Started:
        deadline_s = time.monotonic() + self._wait_s
        connection.write_line(_SERVER)
        for step in range(2):
            message = self._next(connection, deadline_s - time.monotonic())
            if message is None:
                raise DeviceError(
                    f"{self.title}: no process started within {self._wait_s:g} s (wait=SECONDS "
                    "allows more)."
                )
            if step == 0 and isinstance(message, Ready):
                connection.write(framed_request(("begin", (self._first_request,))))
                connection.watch(self._silence_s)
            elif isinstance(message, Unfit):
                raise DeviceError(f"{self.title}: {message.reason}")
            elif not isinstance(message, Started):
                raise DeviceError(f"{self.title}: its answer is not understood.")
        assert isinstance(message, Started)
        if self._slot.uuid not in (None, message.uuid):
            raise DeviceError(f"{self._slot.host}: its GPU {self._slot.uuid} is gone.")
        if self.station is not None and self.station.kind != message.kind:
            raise DeviceError(
                f"{self.title}: in its place came one whose figures cannot be compared, "
                f"{message.name} at {message.setpoint.label}."
            )
        return message

    def _next(self, connection: _Connection, wait_s: float | None) -> Message | None:
        """Return the next message that is not for the user; None if none comes in time.

        Raises:
            EOFError: The process has ended.
        """
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                message = connection.messages.get(timeout=left_s)
            except Empty:
                return None
            if message is None:
                raise EOFError
            if not isinstance(message, Told):
                return message
            self._tell(f"{self.title}: {message.sentence}")

    def _lost(self) -> HostLostError:
        assert self._connection is not None
        reason = f"{self.title} was lost: {self._end_reason(self._connection)}"
        if not self._retired:
            self.losses.append(reason)
        return HostLostError(reason)

    def _end_reason(self, connection: _Connection) -> str:
        """Return why the process has ended, as far as its command has printed it."""
        self._drop()
        return connection.last_words()

    def _drop(self, patience_s: float = ENDS_WITHIN_S) -> None:
        """End the process unless it has ended."""
        connection, self._connection, self._inputs = self._connection, None, None
        if connection is not None:
            connection.end(patience_s=patience_s)
