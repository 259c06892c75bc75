"""Between pytest-xdist and a worker elsewhere: a process on the controller's host for each seat.

pytest-xdist waits for each gateway that it opens, and ends the run if one cannot be opened. So it
is given a process here, which is there at once, opens the gateway elsewhere, and can give up: it
then reports in pytest-xdist's own terms that the worker has finished, with the reason.
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

from pytest_gpuenergy.fleet.commands import reason_in
from pytest_gpuenergy.fleet.pulse import PATIENCE, Beat, Watch

SEAT = "gpuenergy_seat"
"""Key of ``workerinput``: what a relay has to know. Removed before the worker sees it."""

STATION = "gpuenergy_station"
"""Key of ``workerinfo``: host, UUID and name of the GPU that a worker has."""

GAVE_UP = "gpuenergy_gave_up"
"""Key of ``workeroutput``: why there was no worker; empty if none was needed any more."""

STARTED, UNFIT = "started", "unfit"
"""The first word from a worker: with what there is at its place, or why it cannot be used."""

PULSE = "pulse"
"""Key of what a worker is asked when it begins: the channel of beats, see `pulse`."""

INTERRUPT: tuple[str, dict[str, Any]] = ("gpuenergy-interrupt", {})
"""Interrupts a worker; in the form of pytest-xdist's commands, none of which does."""


@dataclass(frozen=True)
class Post:
    """What a relay has to know.

    Attributes:
        spec: execnet's, of the gateway to open.
        host: what to call the place.
        uuid: of the GPU that was promised; None where it is chosen there.
        root: path of the project here.
        wait_s: how long the worker may take to start.
        silence_s: how long the worker goes on without a sign of this process.
        asked: what `far_worker.begin` receives.
    """

    spec: str
    host: str
    uuid: str | None
    root: str
    wait_s: float
    silence_s: float
    asked: dict[str, Any]

    def arguments(self, given: list[str], directory: str) -> list[str]:
        """The arguments of pytest as they are to be given where the project is at ``directory``."""
        mapped = [_mapped(argument, self.root, directory) for argument in given]
        if any(argument.startswith("--rootdir") for argument in given):
            return mapped
        return [f"--rootdir={directory}", *mapped]


def _mapped(argument: str, root: str, directory: str) -> str:
    """An argument with a path in the project, or an option with one, as it is there."""
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
"""What execnet is to run in the process."""

_FAR = "from pytest_gpuenergy.fleet.far_worker import begin\nbegin(channel)\n"
_END = object()
_TAIL_BYTES = 2000
_LEAVING_S = 5.0
_POLL_S = 0.02
_READY, _FINISHED = "workerready", "workerfinished"


def relay(channel: Any) -> None:
    """Serve one of pytest-xdist's gateways until its worker elsewhere has ended."""
    workerinput, arguments, _, _ = channel.receive()
    post = Post(**workerinput.pop(SEAT))
    _Relay(channel, post, workerinput, arguments).run()


class _Relay:
    def __init__(
        self, channel: Any, post: Post, workerinput: dict[str, Any], arguments: list[str]
    ) -> None:
        self._outer = channel
        self._post = post
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
        # What is started here belongs to this process alone: Ctrl-C is the controller's to handle.
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(("xdist", INTERRUPT)))
        self._outer.setcallback(
            lambda command: self._events.put(("xdist", command)), endmarker=_END
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
        """Open the gateway, in a thread: this waits until the interpreter elsewhere answers."""
        import execnet

        try:
            gateway = execnet.Group(execmodel="thread").makegateway(
                f"execmodel=main_thread_only//{self._post.spec}"
            )
            inner = gateway.remote_exec(_FAR)
            pulse = gateway.newchannel()
            self._watch(gateway, pulse)
            inner.send({**self._post.asked, "silence_s": self._post.silence_s, PULSE: pulse})
        except (OSError, EOFError, AssertionError, execnet.RemoteError) as error:
            self._events.put(("failed", error))
        else:
            self._events.put(("opened", inner))

    def _watch(self, gateway: Any, pulse: Any) -> None:
        """Let the worker know that this process lives, and end the command if it is silent."""
        silence_s = PATIENCE * self._post.silence_s

        def give_up() -> None:
            self._silent = f"it has not answered for {silence_s:g} s."
            gateway._io.kill()  # the command, which nobody else has; what waits for it then fails

        watch = Watch(give_up, silence_s)
        pulse.setcallback(lambda _: watch.heard())
        watch.start()
        Beat(lambda: pulse.send(None), self._post.silence_s).start()

    def _serve(self) -> None:
        while True:
            try:
                # A worker that has started may take any time for an item.
                source, value = self._events.get(
                    timeout=None if self._started else self._post.wait_s
                )
            except queue.Empty:
                self._give_up(
                    f"no worker started within {self._post.wait_s:g} s (wait=SECONDS allows more)"
                )
                return
            if source == "opened":
                self._inner = value
                value.setcallback(lambda item: self._events.put(("far", item)), endmarker=_END)
            elif source == "failed":
                printed = isinstance(value, AssertionError)  # execnet's, of the first byte
                self._give_up(
                    "it printed something before Python started, which a login shell must do in "
                    "terminals only ([ -t 1 ] tells)"
                    if printed
                    else "its interpreter did not start"
                )
                return
            elif source == "line":
                target, item = value
                with contextlib.suppress(OSError):
                    target.send(item)
            elif source == "xdist":
                if not self._obey(value):
                    return
            elif not self._hear(value):
                return

    @property
    def _started(self) -> bool:
        return bool(self._station)

    def _obey(self, command: Any) -> bool:
        """Pass on what pytest-xdist says. False: there is nothing left to do."""
        if not self._started:
            self._finish(None if command is _END else "")
            return False
        if command is _END:
            command = INTERRUPT  # nobody will hear of the results
        if command == INTERRUPT and self._interrupted:
            return True
        self._interrupted = self._interrupted or command == INTERRUPT
        with contextlib.suppress(OSError):  # if it is lost, that will be heard too
            self._inner.send(command)
        return True

    def _hear(self, message: Any) -> bool:
        """Pass on what the worker says. False: there is nothing left to do."""
        if message is _END:
            if not self._finished:
                self._lose()
            return False
        if not self._started:
            return self._begin(*message)
        name, values = message
        if name == UNFIT:
            if not self._finished:
                self._finish(f"{self._post.host}: {values}")
            return False
        if name == _READY:
            values["workerinfo"][STATION] = self._station
        self._finished = self._finished or name == _FINISHED
        with contextlib.suppress(OSError):  # the controller is gone; the worker has its own folder
            self._outer.send((name, values))
        return True

    def _begin(self, state: str, value: Any) -> bool:
        if state == UNFIT:
            self._finish(f"{self._post.host}: {value}")
            return False
        assert state == STARTED
        if self._post.uuid not in (None, value["uuid"]):
            self._finish(f"{self._post.host}: its GPU {self._post.uuid} is gone.")
            return False
        self._station = {"host": self._post.host, "uuid": value["uuid"], "name": value["name"]}
        arguments = self._post.arguments(self._arguments, value["directory"])
        given = {name: self._bridged(value) for name, value in self._workerinput.items()}
        # No basetemp, and no sys.path: those of this host mean nothing there.
        self._inner.send((given, arguments, {}, None))
        return True

    def _bridged(self, value: Any) -> Any:
        """A channel to the worker for one to the controller; anything else as it is."""
        if not isinstance(value, type(self._outer)):
            return value
        inner = self._inner.gateway.newchannel()
        for source, target in ((value, inner), (inner, value)):
            # In the order in which everything else comes.
            source.setcallback(lambda item, to=target: self._events.put(("line", (to, item))))
        return inner

    def _give_up(self, what: str) -> None:
        said, _ = self._last_words()
        self._finish(f"{self._post.host}: {what}{f': {said}' if said else '.'}")

    def _last_words(self) -> tuple[str, str]:
        """Why the worker is gone, in a sentence, and all that is known about it."""
        if self._silent:
            return self._silent, ""
        # execnet does not tell a callback. Of a lost connection, the command knows more.
        error = None if self._inner is None else self._inner._getremoteerror()
        remote = "" if error is None or isinstance(error, EOFError) else str(error)
        return reason_in(remote) or reason_in(self._errors.tail()), remote

    def _finish(self, reason: str | None) -> None:
        """Report that this worker is done; with ``reason``, that it never came to be."""
        if reason is None:
            return  # nobody listens
        output = {"exitstatus": 0, "shouldfail": False, "shouldstop": False, GAVE_UP: reason}
        with contextlib.suppress(OSError):
            self._outer.send((_FINISHED, {"workeroutput": output}))

    def _lose(self) -> None:
        """The worker died, or its host, or the connection: let pytest-xdist see a crash."""
        if not self._started:
            self._give_up("its worker ended before it had started")
            return
        said, remote = self._last_words()
        self._errors.show(remote)
        self._outer._executing = False  # or execnet closes it by itself, and without a reason
        with contextlib.suppress(OSError):
            self._outer.close(f"{self._post.host} was lost{f': {said}' if said else '.'}")

    def _end_children(self) -> None:
        """End the command; if a worker has run, by itself at first: it may restore something."""
        if self._inner is not None:
            with contextlib.suppress(OSError):
                self._inner.gateway.exit()
        if self._started and _children_ended(_LEAVING_S):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(0, number)  # the last one ends this process too, which has said everything
            if _children_ended(_LEAVING_S):
                return


class _Errors:
    """What is printed to the standard error of this process and its children."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- until this process ends
        self._terminal = os.dup(2)
        os.dup2(self._file.fileno(), 2)

    def tail(self) -> str:
        """The last lines."""
        descriptor = self._file.fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
        return os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")

    def show(self, more: str = "") -> None:
        """Print the last lines, and ``more``, where they would have been printed."""
        with contextlib.suppress(OSError):
            os.write(self._terminal, (self.tail() + more).encode())


def _children_ended(patience_s: float) -> bool:
    """Whether all children have ended, after a while at most."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not ended:
            time.sleep(_POLL_S)
    return False
