"""Measurements that workers and their controller exchange: new ones, and those of a resumed run."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.engine import Subject
from pytest_gpuenergy.pytest_plugin.distribute.link import (
    ASK_CAP,
    ASK_ITEM,
    ASK_RUN,
    RUN,
    Link,
)
from pytest_gpuenergy.pytest_plugin.options import PytestOptions
from pytest_gpuenergy.record import AnchorCheck, Measurement, RunInfo, StationInfo, WorkloadInfo
from pytest_gpuenergy.report import (
    HOME,
    MEASUREMENT,
    RECORD_TYPES,
    STATION,
    Report,
    RunFolder,
    is_run,
)
from pytest_gpuenergy.support import FormError, GpuEnergyError, InputError, decode, encode


class Resumption:
    """Knows which items the run being resumed has measured, so that they are not measured again.

    In a run that is not resumed, nothing has been measured yet. In a worker, the controller knows
    what other hosts have measured.

    Attributes:
        earlier: the part of the run being resumed that is on this host.
        on_other_boards: whether that run has used GPUs other than this one.
    """

    def __init__(self, options: PytestOptions, link: Link | None) -> None:
        self.earlier: Report | None = None
        self.on_other_boards = False
        self._options = options
        self._is_worker = link is not None
        self._ask: Callable[[str, str], bytes | None] = lambda _kind, _about: None
        if link is not None and options.resume:
            self._ask = link.ask

    def take_up(self, run: RunInfo, earlier: Report | None) -> RunInfo:
        """Return the identity of the resumed run, or ``run`` when there is none to resume.

        ``earlier`` is the part of the resumed run that is on this host. An `InputError` says that
        it was made on another GPU or with another cache state.
        """
        before: RunInfo | None = None
        if earlier is not None:
            before = earlier.run
            if not self._is_worker:
                self._ask = ResumedRun(earlier).answer
        elif line := self._ask(ASK_RUN, ""):  # this host has nothing of the run
            before = decode(line, RunInfo)
        if before is None:
            return run
        # Workers may be on other GPUs than before: each measurement names its own.
        known = {before.gpu_uuid, *(s.gpu_uuid for s in (earlier.stations if earlier else ()))}
        elsewhere = not self._options.worker and run.gpu_uuid not in known
        if elsewhere or before.emulated != run.emulated:
            raise InputError(
                f"The last run was made on {before.gpu_name} ({before.gpu_uuid}), but this one "
                f"is on {run.gpu_name} ({run.gpu_uuid}): run without --gpuenergy-resume."
            )
        self.on_other_boards = bool(known - {run.gpu_uuid})
        cache = before.options.get("gpuenergy-cache", "hot")
        if cache != self._options.cache:
            raise InputError(
                f"The last run was made with a {cache} cache, but this one uses a "
                f"{self._options.cache} cache: run without --gpuenergy-resume."
            )
        self.earlier = earlier
        table_w = run.cap_table_w or before.cap_table_w
        return replace(run, started=before.started, cap_table_w=table_w)

    def already_measured(
        self, subject: Subject, digest: str, workload: WorkloadInfo
    ) -> Measurement | None:
        """Return the unflagged measurement of the same item, if there is one.

        A run that only verifies also accepts a flagged one, and one without figures.
        """
        line = self._ask(ASK_ITEM, subject.node_id)
        known = None if line is None else decode(line, Measurement)
        if (
            known is None
            or known.kernel.digest != digest
            or known.workload != workload
            or known.identity != subject.identity(workload.name, self._options.cache)
        ):
            return None
        if self._options.verify_only:
            return known if known.measured or known.verified_only else None
        clean = known.measured and not known.validity
        return known if clean and Setpoint.enforced_for(known) == subject.enforced else None

    def has_measured_at(self, setpoint: Setpoint) -> bool:
        """Return whether the resumed run has measured anything at ``setpoint``."""
        return self._ask(ASK_CAP, setpoint.label) is not None


class ResumedRun:
    """The controller's answers to workers' questions about the run being resumed."""

    def __init__(self, report: Report) -> None:
        self._run = encode(report.run)
        self._known = {m.node_id: m for m in report.measurements}

    def clean_items(self) -> list[str]:
        """Return the node ids of items that were measured without a flag."""
        return [name for name, m in self._known.items() if m.measured and not m.validity]

    def answer(self, kind: str, about: str) -> bytes | None:
        """Answer a question; called in execnet's receiving threads."""
        if kind == ASK_RUN:
            return self._run
        if kind == ASK_ITEM:
            known = self._known.get(about)
            return None if known is None else encode(known)
        found = any(m.measured and m.cap == about for m in self._known.values())
        return b"yes" if found else None


class SentFolder(RunFolder):
    """A worker's run folder: what is appended to it is also sent to the controller."""

    def __init__(self, path: Path, tell: Callable[[str, bytes], None]) -> None:
        super().__init__(path)
        self._tell = tell

    def append(
        self, record: Measurement | AnchorCheck | StationInfo, kind: str = MEASUREMENT
    ) -> None:
        super().append(record, kind)
        self._tell(kind, encode(record))


class Gathering:
    """Stores what workers measured in the controller's run folder, unless they share that folder.

    Workers on the controller's host write to the same folder. A worker's first line shows whether
    it does: a line is on disk before it is sent.

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
        """Store a line that the worker ``node``, called ``name``, has sent.

        If the line is the identity of a run, this returns the worker's station.
        """
        try:
            if kind == RUN:
                self._runs[node] = run = decode(line, RunInfo)
                return run.station
            if self._is_apart(node, kind, line):
                self._folder.append(decode(line, RECORD_TYPES[kind]), kind)
        except (GpuEnergyError, FormError, OSError) as error:
            self.problems.append(
                f"What {name} measured is not stored here ({error}): merge its run folder with "
                "gpuenergy report."
            )
        return None

    def settle(self, node: Any) -> None:
        """Note the station of a worker that ends and has measured nothing."""
        with contextlib.suppress(GpuEnergyError, OSError):  # the worker has measured nothing
            if node in self._runs and node not in self._apart:
                known = self._folder.load().stations if is_run(self._folder.path) else ()
                if self._runs[node].station not in known:
                    self._join(node)

    def _is_apart(self, node: Any, kind: str, line: bytes) -> bool:
        apart = self._apart.get(node)
        if apart is None:
            apart = True
            # Searched from the end. The file may be missing or empty.
            with (
                contextlib.suppress(OSError, ValueError),
                self._folder.path_of(kind).open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
            ):
                apart = text.rfind(line + b"\n") < 0
            self._apart[node] = apart
            if apart:
                self._join(node)
        return apart

    def _join(self, node: Any) -> None:
        run = self._runs[node]
        if is_run(self._folder.path):
            self._folder.append(run.station, STATION)
        else:
            self._folder = RunFolder.create(self._root, run)
