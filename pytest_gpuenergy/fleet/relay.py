"""Relays between pytest-xdist and a worker on another host, in a process for each slot.

pytest-xdist waits for each gateway that it opens, and ends the run if one cannot be opened. So its
gateway is a process on the controller's host, which starts at once, and then opens the gateway to
the other host. If that fails, the relay reports to pytest-xdist that the worker has finished, with
the reason.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.fleet.commands import failure_reason
from pytest_gpuenergy.fleet.heartbeat import PATIENCE, Beat, Watch

SLOT = "gpuenergy_slot"
"""The key of ``workerinput`` with the `WorkerOrder` of a relay, which removes it for the worker."""

STATION = "gpuenergy_station"
"""The key of ``workerinfo`` with the host, UUID and name of the worker's GPU."""

GAVE_UP = "gpuenergy_gave_up"
"""The key of ``workeroutput`` with the reason why there was no worker; empty if none was needed."""

STARTED, UNFIT = "started", "unfit"
"""The names of a worker's first message, which describes its GPU, or says why it has none."""

HEARTBEAT = "heartbeat"
"""The key of a worker's first message from its relay with the channel of beats, see `heartbeat`."""

INTERRUPT: tuple[str, dict[str, Any]] = ("gpuenergy-interrupt", {})
"""The command that interrupts a worker, in the form of pytest-xdist's own, which has none."""


@dataclass(frozen=True)
class WorkerOrder:
    """The data from which a relay starts its worker.

    Attributes:
        spec: execnet's specification of the gateway to the other host.
        host: The name of the host for the user.
        uuid: The UUID of the GPU; None where Ray or Slurm chooses it.
        root: The path of the project on this host.
        wait_s: The longest time that the worker may take to start.
        silence_s: The time after which the worker ends if it hears nothing from this process.
        request: The first message to `remote_worker.begin`.
    """

    spec: str
    host: str
    uuid: str | None
    root: str
    wait_s: float
    silence_s: float
    request: dict[str, Any]

    def arguments(self, given: list[str], directory: str) -> list[str]:
        """Return pytest's arguments for a host that has the project at ``directory``."""
        mapped = [_map_project_path(argument, self.root, directory) for argument in given]
        if any(argument.startswith("--rootdir") for argument in given):
            return mapped
        return [f"--rootdir={directory}", *mapped]


def _map_project_path(argument: str, root: str, directory: str) -> str:
    """Return an argument with the path of the project replaced by that on the other host."""
    option, equals, value = (
        argument.partition("=") if argument.startswith("-") else ("", "", argument)
    )
    if value == root or value.startswith(f"{root}/"):
        value = directory + value[len(root) :]
    return f"{option}{equals}{value}"


RELAY = """
import sys
sys.path.append({package!r})
from pytest_gpuenergy.fleet.relay import relay
relay(channel)
"""
"""The code that execnet runs in the process of a relay."""

_WORKER_CODE = "from pytest_gpuenergy.fleet.remote_worker import begin\nbegin(channel)\n"
_CLOSED = object()
_TAIL_BYTES = 2000
_LEAVING_S = 5.0
_POLL_S = 0.02
_READY, _FINISHED = "workerready", "workerfinished"


def relay(channel: Any) -> None:
    """Serve one of pytest-xdist's gateways until its worker elsewhere has ended."""
    workerinput, arguments, _, _ = channel.receive()
    order = WorkerOrder(**workerinput.pop(SLOT))
    _Relay(channel, order, workerinput, arguments).run()


class _Relay:
    def __init__(
        self, channel: Any, order: WorkerOrder, workerinput: dict[str, Any], arguments: list[str]
    ) -> None:
        self._outer = channel
        self._order = order
        self._workerinput = workerinput
        self._arguments = arguments
        self._inner: Any = None
        self._finished = False
        self._interrupted = False
        self._silent = ""
        self._station: dict[str, str] = {}
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._errors = _Errors()

    def run(self) -> None:
        os.setsid()  # a session of its own, because the controller handles Ctrl-C
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(("xdist", INTERRUPT)))
        self._outer.setcallback(
            lambda command: self._events.put(("xdist", command)), endmarker=_CLOSED
        )
        threading.Thread(target=self._open, daemon=True).start()
        try:
            self._serve()
        except BaseException:
            traceback.print_exc()
            self._errors.show()
            raise
        finally:
            self._end_children()

    def _open(self) -> None:
        """Open the gateway, in a thread, because this waits for the interpreter to answer.

        From then on send beats to the worker, and kill its command if it does not answer.
        """
        import execnet

        silence_s = self._order.silence_s
        patience_s = PATIENCE * silence_s

        def give_up() -> None:
            self._silent = f"it has not answered for {patience_s:g} s."
            gateway._io.kill()  # the command; whatever waits for it then fails

        try:
            gateway = execnet.Group(execmodel="thread").makegateway(
                f"execmodel=main_thread_only//{self._order.spec}"
            )
            inner = gateway.remote_exec(_WORKER_CODE)
            beats = gateway.newchannel()
            watch = Watch(give_up, patience_s)
            beats.setcallback(lambda _: watch.heard())
            watch.start()
            Beat(lambda: beats.send(None), silence_s).start()
            inner.send({**self._order.request, "silence_s": silence_s, HEARTBEAT: beats})
        except (OSError, EOFError, AssertionError, execnet.RemoteError) as error:
            self._events.put(("failed", error))
        else:
            self._events.put(("opened", inner))

    def _serve(self) -> None:
        while True:
            try:
                # A worker that has started may take any time for an item.
                source, value = self._events.get(
                    timeout=None if self._started else self._order.wait_s
                )
            except queue.Empty:
                self._give_up(
                    f"no worker started within {self._order.wait_s:g} s (wait=SECONDS allows more)"
                )
                return
            if source == "opened":
                self._inner = value
                value.setcallback(
                    lambda item: self._events.put(("worker", item)), endmarker=_CLOSED
                )
            elif source == "failed":
                problem = "its interpreter did not start"
                if isinstance(value, AssertionError):  # execnet's, of the first byte
                    problem = (
                        "it printed something before Python started, which a login shell must do "
                        "in terminals only ([ -t 1 ] tells)"
                    )
                self._give_up(problem)
                return
            elif source == "bridge":
                target, item = value
                with contextlib.suppress(OSError):
                    target.send(item)
            elif source == "xdist":
                if not self._pass_on(value):
                    return
            elif not self._take_message(value):
                return

    @property
    def _started(self) -> bool:
        return bool(self._station)

    def _pass_on(self, command: Any) -> bool:
        """Pass on a command of pytest-xdist. Return False if nothing is left to do."""
        if not self._started:
            self._finish(None if command is _CLOSED else "")
            return False
        if command is _CLOSED:
            command = INTERRUPT  # the controller is gone, and with it the use of the results
        if command == INTERRUPT and self._interrupted:
            return True
        self._interrupted = self._interrupted or command == INTERRUPT
        with contextlib.suppress(OSError):  # a lost worker is noticed when its channel ends
            self._inner.send(command)
        return True

    def _take_message(self, message: Any) -> bool:
        """Pass on a message of the worker. Return False if nothing is left to do."""
        if message is _CLOSED:
            if not self._finished:
                self._report_crash()
            return False
        if not self._started:
            return self._begin(*message)
        name, values = message
        if name == UNFIT:
            if not self._finished:
                self._finish(f"{self._order.host}: {values}")
            return False
        if name == _READY:
            values["workerinfo"][STATION] = self._station
        self._finished = self._finished or name == _FINISHED
        with contextlib.suppress(OSError):  # the controller is gone; the worker keeps its results
            self._outer.send((name, values))
        return True

    def _begin(self, state: str, value: Any) -> bool:
        if state == UNFIT:
            self._finish(f"{self._order.host}: {value}")
            return False
        assert state == STARTED
        if self._order.uuid not in (None, value["uuid"]):
            self._finish(f"{self._order.host}: its GPU {self._order.uuid} is gone.")
            return False
        self._station = {"host": self._order.host, "uuid": value["uuid"], "name": value["name"]}
        arguments = self._order.arguments(self._arguments, value["directory"])
        workerinput = {
            name: self._bridge_channel(value) for name, value in self._workerinput.items()
        }
        # No basetemp and no sys.path, because those of this host mean nothing on the other.
        self._inner.send((workerinput, arguments, {}, None))
        return True

    def _bridge_channel(self, value: Any) -> Any:
        """Return a channel to the worker for a channel to the controller; other values as is."""
        if not isinstance(value, type(self._outer)):
            return value
        inner = self._inner.gateway.newchannel()
        for source, target in ((value, inner), (inner, value)):
            # Through the queue, so that it keeps its order among all other messages.
            source.setcallback(lambda item, to=target: self._events.put(("bridge", (to, item))))
        return inner

    def _give_up(self, what: str) -> None:
        reason, _ = self._last_words()
        self._finish(f"{self._order.host}: {what}{f': {reason}' if reason else '.'}")

    def _last_words(self) -> tuple[str, str]:
        """Return why the worker is gone, in a sentence, and the traceback if there is one."""
        if self._silent:
            return self._silent, ""
        # execnet tells callbacks nothing. Of a lost connection, the command prints more.
        error = None if self._inner is None else self._inner._getremoteerror()
        remote = "" if error is None or isinstance(error, EOFError) else str(error)
        return failure_reason(remote) or failure_reason(self._errors.tail()), remote

    def _finish(self, reason: str | None) -> None:
        """Report that this worker has finished without a start, for this reason if it is a text."""
        if reason is None:
            return  # nobody listens
        output = {"exitstatus": 0, "shouldfail": False, "shouldstop": False, GAVE_UP: reason}
        with contextlib.suppress(OSError):
            self._outer.send((_FINISHED, {"workeroutput": output}))

    def _report_crash(self) -> None:
        """Report a crash to pytest-xdist, because the worker, its host or the connection died."""
        if not self._started:
            self._give_up("its worker ended before it had started")
            return
        reason, remote = self._last_words()
        self._errors.show(remote)
        self._outer._executing = False  # otherwise execnet closes it first, without a reason
        with contextlib.suppress(OSError):
            self._outer.close(f"{self._order.host} was lost{f': {reason}' if reason else '.'}")

    def _end_children(self) -> None:
        """Terminate the command. Ask a worker to exit first, so that it can restore its GPU."""
        if self._inner is not None:
            with contextlib.suppress(OSError):
                self._inner.gateway.exit()
        if self._started and _children_ended(_LEAVING_S):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(0, number)  # SIGKILL also ends this process, which has nothing left to do
            if _children_ended(_LEAVING_S):
                return


class _Errors:
    """Captures what this process and its children print to the standard error."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- until this process ends
        self._terminal = os.dup(2)
        os.dup2(self._file.fileno(), 2)

    def tail(self) -> str:
        """Return the last lines."""
        descriptor = self._file.fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
        return os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")

    def show(self, more: str = "") -> None:
        """Print the last lines, and ``more``, to the original standard error."""
        with contextlib.suppress(OSError):
            os.write(self._terminal, (self.tail() + more).encode())


def _children_ended(patience_s: float) -> bool:
    """Return whether all children end within a time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not ended:
            time.sleep(_POLL_S)
    return False
