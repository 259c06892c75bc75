"""A command that starts a process beside a GPU elsewhere, and the pipes to that process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any

from pytest_gpuenergy.fleet.commands import BOOTSTRAP, package_environment
from pytest_gpuenergy.fleet.complaints import reason_in
from pytest_gpuenergy.fleet.gpu_messages import BEAT, MARK, Beaten, Message, framed
from pytest_gpuenergy.fleet.pulse import PATIENCE, Beat, Watch
from pytest_gpuenergy.support import DeviceError, FormError, decode

ENDS_WITHIN_S = 10.0
"""For a process to restore the settings of its GPU."""

_TAIL_BYTES = 2000
_PIECE_BYTES = 1 << 20
_LONGEST_BYTES = 1 << 20
"""Of a line from there, which says how one candidate did."""


class Line:
    """A command that starts a process elsewhere, and the pipes to that.

    Attributes:
        messages: from there; None at their end.
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
        """Have the interpreter run a line.

        Raises:
            OSError: it has ended.
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
        """Let the process know that this one lives, and end the command if it is silent."""
        allowed_s = PATIENCE * silence_s

        def give_up() -> None:
            self._problem = f"it has not answered for {allowed_s:g} s."
            self._kill(signal.SIGKILL)

        self._watch = Watch(give_up, allowed_s)
        self._watch.start()
        self._beat = Beat(lambda: self.write(framed((BEAT, ()))), silence_s)
        self._beat.start()

    def end(self, *, patience_s: float = ENDS_WITHIN_S) -> None:
        """Let the process end by itself, which takes it a moment; end the command if it does not.

        Idempotent.
        """
        with self._ending:
            if not self._log.closed:
                self._end(patience_s)
                self._words = self._read_words()
                self._log.close()

    def last_words(self) -> str:
        """Once it has ended: why, or what the command printed last to its standard error."""
        return self._problem or self._words

    def _end(self, patience_s: float) -> None:
        if self._beat is not None and self._watch is not None:
            self._beat.stop()
            self._watch.stop()
        # Whoever is writing to a host that does not answer would wait for long.
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

    def _read_words(self) -> str:
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
        said = os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
        code = self._process.poll()
        return reason_in(said) or f"its command ended with exit code {code}."

    def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=within_s)
        return self._process.poll() is not None

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream, contextlib.suppress(OSError):
            try:
                for content in _marked(stream):
                    message: Message = decode(content, Message, "the answer")  # type: ignore[arg-type]
                    if self._watch is not None:
                        self._watch.heard()
                    if not isinstance(message, Beaten):
                        self.messages.put(message)
            except FormError as error:
                self._problem = f"its answer cannot be read: {error}."
        self.messages.put(None)


def _marked(stream: IO[bytes]) -> Iterator[bytes]:
    """What follows the mark in the lines that have it."""
    rest = b""
    while piece := stream.read(_PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _, mark, content = line.partition(MARK)
            if mark:
                yield content
        rest = rest[-_LONGEST_BYTES:]
