"""The process of a GPU on another host, as a search has it: reached through a command's pipes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import Any

from pytest_gpuenergy.engine import HostLostError
from pytest_gpuenergy.fleet.gpu_line import ENDS_WITHIN_S, Line
from pytest_gpuenergy.fleet.gpu_messages import (
    INPUTS,
    PREPARE,
    Confirmed,
    Done,
    Evaluated,
    Failed,
    Message,
    Read,
    Ready,
    Started,
    Told,
    Unfit,
    framed,
)
from pytest_gpuenergy.fleet.hosts import SLURM_PLACE, Seat
from pytest_gpuenergy.fleet.spec import SILENCE_S
from pytest_gpuenergy.kernels import AnyKernel, Kernel
from pytest_gpuenergy.support import DeviceError, WorkerTimeoutError
from pytest_gpuenergy.tuning import Measured, TimingTask
from pytest_gpuenergy.workloads import Workload

MOST_LOSSES = 4
"""A GPU that has been lost more often is not used any more."""

_FAR = "from pytest_gpuenergy.fleet.far_gpu import serve;serve()"
_GRACE_S = 60.0
"""By which an answer may come later than the process there should have given up."""


class RemoteGpu:
    """See `engine.team.GpuProcess`; what a call needs of files is sent with it.

    Args:
        seat: where the GPU is.
        asked: what `far_gpu.serve` receives.
        wait_s: how long it may take to start.
        tell: called with sentences, from any thread.
        silence_s: how long the process there goes on without a sign of this one.

    Attributes:
        station: the GPU, as it was when it was last claimed.
        losses: why it was lost, each time.
        moved: called with the UUID of the GPU that Ray or Slurm gives in the place of a lost one.
    """

    def __init__(
        self,
        seat: Seat,
        asked: Mapping[str, Any],
        wait_s: float,
        tell: Callable[[str], None],
        silence_s: float = SILENCE_S,
    ) -> None:
        self.station: Started | None = None
        self.losses: list[str] = []
        self.moved: Callable[[str], None] = lambda _: None
        self._seat = seat
        self._asked = {**asked, "silence_s": silence_s}
        self._wait_s = wait_s
        self._silence_s = silence_s
        self._tell = tell
        self._calling = threading.Lock()
        self._line: Line | None = None
        self._inputs: Path | None = None
        self._retired = False

    @property
    def host(self) -> str:
        """What the user calls its host; where Slurm has chosen it, how it calls itself."""
        if self.station is not None and self._seat.host == SLURM_PLACE:
            return self.station.host
        return self._seat.host

    @property
    def title(self) -> str:
        """What to call it."""
        return self.host if self.station is None else f"{self.host} ({self.station.uuid})"

    def start(self) -> Started:
        """Reach the GPU and have it claimed.

        Raises:
            DeviceError: it cannot be reached, or not be used.
        """
        with self._calling:
            self._reach()
        assert self.station is not None
        return self.station

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        with self._calling:
            line = self._reach()
            try:
                if method == "evaluate":
                    (task,) = args
                    assert isinstance(task, TimingTask)
                    self._send_inputs(line, task.inputs)
                    args = (task, timeout_s)
                line.write(framed((method, args)))
                answer = self._answer(line, method, timeout_s)
            except WorkerTimeoutError:
                raise
            except (OSError, EOFError):
                raise self._lost() from None
            except BaseException:
                self._drop()  # an interrupted call leaves a stray answer in the pipe
                raise
        if isinstance(answer, Failed):
            raise answer.error()
        assert isinstance(answer, Done | Evaluated | Confirmed | Read)
        return answer.value

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        """Have kernels compiled there, as soon as possible."""
        line = self._line
        if line is not None:
            with contextlib.suppress(OSError):  # who needs them will see that it is lost
                line.write(framed((PREPARE, (list(kernels),))))

    def confirm(self, kernel: Kernel, workload: Workload, *, energy: bool) -> Measured | None:
        """See `tuning.confirm`.

        Raises:
            KernelFault: the kernel fails.
            HostLostError: the host is lost.
            DeviceError: the GPU cannot be used.
        """
        found: Measured | None = self.call("confirm", kernel, workload, energy)
        return found

    def energy_mj(self) -> float | None:
        """What its energy counter reads; None if it has none, or is lost."""
        if self._line is None:
            return None
        try:
            found: float | None = self.call("energy_mj", timeout_s=_GRACE_S)
        except DeviceError:
            return None
        return found

    def retire(self) -> None:
        self._retired = True
        line = self._line
        if line is not None:
            line.end()

    def _reach(self) -> Line:
        """The line to the process there, which is started if there is none."""
        if self._line is not None:
            return self._line
        if self._retired:
            raise DeviceError(f"{self.title} is not used any more.")
        if len(self.losses) > MOST_LOSSES:
            raise DeviceError(f"{self.title} was lost {len(self.losses)} times.")
        line = self._line = Line(self._seat.command)
        try:
            if self._retired:  # meanwhile
                raise DeviceError(f"{self.title} is not used any more.")
            station = self._begin(line)
        except (OSError, EOFError):
            raise DeviceError(f"{self.title}: {self._ended(line)}") from None
        except BaseException:
            self._drop(patience_s=0.0)
            raise
        if self.station is not None and self.station.uuid != station.uuid:
            self.moved(station.uuid)
        self.station = station
        return line

    def _begin(self, line: Line) -> Started:
        deadline_s = time.monotonic() + self._wait_s
        line.write_line(_FAR)
        for step in range(2):
            message = self._next(line, deadline_s - time.monotonic())
            if message is None:
                raise DeviceError(
                    f"{self.title}: no process started within {self._wait_s:g} s (wait=SECONDS "
                    "allows more)."
                )
            if step == 0 and isinstance(message, Ready):
                line.write(framed(("begin", (self._asked,))))
                line.watch(self._silence_s)
            elif isinstance(message, Unfit):
                raise DeviceError(f"{self.title}: {message.reason}")
            elif not isinstance(message, Started):
                raise DeviceError(f"{self.title}: its answer is not understood.")
        assert isinstance(message, Started)
        if self._seat.uuid not in (None, message.uuid):
            raise DeviceError(f"{self._seat.host}: its GPU {self._seat.uuid} is gone.")
        if self.station is not None and self.station.kind != message.kind:
            raise DeviceError(
                f"{self.title}: in its place came one whose figures cannot be compared, "
                f"{message.name} at {message.setpoint.label}."
            )
        return message

    def _answer(self, line: Line, method: str, timeout_s: float | None) -> Message:
        wait_s = None if timeout_s is None else timeout_s + _GRACE_S
        message = self._next(line, wait_s)
        if message is None:
            self._drop()
            raise WorkerTimeoutError(f"{self.title} did not answer {method} within {wait_s:g} s.")
        return message

    def _next(self, line: Line, wait_s: float | None) -> Message | None:
        """The next message that is not for the user alone; None if there is none in time.

        Raises:
            EOFError: the process has ended.
        """
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                message = line.messages.get(timeout=left_s)
            except Empty:
                return None
            if message is None:
                raise EOFError
            if not isinstance(message, Told):
                return message
            self._tell(f"{self.title}: {message.sentence}")

    def _send_inputs(self, line: Line, path: Path) -> None:
        if path == self._inputs:
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            line.write(framed((INPUTS, (path.name, size))), file)
        self._inputs = path

    def _lost(self) -> HostLostError:
        assert self._line is not None
        reason = f"{self.title} was lost: {self._ended(self._line)}"
        if not self._retired:
            self.losses.append(reason)
        return HostLostError(reason)

    def _ended(self, line: Line) -> str:
        """Why the process has ended, so far as its command says."""
        self._drop()
        return line.last_words()

    def _drop(self, patience_s: float = ENDS_WITHIN_S) -> None:
        """End the process, if it has not ended."""
        line, self._line, self._inputs = self._line, None, None
        if line is not None:
            line.end(patience_s=patience_s)
