"""The actor that Ray places on a node: it keeps a copy of the project and an interpreter."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pytest_gpuenergy.fleet.ray_cluster import PROJECT_VARIABLE
from pytest_gpuenergy.report import HOME
from pytest_gpuenergy.support import FLEET_GPU, DeviceError, is_folder, state_dir

_COPY_LIFETIME_S = 7 * 86400.0
"""The time after which a copy that has not been used is removed."""


def persistent_copy(sent: Path, name: str) -> Path:
    """Return a copy of the project in ``sent`` whose results folder survives Ray's cleanup.

    Ray removes what it has sent when it needs the space, with everything that was written there.

    Args:
        sent: The folder to which Ray has sent the project.
        name: The name of the project; all copies of a project share a results folder.

    Raises:
        GpuEnergyError, OSError: The copy cannot be written.
    """
    copies = state_dir("fleet", name, "copies")
    copy = copies / sent.name
    if not is_folder(copy):
        _make_copy(sent, copy, results=state_dir("fleet", name, HOME))
    os.utime(copy)  # it is in use
    oldest_s = time.time() - _COPY_LIFETIME_S
    with os.scandir(copies) as entries:
        unused = [entry.path for entry in entries if entry.stat().st_mtime < oldest_s]
    for path in unused:
        shutil.rmtree(path, ignore_errors=True)
    return copy


def _make_copy(sent: Path, copy: Path, *, results: Path) -> None:
    """Copy ``sent`` to ``copy``, unless another actor of the node does so first."""
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=copy.parent))
    try:
        shutil.copytree(sent, unfinished, symlinks=True, dirs_exist_ok=True)
        (unfinished / HOME).symlink_to(results)
        try:
            unfinished.rename(copy)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another actor was first
                raise
    except shutil.Error as error:  # contains a list of files, each with its reason
        reason = error.args[0][0][2]
        raise DeviceError(
            f"The project cannot be copied to {copy.parent} ({reason}): make room there."
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # where it has not become the copy


_CHUNK_BYTES = 1 << 16

_EXIT_TIMEOUT_S = 10.0
"""The time for the process to end after a signal."""

_OUTPUT, _ERRORS = 1, 2
"""The descriptors of what the process prints."""


class Interpreter:
    """An actor that holds a Python process, and gives access to its input and output.

    Ray gives the actor a GPU, which the process inherits.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._chunks: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def node_and_gpu(self) -> tuple[str, int]:
        """Return the ID of the node, and the number of the GPU that Ray has given to the actor."""
        import ray

        (gpu,) = ray.get_gpu_ids()
        return ray.get_runtime_context().get_node_id(), int(gpu)

    def start(
        self,
        python: str | None,
        arguments: Sequence[str],
        remote_dir: str | None,
        gpu: int,
        variables: dict[str, str],
    ) -> None:
        """Start the process.

        Args:
            python: The path of the interpreter; None for the node's own.
            arguments: The arguments of the interpreter.
            remote_dir: The folder of the project; None for the copy that Ray has sent.
            gpu: The number of the GPU, among those that the process sees.
            variables: The variables to add to its environment.

        Raises:
            GpuEnergyError, OSError: The process cannot be started.
        """
        if remote_dir is None:
            remote_dir = str(
                persistent_copy(Path.cwd(), os.environ.get(PROJECT_VARIABLE) or "project")
            )
        environment = {**os.environ, **variables, FLEET_GPU: str(gpu)}
        if environment.get("OMP_NUM_THREADS") == "1":
            del environment["OMP_NUM_THREADS"]  # Ray's, for actors that reserve no processor
        self._process = subprocess.Popen(
            [python or sys.executable, *arguments],
            cwd=remote_dir,
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
            Whether this succeeded; False if the process has ended or its input is closed.
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
        chunks = []
        with contextlib.suppress(queue.Empty):
            chunks.append(self._chunks.get(timeout=wait_s))
            while True:
                chunks.append(self._chunks.get_nowait())
        return chunks

    def stop(self) -> None:
        """End the process, and leave it time to restore the card's settings."""
        process = self._process
        if process is None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_EXIT_TIMEOUT_S)
        self.write(b"")

    def _pump(self, stream: IO[bytes], kind: int) -> None:
        with stream:
            while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
                self._chunks.put((kind, chunk))
        self._chunks.put((kind, b""))
