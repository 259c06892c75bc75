"""Connects to a Ray cluster, and defines the actor that holds a worker's interpreter on a node."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pytest_gpuenergy.report import HOME
from pytest_gpuenergy.support import (
    FLEET_GPU,
    DeviceError,
    is_folder,
    needs,
    printable,
    shortened,
    state_dir,
)

PROJECT_VARIABLE = "GPUENERGY_FLEET_PROJECT"
"""The environment variable with the name of the project that Ray sends to its nodes."""

_LEFT_HERE = (".git", ".gpuenergy", ".venv", "venv", "**/__pycache__", ".tox", ".hypothesis")
"""The files that are not sent to the nodes, besides those that ``.gitignore`` names."""

_NO_CLUSTER = re.compile("could not find any running ray instance|No such file", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `commands.ray_words` returns."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--project", help="Path of the project here, which Ray sends to the nodes")
    place.add_argument("--there", help="Path of the project on the nodes")
    parser.add_argument("--address", help="Of Ray's client server; default: this machine's cluster")
    parser.add_argument("--python", help="Path of the interpreter on the nodes")
    parser.add_argument("--device", required=True, help="As --gpu-device")


@contextmanager
def connected(address: str | None, project: str | None) -> Iterator[Any]:
    """Connect to a cluster, and yield the module `ray`.

    Args:
        address: The address of Ray's client server; None for the cluster of this machine.
        project: The path of the project that is sent to the nodes; None to send none.

    Raises:
        DeviceError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    warnings.simplefilter("ignore")
    try:
        import ray
    except ImportError as error:
        advice = "pip install 'pytest-gpuenergy[ray]', in the version that the cluster has"
        raise DeviceError(needs("A cluster of Ray's", "ray", advice, error)) from None
    runtime: dict[str, Any] = {}
    if project is not None:
        runtime = {
            "working_dir": project,
            "excludes": list(_LEFT_HERE),
            "env_vars": {PROJECT_VARIABLE: Path(project).name},
        }
    try:
        ray.init(
            address=f"ray://{address}" if address else "auto",
            namespace="gpuenergy",
            runtime_env=runtime,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # of many kinds, as Ray's documentation says of its client
        if address is None and _NO_CLUSTER.search(str(error)):
            raise DeviceError(
                "No Ray cluster is running here: start one with ray start --head, set RAY_ADDRESS, "
                "or name one with ray://HEAD:10001."
            ) from None
        where = f"ray://{address}" if address else "of this machine"
        reason = shortened(printable(" ".join(str(error).split())), 400)
        raise DeviceError(f"The Ray cluster {where} cannot be used: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def last_sentence(error: BaseException) -> str:
    """Return the last line of an error of Ray's as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = shortened(printable(lines[-1] if lines else type(error).__name__), 300)
    return reason if reason.endswith(".") else f"{reason}."


_PIECE_BYTES = 1 << 16
_PATIENCE_S = 10.0
_OLD_S = 7 * 86400.0
"""The time after which a copy of a project that has not been used is removed."""
_OUTPUT, _ERRORS = 1, 2


class Interpreter:
    """An actor that holds a Python process, and gives access to its input and output.

    Ray gives the actor a GPU, which the process inherits.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pieces: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def place(self) -> tuple[str, int]:
        """Return the node, and the number of the GPU that Ray has given to the actor."""
        import ray

        (number,) = ray.get_gpu_ids()
        return ray.get_runtime_context().get_node_id(), int(number)

    def start(
        self,
        python: str | None,
        arguments: Sequence[str],
        there: str | None,
        number: int,
        variables: dict[str, str],
    ) -> None:
        """Start the process.

        Args:
            python: The path of the interpreter; None for the node's own.
            arguments: The arguments of the interpreter.
            there: The folder of the project; None for the copy that Ray has sent.
            number: The number of the GPU, among those that the process sees.
            variables: The variables to add to its environment.

        Raises:
            GpuEnergyError, OSError: It cannot be started.
        """
        if there is None:
            there = str(own_copy(Path.cwd(), os.environ.get(PROJECT_VARIABLE) or "project"))
        environment = {**os.environ, **variables, FLEET_GPU: str(number)}
        if environment.get("OMP_NUM_THREADS") == "1":
            del environment["OMP_NUM_THREADS"]  # Ray's, for actors that reserve no processor
        self._process = subprocess.Popen(
            [python or sys.executable, *arguments],
            cwd=there,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for stream, kind in ((self._process.stdout, _OUTPUT), (self._process.stderr, _ERRORS)):
            assert stream is not None
            threading.Thread(target=self._pump, args=(stream, kind), daemon=True).start()

    def write(self, data: bytes) -> bool:
        """Write to the input of the process, or close it if there is no data.

        Returns:
            Whether the process still runs.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            if data:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()
        except (OSError, ValueError):
            return False
        return True

    def read(self, wait_s: float) -> list[tuple[int, bytes]]:
        """Return what the process has printed to descriptors 1 and 2; empty bytes mark an end.

        Waits for output, but not longer than ``wait_s``.
        """
        pieces = []
        with contextlib.suppress(queue.Empty):
            pieces.append(self._pieces.get(timeout=wait_s))
            while True:
                pieces.append(self._pieces.get_nowait())
        return pieces

    def stop(self) -> None:
        """End the process, and leave it time to restore the card's settings."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_PATIENCE_S)
        self.write(b"")

    def _pump(self, stream: IO[bytes], kind: int) -> None:
        with stream:
            while piece := os.read(stream.fileno(), _PIECE_BYTES):
                self._pieces.put((kind, piece))
        self._pieces.put((kind, b""))


def own_copy(sent: Path, name: str) -> Path:
    """Return a copy of the project that Ray has sent to ``sent``, with a lasting folder of runs.

    Ray removes what it has sent when it needs the space, with everything that was written there.

    Raises:
        GpuEnergyError, OSError: The copy cannot be written.
    """
    copies = state_dir("fleet", name, "copies")
    copy = copies / sent.name
    if not is_folder(copy):
        unfinished = Path(tempfile.mkdtemp(prefix=".", dir=copies))
        try:
            shutil.copytree(sent, unfinished, symlinks=True, dirs_exist_ok=True)
            (unfinished / HOME).symlink_to(state_dir("fleet", name, HOME))
            with contextlib.suppress(OSError):  # another actor was faster
                unfinished.rename(copy)
        except shutil.Error as error:  # contains a list of files, each with its reason
            reason = error.args[0][0][2]
            raise DeviceError(
                f"The project cannot be copied to {copies} ({reason}): make room there."
            ) from None
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # the rest of a copy that failed
    copy.touch()
    with os.scandir(copies) as entries:  # also those of earlier versions
        unused = [entry.path for entry in entries if time.time() - entry.stat().st_mtime > _OLD_S]
    for path in unused:
        shutil.rmtree(path, ignore_errors=True)
    return copy
