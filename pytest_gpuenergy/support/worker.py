"""Objects in child processes, which may die without harm and never outlive their parent."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import LifoQueue, SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any

from pytest_gpuenergy.support.children import die_with_parent
from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.support.signals import signal_name

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""The environment of a child that needs no GPU and must not use the memory or time of one."""

_TAIL_BYTES = 2000
"""The part of a dead child's output, at its end, that is searched for the last line."""

_Popen = subprocess.Popen[bytes]
_Order = tuple[Callable[[], _Popen], "Future[_Popen]"]


class _Launcher:
    """Starts processes on a thread that never ends.

    A child asks the kernel to kill it when its parent ends, and for the kernel that is the thread
    that started it, see PR_SET_PDEATHSIG in prctl(2).
    """

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()

    def call(self, start: Callable[[], _Popen]) -> _Popen:
        """Call ``start`` on the thread and return or raise what it does."""
        with self._lock:
            if self._thread is None:
                # A daemon, because Python waits for other threads at exit and this one never ends.
                self._thread = Thread(target=self._run, name="launcher", daemon=True)
                self._thread.start()
        future: Future[_Popen] = Future()
        self._orders.put((start, future))
        return future.result()

    def _run(self) -> None:
        while True:
            start, future = self._orders.get()
            try:
                future.set_result(start())
            except BaseException as error:
                future.set_exception(error)
            del start, future  # or they would live until the next order


_launcher = _Launcher()


def _renew() -> None:
    global _launcher
    _launcher = _Launcher()  # a fork has no copy of the thread


os.register_at_fork(after_in_child=_renew)


class WorkerDiedError(DeviceError):
    """The child process ended during a call."""


class WorkerTimeoutError(DeviceError):
    """The child process did not respond in time and was killed."""


class Worker:
    """Owns an object in a child process and calls its methods.

    The child is started by `start` or the first call, and restarted by the first call after it
    died. It outlives the thread that started it, and ends with this process. One thread at a time
    may call; any thread may kill or retire it, which ends a call under way with `WorkerDiedError`.

    Args:
        factory: the object's class, as ``package.module:Class``.
        args: picklable arguments of the class.
        environment: variables to set in the child in addition to the parent's.
    """

    def __init__(
        self, factory: str, *args: object, environment: Mapping[str, str] | None = None
    ) -> None:
        self._factory = factory
        self._args = args
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log: Any = None
        self._starting = RLock()
        self._using = RLock()
        self._retired = False

    @property
    def pid(self) -> int | None:
        """The child's process ID while it runs."""
        process = self._process  # another thread may clear it meanwhile
        return process.pid if process else None

    def start(self) -> None:
        """Have the child create its object, without waiting for it. Idempotent."""
        if self._connection is None:
            self._start()

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        """Call ``method`` of the child's object and return what it returns.

        Raises:
            WorkerDiedError: the child died; the message quotes the last line it printed.
            WorkerTimeoutError: no response within ``timeout_s``; the child was killed.
            Exception: whatever the method raised.
        """
        with self._using:
            connection = self._connection or self._start()
            try:
                connection.send((method, args))
                if not connection.poll(timeout_s):
                    self.kill()
                    raise WorkerTimeoutError(
                        f"{self._factory} did not respond to {method} within {timeout_s:g} s."
                    )
                ok, result = connection.recv()
            except (EOFError, OSError) as error:
                raise WorkerDiedError(self._death()) from error
            except BaseException:
                self.kill()  # otherwise the next call would receive the answer to this one
                raise
        if not ok:
            raise result
        return result

    def kill(self) -> None:
        """Kill the child and wait until it has ended. Idempotent."""
        with self._starting:
            process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self._using:  # a call of another thread ends first: it reads the dead child's output
            self._forget()

    def retire(self) -> None:
        """Kill the child and never start another, whatever other threads call. Idempotent."""
        with self._starting:
            self._retired = True
        self.kill()

    def close(self) -> None:
        """Let the child end by itself; kill it if it has not ended within two seconds."""
        with self._using:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=2)
            self.kill()

    def _start(self) -> Connection:
        with self._starting:
            if self._retired:
                raise WorkerDiedError(f"The process of {self._factory} has been ended.")
            return self._launch()

    def _launch(self) -> Connection:
        ours, theirs = Pipe()
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in _forget
        # Not on this thread, which may end before the child.
        self._process = _launcher.call(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "pytest_gpuenergy.support.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **self._environment, "PYTHONPATH": path},
                start_new_session=True,
            )
        )
        theirs.close()
        ours.send((self._factory, self._args, os.getpid()))
        self._connection = ours
        return ours

    def _death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        code = self._process.poll()
        if code is None:
            cause = "closed its pipe"
        elif code < 0:
            cause = f"was ended by {signal_name(-code)}"
        else:
            cause = f"exited with {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.kill()
        return f"The process of {self._factory} {cause}{': ' + lines[-1] if lines else ''}."

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._log is not None:
            self._log.close()
        self._process = self._connection = self._log = None


class WorkerPool:
    """Several children with objects of the same kind, for calls from several threads.

    Args:
        factory: see `Worker`.
        args: see `Worker`.
        size: the maximum number of children; each is started when it is first needed.
        environment: see `Worker`.
    """

    def __init__(
        self,
        factory: str,
        *args: object,
        size: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._workers = [Worker(factory, *args, environment=environment) for _ in range(size)]
        self._idle: LifoQueue[Worker] = LifoQueue()  # LIFO: prefers children that have started
        for worker in reversed(self._workers):
            self._idle.put(worker)

    def call(self, method: str, *args: object, timeout_s: float | None = None) -> Any:
        """Wait for an idle child and call its method, see `Worker.call`."""
        worker = self._idle.get()
        try:
            return worker.call(method, *args, timeout_s=timeout_s)
        finally:
            self._idle.put(worker)

    def start(self) -> None:
        """Have all children create their objects, without waiting for them. No call may run yet."""
        for worker in self._workers:
            worker.start()

    def close(self) -> None:
        """Kill the children and never start others. Idempotent."""
        for worker in self._workers:
            worker.retire()


def _serve(descriptor: int) -> None:
    connection: Connection = Connection(descriptor)
    factory, args, parent = connection.recv()
    die_with_parent(parent, signal.SIGKILL)  # a killed parent cannot notify its children
    module, _, name = factory.partition(":")
    target: Any = None
    failure: Exception | None = None
    try:
        target = getattr(importlib.import_module(module), name)(*args)
    except Exception as error:
        failure = error
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            break
        try:
            if failure is not None:
                raise failure
            answer = (True, getattr(target, method)(*arguments))
        except Exception as error:
            answer = (False, _portable(error, method))
        try:
            connection.send(answer)
        except OSError:
            break
        except Exception as error:  # the returned value or the error cannot be pickled
            connection.send((False, DeviceError(f"{method}: {answer[1]!r} ({error})")))
    if hasattr(target, "close"):
        target.close()


def _portable(error: Exception, method: str) -> Exception:
    """Return ``error`` if it can be pickled and unpickled, else a DeviceError with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    except Exception:
        return DeviceError(f"{method}: {error!r}")
    return error


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _serve(int(sys.argv[1]))
