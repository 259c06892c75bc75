"""On a node of a Ray cluster: an actor that holds the interpreter of a worker and its GPU."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pytest_gpuenergy.fleet.ray_cluster import PROJECT_VARIABLE
from pytest_gpuenergy.report.store import HOME
from pytest_gpuenergy.support.hosts import FLEET_GPU
from pytest_gpuenergy.support.paths import state_dir

_PIECE_BYTES = 1 << 16
_PATIENCE_S = 10.0
_OUTPUT, _ERRORS = 1, 2


class Interpreter:
    """A Python process, whose input and output are reached through methods.

    Ray has given the actor one GPU, which the process inherits.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pieces: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def place(self) -> tuple[str, int]:
        """The node, and the number of the GPU that Ray has given to the actor."""
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
            python: path of the interpreter; None: the node's own.
            arguments: of the interpreter.
            there: the project's folder; None: where Ray has put it.
            number: of the GPU, among those that the process sees.
            variables: of its environment.

        Raises:
            OSError: it cannot be started.
        """
        if there is None:
            _keep_runs()
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
        """Give the process input; empty: there is no more. False: it has ended."""
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
        """What the process has printed to descriptors 1 and 2; empty bytes where it has ended.

        Waits for something, but not longer than ``wait_s``.
        """
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._pieces.get(timeout=wait_s))
            while True:
                found.append(self._pieces.get_nowait())
        return found

    def stop(self) -> None:
        """End the process, with time to restore the card's settings."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE_S)
                return

    def _pump(self, stream: IO[bytes], kind: int) -> None:
        descriptor = stream.fileno()
        while piece := os.read(descriptor, _PIECE_BYTES):
            self._pieces.put((kind, piece))
        self._pieces.put((kind, b""))


def _keep_runs() -> None:
    """Have the runs' folder outlive the project's, which Ray removes when it needs the space."""
    link = Path(HOME)
    if not link.exists():
        kept = state_dir("fleet", os.environ.get(PROJECT_VARIABLE) or "project", HOME)
        with contextlib.suppress(FileExistsError):  # another actor of this node was faster
            link.symlink_to(kept)
