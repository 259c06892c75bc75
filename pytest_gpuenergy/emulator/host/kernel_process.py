"""The process of a compiled kernel on the host: its input, its answers and how it ends."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from pytest_gpuenergy.devices import Threshold
from pytest_gpuenergy.emulator.host.host_protocol import ProcessAnswers, shown
from pytest_gpuenergy.support import DeviceError, KernelFault, compiled_variable, signal_name

_PRINTED_BYTES = 2 << 20  # the most that is kept of what a kernel prints
_KEPT: ContextVar[list[str] | None] = ContextVar("_KEPT", default=None)
_MOST_RUNS = 8
"""The number of runs of one process that may each use up the whole timeout."""


@contextlib.contextmanager
def printing_kept() -> Iterator[list[str]]:
    """Add what kernels of this thread print to a list, instead of passing it on."""
    kept: list[str] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


class KernelProcess:
    """A compiled kernel in a process with limits, where it can do no harm.

    Args:
        path: the path of the program.
        files: the open descriptors of its tensors, see `write_plan`.
        sandbox: the path of the program that starts it, see sandbox.cpp.
        readable: the files and folders that it may read.
        entry: the name of the kernel in messages.
        address_bytes: the limit of its address space.
        timeout_s: the limit for each answer.

    Raises:
        DeviceError: ``sandbox`` cannot be started.
    """

    def __init__(
        self,
        path: Path,
        files: Iterable[int],
        *,
        sandbox: Path,
        readable: Iterable[str],
        entry: str,
        address_bytes: int,
        timeout_s: float,
    ) -> None:
        self._timeout_s = timeout_s
        limits = [str(_MOST_RUNS * (math.ceil(timeout_s) + 1)), str(address_bytes)]
        try:
            self._process = subprocess.Popen(
                [sandbox, *limits, path, *readable],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=list(files),
                env={"LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceError(
                f"{sandbox} cannot be started ({error.strerror}): was the cache cleared, or is it "
                "on a file system whose programs may not run? Start again, or set "
                f"{compiled_variable()}."
            ) from None
        self._answers = ProcessAnswers(entry)
        self._unsent, self._printed = bytearray(), bytearray()
        self._open = [self._stream("stdout"), self._stream("stderr")]
        os.set_blocking(self._stream("stdin").fileno(), False)

    def tell(self, text: str) -> None:
        """Queue the plan or a request for runs; it is sent when its answer is read."""
        self._unsent += f"{self._answers.ask()} {text}".encode()

    def run(
        self,
        *,
        order_seed: int = 0,
        fresh: bool = True,
        most: int = 1,
        budget_s: float = 0.0,
        stride: int = 1,
    ) -> tuple[int, float]:
        """Run the plan.

        Args:
            order_seed: the order of threads and blocks: 0 ascending, 1 descending, any other
                shuffled.
            fresh: whether workspaces are poisoned again instead of left as they are.
            most: the greatest number of runs.
            budget_s: the processor time after which no further run begins.
            stride: the distance between blocks that run; 1 runs all of them.

        Returns:
            The number of runs and their processor time in seconds.

        Raises:
            KernelFault: the run failed, and the process has ended.
        """
        began_s = time.monotonic()
        self.tell(f"{order_seed % 2**64} {int(fresh)} {most} {budget_s!r} {stride}\n")
        self._exchange_until(lambda: self._answers.has_begun)
        if not self._answers.has_begun:
            raise self._end_fault()
        elapsed_s = time.monotonic() - began_s
        return self._answers.runs(most=most, budget_s=budget_s, elapsed_s=elapsed_s)

    @property
    def compared(self) -> Collection[Threshold]:
        """The numbers with which the runs so far compared, if they were inspected."""
        return [Threshold(float(word[1:]), word[0] == "f") for word in self._answers.compared]

    @property
    def unread(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """The bytes of each input that no inspected run has read, see `Loaded.unread`."""
        return self._answers.unread

    def finish(self) -> list[str]:
        """Let the process end and return the profiles among its answers.

        Raises:
            KernelFault: the process failed.
        """
        self._exchange_until(lambda: not self._unsent)
        self._stream("stdin").close()
        self._exchange_until(lambda: False)
        profiles = self._answers.profiles()
        if profiles is None or self._process.returncode != 0:
            raise self._end_fault()
        return profiles

    def close(self) -> None:
        """End the process immediately and pass on what it has printed."""
        self.kill()
        printed = self._printed.decode(errors="replace")
        if (kept := _KEPT.get()) is None:
            sys.stderr.write(printed)
        else:
            kept.append(printed)

    def end(self) -> None:
        """End the process from any thread; the one that uses it finds it dead. Idempotent."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process immediately, in the thread that uses it. Idempotent."""
        self.end()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] | None = getattr(self._process, name)
        assert stream is not None
        return stream

    def _exchange_until(self, until: Callable[[], bool]) -> None:
        """Send what is unsent and read both streams until ``until`` holds, or to their ends.

        If that takes too long, or the kernel answers in place of its runtime, the process is ended.

        Raises:
            KernelFault: the exchange took too long, or the kernel answered in place of its runtime;
                the process has been ended.
        """
        deadline_s = time.monotonic() + self._timeout_s
        in_time = True
        with selectors.DefaultSelector() as selector:
            for stream in self._open:
                selector.register(stream, selectors.EVENT_READ)
            if self._unsent:
                selector.register(self._stream("stdin"), selectors.EVENT_WRITE)
            while in_time and self._open and not until():
                ready = selector.select(max(0.0, deadline_s - time.monotonic()))
                for key, events in ready:
                    if not (self._send() if events & selectors.EVENT_WRITE else self._read(key.fd)):
                        selector.unregister(key.fileobj)
                in_time = bool(ready) and time.monotonic() < deadline_s
        if in_time and not self._open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, deadline_s - time.monotonic()))
            in_time = self._process.returncode is not None
        if not in_time:
            self.kill()
            raise self._answers.timeout_fault(self._timeout_s)

    def _send(self) -> bool:
        """Send a piece of what is unsent; return whether anything is left."""
        try:
            del self._unsent[: os.write(self._stream("stdin").fileno(), self._unsent)]
        except BrokenPipeError:  # the process has ended; reading shows how
            self._unsent.clear()
        return bool(self._unsent)

    def _read(self, descriptor: int) -> bool:
        """Read a piece of a stream; return whether there may be more."""
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            self._open = [stream for stream in self._open if stream.fileno() != descriptor]
        elif descriptor == self._stream("stdout").fileno():
            try:
                self._answers.take(piece)
            except KernelFault:
                self.kill()
                raise
        else:  # drop the rest, since the process must not be blocked
            self._printed += piece[: max(0, _PRINTED_BYTES - len(self._printed))]
        return bool(piece)

    def _end_fault(self) -> KernelFault:
        """Return the fault of a process that ended without an answer."""
        code = self._process.poll()
        if code is not None and code < 0:
            return KernelFault("runtime", f"The kernel was ended by {signal_name(-code)}.")
        tail = self._printed.decode(errors="replace").strip().splitlines()
        return KernelFault(
            "runtime",
            f"The kernel ended its process with exit code {code}"
            f"{': ' + shown(tail[-1]) if tail else ''}.",
        )
