"""The process of a compiled kernel on the host: its input, its answers and how it ends."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from pytest_gpuenergy.devices.emulated import sandbox
from pytest_gpuenergy.devices.emulated.arithmetic import unmarked
from pytest_gpuenergy.devices.emulated.timing.plan import write_runs
from pytest_gpuenergy.support.errors import KernelFault, Outcome

_OUTCOMES: dict[str, Outcome] = {
    "correctness": "correctness",
    "runtime": "runtime",
    "timeout": "timeout",
    "constraints": "constraints",
}
_RAN = re.compile(rb"^ran (\d{1,18}) (\d{1,9}\.\d{6})\n", re.MULTILINE)
_ANSWER_BYTES = 1 << 16
_PRINTED_BYTES = 2 << 20
_ASKED = 8
"""How often a program may be asked to run; each time it may use up the whole timeout."""


class Program:
    """A compiled kernel in a process with limits, where it can do no harm.

    Args:
        path: of the program.
        files: open descriptors of its tensors, see `write_plan`.
        entry: name of the kernel in messages.
        address_bytes: limit of its address space.
        timeout_s: limit for each answer.
    """

    def __init__(
        self, path: Path, files: Iterable[int], *, entry: str, address_bytes: int, timeout_s: float
    ) -> None:
        self._entry = entry
        self._timeout_s = timeout_s
        limits = [str(_ASKED * (math.ceil(timeout_s) + 1)), str(address_bytes)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", sandbox.__file__, *limits, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=list(files),
            env={"LC_ALL": "C"},
            start_new_session=True,
        )
        self._answers, self._printed = bytearray(), bytearray()
        self._open = [self._stream("stdout"), self._stream("stderr")]

    def tell(self, text: str) -> None:
        """Send the plan or a line of `write_runs`; if the program has ended, `run` reports it."""
        with contextlib.suppress(BrokenPipeError):
            stdin = self._stream("stdin")
            stdin.write(text.encode())
            stdin.flush()

    def run(
        self, *, order_seed: int = 0, fresh: bool = True, most: int = 1, budget_s: float = 0.0
    ) -> tuple[int, float]:
        """Run the plan, see `write_runs`.

        Returns:
            The number of runs, and their processor time in s.

        Raises:
            KernelFault: it failed, and the program has ended.
        """
        self._answers.clear()
        self.tell(write_runs(order_seed=order_seed, fresh=fresh, most=most, budget_s=budget_s))
        self._read(lambda: self._ran() is not None)
        if (ran := self._ran()) is None:
            self._judge()
            raise KernelFault("runtime", "The kernel ended its process with exit code 0.")
        return int(ran[1]), float(ran[2])

    def finish(self) -> list[str]:
        """Let the program end, and return the last lines of its answers.

        Raises:
            KernelFault: it failed.
        """
        with contextlib.suppress(BrokenPipeError):
            self._stream("stdin").close()
        self._read(lambda: False)
        return self._judge()

    def close(self) -> None:
        """End it immediately, and pass on what it has printed."""
        self.kill()
        sys.stderr.write(self._printed.decode(errors="replace"))

    def kill(self) -> None:
        """End it immediately. Idempotent."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] | None = getattr(self._process, name)
        assert stream is not None
        return stream

    def _ran(self) -> re.Match[bytes] | None:
        """The answer to the latest `run`, once its line is complete."""
        return _RAN.search(self._answers)

    def _read(self, until: Callable[[], bool]) -> None:
        """Read both streams until ``until`` holds, or to their ends.

        Raises:
            KernelFault: it took too long, and has been ended.
        """
        deadline_s = time.monotonic() + self._timeout_s
        in_time = True
        with selectors.DefaultSelector() as selector:
            for stream in self._open:
                selector.register(stream, selectors.EVENT_READ)
            while in_time and self._open and not until():
                ready = selector.select(max(0.0, deadline_s - time.monotonic()))
                for key, _ in ready:
                    if piece := os.read(key.fd, 1 << 16):
                        self._take(key.fd, piece)
                    else:
                        selector.unregister(key.fileobj)
                        self._open = [one for one in self._open if one is not key.fileobj]
                in_time = bool(ready) and time.monotonic() < deadline_s
        if in_time and not self._open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, deadline_s - time.monotonic()))
            in_time = self._process.returncode is not None
        if not in_time:
            self.kill()
            raise KernelFault(
                "timeout", f"{self._entry} did not finish within {self._timeout_s:g} s."
            )

    def _take(self, descriptor: int, piece: bytes) -> None:
        """Keep what was read up to a limit, and drop the rest: the program must not be blocked."""
        if descriptor == self._stream("stdout").fileno():
            self._answers += piece
            del self._answers[:-_ANSWER_BYTES]
        else:
            self._printed += piece[: max(0, _PRINTED_BYTES - len(self._printed))]

    def _judge(self) -> list[str]:
        answers, code = self._answers.decode(errors="replace").splitlines(), self._process.poll()
        last = answers[-1] if answers else ""
        if code == 0 and last == "done":
            return answers
        if last.startswith("fault "):
            _, word, message = last.split(" ", 2)
            raise KernelFault(_OUTCOMES.get(word, "runtime"), unmarked(message))
        if code is not None and code < 0:
            raise KernelFault("runtime", f"The kernel was ended by {signal.Signals(-code).name}.")
        tail = self._printed.decode(errors="replace").strip().splitlines()
        raise KernelFault(
            "runtime",
            f"The kernel ended its process with exit code {code}{': ' + tail[-1] if tail else ''}.",
        )
