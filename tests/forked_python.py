"""Processes of Python that begin with what they need imported: a tenth of a usual start."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SERVER = """
import array, json, os, socket, sys
__channel = socket.socket(fileno=int(sys.argv[1]))
exec(sys.argv[2])
while True:
    __message, __files, *_ = socket.recv_fds(__channel, 1 << 18, 3)
    if not __message:
        os._exit(0)
    __asked = json.loads(__message)
    if "pid" in __asked:
        __status = os.waitstatus_to_exitcode(os.waitpid(__asked["pid"], 0)[1])
        __channel.send(b"%d" % __status)
        continue
    if __child := os.fork():
        for __file in __files:
            os.close(__file)
        __channel.send(b"%d" % __child)
        continue
    break
__channel.close()
for __number, __file in enumerate(__files):
    os.dup2(__file, __number)
    os.close(__file)
os.environ.clear()
os.environ.update(__asked["environment"])
os.chdir(__asked["folder"])
sys.argv = ["-c", *__asked["words"]]
exec(compile(__asked["code"], "<string>", "exec"))
sys.stdout.flush()
os._exit(0)  # to clear up takes longer than all the rest; an error or sys.exit() does it
"""


class Forked:
    """A process that `ForkedPython` has begun, with pipes as its input and output.

    Attributes:
        pid: its process ID.
    """

    def __init__(self, python: ForkedPython, code: str, words: tuple[str, ...]) -> None:
        read_input, self._input = os.pipe()
        self._output, write_output = os.pipe()
        self._python = python
        self._status: int | None = None
        try:
            self.pid = python.begin(code, words, (read_input, write_output, 2))
        finally:
            os.close(read_input)
            os.close(write_output)

    def read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self._output, 1)):
            line += byte
        return line.decode()

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = self._python.wait(self.pid)
        return self._status

    def end(self) -> int:
        """Close its input, and wait for it."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1
        return self.wait()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self._output)


class ForkedPython:
    """A Python that has run ``imports``, of which programs in processes of their own are forks."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def begin(
        self,
        code: str,
        words: tuple[str, ...],
        files: tuple[int, int, int],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Begin a program with these files as input, output and errors; return its process ID."""
        asked: dict[str, Any] = {
            "code": code,
            "words": words,
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
        }
        descriptors = array.array("i", files)
        self._channel.sendmsg(
            [json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        )
        return int(self._channel.recv(100))

    def wait(self, pid: int) -> int:
        self._channel.send(json.dumps({"pid": pid}).encode())
        return int(self._channel.recv(100))

    def start(self, code: str, *words: str) -> Forked:
        """Start a program that can be talked to."""
        return Forked(self, code, words)

    def run(
        self,
        code: str,
        *words: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        with (
            Path(os.devnull).open() as nothing,
            tempfile.TemporaryFile("w+") as output,
            tempfile.TemporaryFile("w+") as errors,
        ):
            files = (nothing.fileno(), output.fileno(), errors.fileno())
            pid = self.begin(code, words, files, folder=folder, environment=environment)
            status = self.wait(pid)
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(code, status, output.read(), errors.read())


@contextmanager
def open_forked_python(imports: str, **environment: str) -> Iterator[ForkedPython]:
    """Start a `ForkedPython`, which ends with the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, "-c", _SERVER, str(theirs.fileno()), imports]
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, **environment}
            )
        yield ForkedPython(ours)
    assert process.wait(60) == 0
