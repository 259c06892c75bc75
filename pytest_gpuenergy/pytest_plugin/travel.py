"""Measurements on their way from the workers' run folders to the controller's."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_gpuenergy.pytest_plugin.link import BOARD_CHECK, CHECK, MEASUREMENT, RUN
from pytest_gpuenergy.record import AnchorCheck, Measurement, RunInfo, StationInfo
from pytest_gpuenergy.report import HOME, RunFolder, is_run
from pytest_gpuenergy.support import FormError, GpuEnergyError, decode, encode


class SentFolder(RunFolder):
    """A worker's run folder: what is appended to it is also told to the controller.

    Args:
        path: of the folder.
        tell: sends a kind of record and its line.
    """

    def __init__(self, path: Path, tell: Callable[[str, bytes], None]) -> None:
        super().__init__(path)
        self._tell = tell

    def append(self, measurement: Measurement) -> None:
        """As `RunFolder.append`."""
        super().append(measurement)
        self._tell(MEASUREMENT, encode(measurement))

    def append_check(self, check: AnchorCheck) -> None:
        """As `RunFolder.append_check`."""
        super().append_check(check)
        self._tell(CHECK, encode(check))

    def append_board_check(self, check: Measurement) -> None:
        """As `RunFolder.append_board_check`."""
        super().append_board_check(check)
        self._tell(BOARD_CHECK, encode(check))


class Gathering:
    """Stores what workers measured in the controller's run folder, unless it is theirs as well.

    Whether it is shows the first line of a worker: it is on disk before it is sent.

    Args:
        root: pytest's root folder on the controller.
        run_id: of the run.

    Attributes:
        problems: sentences about what could not be stored.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.problems: list[str] = []
        self._root = root
        self._folder = RunFolder(root / HOME / "runs" / run_id)
        self._runs: dict[Any, RunInfo] = {}
        self._apart: dict[Any, bool] = {}

    def take(self, node: Any, name: str, kind: str, line: bytes) -> StationInfo | None:
        """Store what the worker ``node``, called ``name``, has sent.

        Returns:
            Its station, if that is what it has sent.
        """
        try:
            if kind == RUN:
                self._runs[node] = run = decode(line, RunInfo)
                return run.station
            if self._is_apart(node, kind, line):
                if kind == MEASUREMENT:
                    self._folder.append(decode(line, Measurement))
                elif kind == BOARD_CHECK:
                    self._folder.append_board_check(decode(line, Measurement))
                else:
                    self._folder.append_check(decode(line, AnchorCheck))
        except (GpuEnergyError, FormError, OSError) as error:
            self.problems.append(
                f"What {name} measured is not stored here ({error}): merge its run folder with "
                "gpuenergy report."
            )
        return None

    def settle(self, node: Any) -> None:
        """Note the station of a worker that ends and has measured nothing."""
        with contextlib.suppress(GpuEnergyError, OSError):  # there is nothing to lose
            if node in self._runs and node not in self._apart:
                known = self._folder.load().stations if is_run(self._folder.path) else ()
                if self._runs[node].station not in known:
                    self._join(node)

    def _is_apart(self, node: Any, kind: str, line: bytes) -> bool:
        apart = self._apart.get(node)
        if apart is None:
            folder = self._folder
            paths = {MEASUREMENT: folder.measurements_path, BOARD_CHECK: folder.board_checks_path}
            self._apart[node] = apart = not _contains(paths.get(kind, folder.checks_path), line)
            if apart:
                self._join(node)
        return apart

    def _join(self, node: Any) -> None:
        run = self._runs[node]
        if is_run(self._folder.path):
            self._folder.append_station(run.station)
        else:
            self._folder = RunFolder.create(self._root, run)


def _contains(path: Path, line: bytes) -> bool:
    """Whether a file has a line, which is searched from the end."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.rfind(line + b"\n") >= 0
    except (OSError, ValueError):  # it is not there, or empty
        return False
