"""Starts Python programs as forks of a process that has run pytest, in a tenth of the time.

`WarmPython.command` is used in place of `sys.executable`. It hands its words, its environment, its
folder and its input and output to a server, which forks; it passes signals on, ends as the fork
does, and a fork is killed if its command is. What differs: a fork has another parent and process
group, so that programs that are interrupted from a terminal, or ask for their parent, need
`sys.executable`.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMMAND = """#!{python} -ISB
import json, os, signal, socket, sys
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect({address!r})
asked = {{"words": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(channel, [json.dumps(asked).encode()], [0, 1, 2])
if pid := int(channel.recv(100) or 0):
    for number in {signals}:
        signal.signal(number, lambda number, _: os.kill(pid, number))
status = int(channel.recv(100) or 1)
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
_CODE = """
import sys
sys.path[0] = {folder!r}
from warm_python import serve
sys.path[0] = ""
serve({address!r}, int(sys.argv[1]), {warm_up!r}, {command!r})
"""


@contextmanager
def warm_python(folder: Path, project: Path) -> Iterator[Path]:
    """Yield a command that does what Python does, for programs that run pytest.

    Args:
        folder: an empty folder, for the command and the address of its server.
        project: a folder with a project whose tests the server runs first, for what they import.
    """
    command, address = folder / "python", str(folder / "server")
    signals = tuple(map(int, PASSED_ON))
    text = _COMMAND.format(python=sys.executable, address=address, signals=signals)
    command.write_text(text)
    command.chmod(0o755)
    code = _CODE.format(
        folder=str(Path(__file__).parent),
        address=address,
        warm_up=str(project),
        command=str(command),
    )
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        assert ours.recv(1) == b"."
        yield command
    assert server.wait(60) == 0


def serve(address: str, watched: int, project: str, command: str) -> None:
    """Run the tests of ``project``, and fork for each command until ``watched`` is closed."""
    _warm_up(project, command)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(watched, b".")
        asked = _Forks(listener, watched).serve()
    if asked is not None:
        _run(asked)


def _warm_up(project: str, command: str) -> None:
    import gc

    import execnet.gateway_io
    import pytest

    before, path, finders = set(sys.modules), [*sys.path], [*sys.meta_path]
    os.chdir(project)
    with Path(os.devnull).open("w") as nothing:
        output, sys.stdout = sys.stdout, nothing
        # A plugin that is imported otherwise than by pytest makes it warn.
        pytest.main(["-p", "no:cacheprovider", "-p", "xdist", "-p", "benchmark"])
        sys.stdout = output
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(project):
            del sys.modules[name]
    sys.path[:], sys.meta_path[:] = path, finders
    os.fsync = lambda _: None  # as the tests do
    start = execnet.gateway_io.popen_args
    execnet.gateway_io.popen_args = lambda spec: (
        start(spec) if spec.python else [command, *start(spec)[1:]]
    )
    gc.collect()
    gc.freeze()


class _Forks:
    """The forks that run, each with the connection to its command."""

    def __init__(self, listener: socket.socket, watched: int) -> None:
        self._listener, self._watched = listener, watched
        self._commands: dict[int, tuple[socket.socket, int]] = {}  # by pidfd

    def serve(self) -> dict[str, Any] | None:
        """Return in each fork with what is asked of it, and with None at the end."""
        while True:
            poll = select.poll()
            for file in (self._listener.fileno(), self._watched, *self._commands):
                poll.register(file, select.POLLIN)
            connections = {one.fileno(): file for file, (one, _) in self._commands.items()}
            for file in connections:
                poll.register(file, 0)  # hangs up
            ready = [file for file, _ in poll.poll()]
            if self._watched in ready:
                for _, pid in self._commands.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            for file in ready:
                if file in self._commands:
                    connection, pid = self._commands.pop(file)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    os.close(file)
                    with connection, suppress(OSError):
                        connection.send(b"%d" % status)
                elif file in connections and connections[file] in self._commands:
                    connection, pid = self._commands.pop(connections[file])
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    os.close(connections[file])
                    connection.close()
            if self._listener.fileno() in ready and (asked := self._begin()) is not None:
                return asked

    def _begin(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        message, files, *_ = socket.recv_fds(connection, 1 << 18, 3)
        if len(files) < 3:  # its command has been killed
            connection.close()
            return None
        pid = os.fork()
        if pid:
            for file in files:
                os.close(file)
            with suppress(OSError):
                connection.send(b"%d" % pid)
            self._commands[os.pidfd_open(pid)] = (connection, pid)
            return None
        for file, (other, _) in self._commands.items():
            os.close(file)
            other.close()
        connection.close()
        os.close(self._watched)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        found: dict[str, Any] = json.loads(message)
        return found


def _run(asked: dict[str, Any]) -> None:
    """Do what Python does with the words of a command, and end."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    # The server's streams remember whether its own files can be repositioned; these may be pipes.
    for number, name, mode, errors in (
        (0, "stdin", "r", "strict"),
        (1, "stdout", "w", "strict"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        stream = open(number, mode, errors=errors, closefd=False)  # noqa: SIM115 -- until the process ends
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    added = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [one for one in added if one and one not in sys.path]
    status = 1
    try:
        _execute(asked["words"])
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        else:
            status = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _execute(words: Sequence[str], folder: tuple[str, ...] | None = None) -> None:
    """Run what follows options; ``folder`` is what comes before all else in ``sys.path``."""
    match words:
        case ["-u", *rest]:
            sys.stdout.reconfigure(write_through=True)
            _execute(rest, folder)
        case ["-B", *rest]:
            sys.dont_write_bytecode = True
            _execute(rest, folder)
        case ["-P", *rest]:
            _execute(rest, ())
        case ["-c", code, *rest]:
            sys.argv, sys.path[:1] = ["-c", *rest], folder if folder is not None else ("",)
            main = sys.modules["__main__"]
            exec(compile(code, "<string>", "exec"), vars(main))
        case ["-m", module, *rest]:
            sys.argv = ["-m", *rest]
            sys.path[:1] = folder if folder is not None else (str(Path.cwd()),)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [word, *rest] if word.startswith("-m"):
            _execute(["-m", word[2:], *rest], folder)
        case _:
            raise SystemExit(f"A warm Python does not understand {words}.")
