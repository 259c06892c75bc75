"""Starts a worker on its own host: checks the project and the GPU, then runs pytest-xdist's part.

The relay has execnet call `begin` there. The host may have other paths than the controller's, and
shares no files with it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_gpuenergy.fleet.commands import usage_problem
from pytest_gpuenergy.fleet.heartbeat import Watch, hang_up, takes_more
from pytest_gpuenergy.fleet.probe import ProbedGpu, other_version, own_gpu, own_version
from pytest_gpuenergy.fleet.relay import HEARTBEAT, INTERRUPT, STARTED, UNFIT
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    error_message,
    is_folder,
    name_emulated_host,
)

_GONE = object()


def begin(channel: Any) -> None:
    """Check the GPU and the project, answer the relay, and become a worker of pytest-xdist.

    Receives a dictionary: ``directory``, the path of the project (None for the working directory);
    ``inside``, the folder in it from which pytest was called; ``device``, the value of
    ``--gpu-device``; ``capping``, whether the run sets power limits; ``version``, that of the
    controller's package; ``options``, those in its environment; the channel of the `HEARTBEAT`; and
    ``silence_s``, the time without a beat after which this worker ends. Sends `STARTED` with a
    description of the GPU, or `UNFIT` with the reason, also later if pytest refuses its arguments.
    """
    request = channel.receive()
    name_emulated_host()
    heartbeat = _Heartbeat(request[HEARTBEAT], request["silence_s"])
    try:
        _begin(channel, request)
    finally:
        heartbeat.stop()


def _begin(channel: Any, request: dict[str, Any]) -> None:
    try:
        gpu = _checked_gpu(request)
    except (GpuEnergyError, OSError) as error:
        channel.send((UNFIT, error_message(error)))
        return
    here = os.getcwd()  # noqa: PTH109 -- as pytest will see it, links and all
    os.chdir(Path(here, request["inside"]))
    channel.send((STARTED, {"directory": here, "uuid": gpu.uuid, "name": gpu.name}))
    if request.get("options") is not None:
        os.environ["PYTEST_ADDOPTS"] = request["options"]
    xdist = importlib.util.find_spec("xdist")
    assert xdist is not None
    assert xdist.origin is not None
    path = Path(xdist.origin).with_name("remote.py")  # which must not be imported yet
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    own = __package__.partition(".")[0]
    # pytest warns about plugins that were imported before it could rewrite their assertions.
    for name in [name for name in sys.modules if name.partition(".")[0] == own]:
        del sys.modules[name]
    try:
        exec(code, {"__name__": "__channelexec__", "channel": _Interruptible(channel)})  # noqa: S102 -- as execnet does
    except Exception as error:
        if type(error).__name__ != "UsageError":  # pytest's, which nothing here has imported
            raise
        channel.send((UNFIT, f"its pytest cannot begin there: {usage_problem(str(error))}"))


def _checked_gpu(request: dict[str, Any]) -> ProbedGpu:
    """Return the GPU of this worker.

    Raises:
        GpuEnergyError, OSError: The GPU or this host cannot be used.
    """
    if request["version"] != own_version():
        raise DeviceError(other_version(own_version(), request["version"]))
    if importlib.util.find_spec("xdist") is None:
        raise DeviceError("pytest-xdist is not installed: pip install pytest-xdist.")
    try:
        if request["directory"] is not None:
            os.chdir(request["directory"])
        has_folder = is_folder(Path(request["inside"]))
    except OSError as error:
        raise DeviceError(
            f"{error_message(error)} Copy the project there, or give dir=PATH."
        ) from None
    if not has_folder:
        raise DeviceError(f"the project there has no folder {request['inside']}: copy the project.")
    return own_gpu(request["device"], capping=request["capping"])


class _Heartbeat:
    """Answers beats, and interrupts this process when there were none for a time."""

    def __init__(self, channel: Any, silence_s: float) -> None:
        self._output = channel.gateway._io.outfile.fileno()
        self._silent = False
        self._watch = Watch(self._end, silence_s)
        channel.setcallback(lambda beat: self._answer(channel, beat), endmarker=_GONE)
        self._watch.start()

    def stop(self) -> None:
        """Stop watching, and end this process if its connection was silent."""
        self._watch.stop()
        if self._silent:
            os._exit(1)  # an ordinary exit would wait for the dead connection

    def _answer(self, channel: Any, beat: object) -> None:
        """Answer a beat, in execnet's receiving thread, which must not wait."""
        if beat is _GONE:
            self._watch.stop()  # execnet itself interrupts this process at the end of a connection
            return
        self._watch.heard()
        if takes_more(self._output):
            channel.send(beat)

    def _end(self) -> None:
        self._silent = True
        hang_up(self._output)
        os.kill(os.getpid(), signal.SIGTERM)


class _Interruptible:
    """A channel whose receiver can be interrupted: pytest-xdist has no command for it."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def setcallback(self, callback: Callable[[Any], None], endmarker: object = None) -> None:
        def interrupted_or(command: Any) -> None:
            if command == INTERRUPT:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                callback(command)

        self._channel.setcallback(interrupted_or, endmarker=endmarker)
