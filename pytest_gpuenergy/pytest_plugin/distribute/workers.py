"""The controller's knowledge of pytest-xdist's workers, and what it does when it loses one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_gpuenergy.control import run_uuids
from pytest_gpuenergy.fleet import GAVE_UP, SLOT
from pytest_gpuenergy.pytest_plugin._xdist_compat import Judge, Nodes
from pytest_gpuenergy.pytest_plugin.distribute import link
from pytest_gpuenergy.pytest_plugin.distribute.exchange import Gathering, ResumedRun
from pytest_gpuenergy.pytest_plugin.distribute.link import WorkerPlugin, is_plain
from pytest_gpuenergy.pytest_plugin.distribute.scheduling import Crew, WorkloadScheduling
from pytest_gpuenergy.pytest_plugin.options import PytestOptions
from pytest_gpuenergy.record import StationInfo
from pytest_gpuenergy.report import RECORD_TYPES, durations_s, latest_run
from pytest_gpuenergy.support import GpuEnergyError, printable

_DISTRIBUTIONS = ("load", "loadgroup")
"""The distributions of pytest-xdist that `WorkloadScheduling` replaces."""
_MAX_FUTILE = 3
"""Limit of workers that may be lost in a row at one place before any completes an item."""


class Losses:
    """Workers that cannot measure, were given up, or were lost with a setting.

    Attributes:
        left_out: why the run continues without a worker, by its name.
        given_up: why a fleet has given up a worker, which the fleet itself tells the user.
        still_set: workers that were lost before they restored their GPUs' settings.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.still_set: list[XdistWorker] = []
        self._refused = False

    def misfits(self, workers: Collection[XdistWorker], *, replaceable: bool) -> list[XdistWorker]:
        """Return the workers to leave out because an option fits others, but not them.

        If it fits none, or if no other worker can measure instead, a `pytest.UsageError` is raised
        once.
        """
        bad = [
            worker for worker in workers if worker.bad_option and worker.name not in self.left_out
        ]
        if self._refused or not bad:
            return []
        if replaceable:
            if any(worker.collected and not worker.bad_option for worker in workers):
                return bad
            if not all(worker.collected or worker.down for worker in workers):
                return []  # it may fit those that have not collected yet
        self._refused = True
        raise pytest.UsageError(" ".join(dict.fromkeys(worker.unusable for worker in bad)))

    def mend(self, uuids: Collection[str]) -> None:
        """Forget the settings of GPUs that have been restored."""
        self.still_set = [
            worker
            for worker in self.still_set
            if worker.station is None or worker.station.gpu_uuid not in uuids
        ]

    def problem(self, left: int, *, completed: bool) -> str | None:
        """Return a sentence if ``left`` items were not run, or no worker has completed any."""
        sentences = dict.fromkeys([*self.left_out.values(), *self.given_up.values()])
        reasons = "; ".join(sentence.removesuffix(".") for sentence in sentences)
        if reasons and not completed:
            return f"Nothing was run, because no worker can measure: {reasons}"
        if not left:
            return None
        items = "1 item was" if left == 1 else f"{left} items were"
        reasons = reasons or "all that had collected them are lost"
        return (
            f"{items} not run, because no worker is left that could: {reasons} "
            "(--gpuenergy-resume runs them, over these hosts or others)"
        )

    def summary_lines(self) -> Iterator[str]:
        """Return a line for each worker that was left out, or lost before it restored its GPU."""
        for sentence in dict.fromkeys(self.left_out.values()):
            yield f"left out: {sentence}"
        here: set[str] = set()
        if self.still_set:
            with contextlib.suppress(GpuEnergyError, OSError):  # this machine may not even measure
                here = set(run_uuids())
        for worker in self.still_set:
            station = worker.station
            assert station is not None
            where = "here" if station.gpu_uuid in here else f"on {worker.host}"
            yield (
                f"worker {worker.title} was lost while {station.gpu_name} ({station.gpu_uuid}) "
                f"was set to {worker.setpoint}: the next run {where} restores it, and so does "
                "gpuenergy powercap restore"
            )


@dataclass
class XdistWorker:
    """A worker of pytest-xdist as the controller knows it, running or ended.

    Attributes:
        number: the number of its GPU.
        host: the name of its host; the user's name for it if a fleet gives one.
        setpoint: the label of its GPU's setpoint; empty if the prior settings are in force.
        collected: whether it has collected its items, and ``items``: how many.
        unusable: why it cannot measure; empty if it can, as far as is known.
        bad_option: whether an option is the reason.
        deferred: items that it left to others.
        failed_here: items that failed because its host had stopped working, as it reported.
        ended_by: the signal with which another process has ended it; empty if none has.
        down: whether it has ended or is lost.
    """

    name: str
    spec: str
    number: int | None
    station: StationInfo | None = None
    host: str = ""
    setpoint: str = ""
    running: str | None = None
    collected: bool = False
    items: int = 0
    unusable: str = ""
    bad_option: bool = False
    deferred: set[str] = field(default_factory=set)
    failed_here: set[str] = field(default_factory=set)
    completed: bool = False
    ended_by: str = ""
    down: bool = False

    @classmethod
    def of(cls, node: Any, number: int | None) -> XdistWorker:
        """Return the worker for pytest-xdist's ``node``."""
        gateway = getattr(node, "gateway", None)
        slot = getattr(node, "workerinput", {}).get(SLOT)
        return cls(
            name=str(getattr(gateway, "id", node)),
            spec=str(getattr(gateway, "spec", "")),
            number=number,
            host=str(slot["host"]) if slot and slot["uuid"] else "",  # as its fleet calls it
        )

    @property
    def place(self) -> Hashable:
        """The worker's place: workers with the same place have the same GPU."""
        return (self.spec, self.number)

    @property
    def title(self) -> str:
        """The worker's name with its host if that is known: ``gw1 on host7``."""
        return f"{self.name} on {self.host}" if self.host else self.name

    def hear(self, kind: str, *data: str) -> None:
        """Note a message of the worker about itself; see `link`."""
        if kind == link.BEGAN:
            self.running = data[0]
        elif kind == link.SET:
            self.setpoint = data[0]
        elif kind == link.DEFERRED:
            self.deferred.add(data[0])
        elif kind == link.FAILED_HERE:
            self.failed_here.add(data[0])
        elif kind in (link.UNUSABLE, link.BAD_OPTION):
            self.unusable, host = data
            self.bad_option = kind == link.BAD_OPTION
            self.host = self.host or host
        elif kind == link.ENDED_BY:
            self.ended_by = data[0]
        elif kind == link.ENDED:
            self.setpoint = ""


class Workers(Crew, Judge):
    """Follows the workers, stores their measurements, and redistributes what lost workers leave.

    Attributes:
        line: the controller's ends of the lines to the workers.
        losses: the workers without which the run continues.
    """

    NAME = "gpuenergy-crew"

    def __init__(
        self, config: pytest.Config, line: WorkerPlugin, options: PytestOptions, run_id: str
    ) -> None:
        self.losses = Losses()
        self._restored: list[str] = []
        self._config = config
        self.line = line
        self._options = options
        self._gathering = Gathering(options.root, run_id)
        self._workers: dict[Any, XdistWorker] = {}
        self._groups: dict[str, str] = {}
        self._collected: dict[Any, tuple[list[str], list[int]]] = {}
        self._crashed: dict[str, str] = {}
        self._futile: Counter[Hashable] = Counter()
        self._durations_s: dict[str, float] = {}
        self._nodes: Nodes | None = None
        self._scheduler: WorkloadScheduling | None = None
        self._replacing = False
        self.line.on_message = self._take
        self.line.defers = config.getoption("dist", "no") in _DISTRIBUTIONS

    # What happens to workers

    @pytest.hookimpl(optionalhook=True, trylast=True)  # once the worker has its GPU number
    def pytest_configure_node(self, node: Any) -> None:
        """Note a worker that starts."""
        self._worker(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Read what the run being resumed, or the last one, has measured."""
        folder = latest_run(self._options.root)
        if folder is not None and self.line.defers:
            self._durations_s = durations_s(folder)
        if folder is not None and self._options.resume:
            with contextlib.suppress(GpuEnergyError, OSError):  # whoever needs the run reports it
                answers = ResumedRun(folder.load())
                self.line.answer = answers.answer
                self._durations_s |= dict.fromkeys(answers.clean_items(), 0.0)
        if self.line.defers:
            self._nodes = Nodes(self._config, self)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self) -> WorkloadScheduling | None:
        """Distribute by workload, unless another distribution is asked for."""
        if self._nodes is None:
            return None
        if not self._nodes.active:
            raise pytest.UsageError("; ".join(self.losses.left_out.values()))
        eager = any(not is_plain(node.gateway.spec) for node in self._nodes.active)
        self._scheduler = WorkloadScheduling(self, self._durations_s, eager=eager)
        return self._scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Match the collected items to their groups."""
        names, places = self._collected.pop(node, ([], []))
        for node_id, place in zip(ids, places, strict=False):
            if place >= 0:
                self._groups.setdefault(node_id, names[place])
        worker = self._worker(node)
        worker.collected, worker.items = True, len(ids)
        self._judge_options()
        self._judge_copies()

    @pytest.hookimpl(tryfirst=True)  # before the terminal counts it as an error
    def pytest_collectreport(self) -> None:
        """End the run over an option that has made a worker's collection fail."""
        self.line.read()
        self._judge_options()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that an item has ended."""
        worker = self._workers.get(getattr(report, "node", None))
        if worker is not None and report.when == "teardown":
            worker.completed = True
            if worker.running == report.nodeid:
                worker.running = None
            self._futile.pop(worker.place, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note that a worker has ended, and what it has left behind if it is lost."""
        self.line.read()
        worker = self._worker(node)
        if worker.down:
            return
        worker.down, self._replacing = True, error is not None
        if reason := getattr(node, "workeroutput", {}).get(GAVE_UP):
            self.losses.given_up[worker.name] = reason
        self._gathering.settle(node)
        if error is not None and worker.setpoint:
            self.losses.still_set.append(worker)
        if error is not None and not worker.completed:
            self._futile[worker.place] += 1
        self._judge_options()
        if self._scheduler is not None:
            self._scheduler.call_others()  # its items may be left to no other worker

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Name both workers that were lost in an item."""
        first, node = self._crashed.get(crashitem), getattr(report, "node", None)
        if first is not None:
            report.longrepr = (
                f"worker {first} and then worker {self._worker(node).title} were lost while "
                f"running {crashitem!r}: it is not run a third time."
            )

    # What the scheduler asks

    def fit(self, node: Any) -> bool:
        self.line.read()
        return not self._worker(node).unusable

    def model(self, node: Any) -> str:
        station = self._worker(node).station
        return "" if station is None else station.gpu_name

    def place(self, node: Any) -> Hashable:
        return self._worker(node).place

    def group(self, node_id: str) -> str | None:
        return self._groups.get(node_id)

    def running(self, node: Any) -> str | None:
        self.line.read()
        return self._worker(node).running

    def deferred(self, node: Any, node_id: str) -> bool:
        self.line.read()
        return node_id in self._worker(node).deferred or self.excuses(node, node_id)

    def excuses(self, node: Any, node_id: str) -> bool:
        """Return whether an item's failure does not count, because the item is run once more.

        A failure on a second host counts: the item itself may break one host after another.
        """
        self.line.read()
        worker = self._worker(node)
        if node_id not in worker.failed_here or node_id not in self._groups:
            return False
        return self._crashed.setdefault(node_id, worker.title) == worker.title

    def rerun(self, node: Any, node_id: str) -> bool:
        if node_id not in self._groups or node_id in self._crashed:
            return False
        worker = self._worker(node)
        self._crashed[node_id] = worker.title
        self._say(f"worker {worker.title} was lost in {node_id}, which is run again")
        return True

    def alive(self) -> bool:
        return self._nodes is not None and bool(self._nodes.active)

    def starting(self) -> bool:
        ready = [] if self._scheduler is None else self._scheduler.nodes
        active = set() if self._nodes is None else self._nodes.active
        return any(not self._worker(node).down for node in active.difference(ready))

    def recruit(self, most: int) -> None:
        if self._nodes is not None and not self._replacing and not self.starting():
            self._nodes.recruit(most)

    # What starting workers requires

    def may_restart(self, node: Any) -> bool:
        self._replacing = False
        worker = self._worker(node)
        if self._futile[worker.place] >= _MAX_FUTILE:
            self.losses.left_out[worker.name] = (
                f"{worker.title}: {_MAX_FUTILE} workers in a row were lost there before they had "
                "completed an item"
            )
            return False
        return not worker.unusable

    def ended_by(self, node: Any) -> str:
        self.line.read()
        return self._worker(node).ended_by

    def lost_for_good(self) -> None:
        if self._scheduler is not None:
            self._scheduler.call_others()

    def prepare(self, node: Any) -> None:
        self.line.next_number = self._worker(node).number

    def unreachable(self, spec: Any, error: BaseException) -> None:
        name = str(getattr(spec, "id", "") or spec)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        self._leave_out(name, f"{name}: no worker can be started with {spec} ({reason})")

    def usable(self) -> Iterator[Any]:
        bad = {worker.place for worker in self._workers.values() if worker.unusable}
        seen: set[Hashable] = set()
        for node, worker in self._workers.items():
            futile = self._futile[worker.place] >= _MAX_FUTILE
            if worker.completed and not futile and worker.place not in bad | seen:
                seen.add(worker.place)
                yield node

    # What is reported at the end

    def close(self) -> list[str]:
        """Read the last messages; return what was restored on the workers' hosts."""
        self.line.read()
        return list(dict.fromkeys(self._restored))

    def problems(self) -> list[str]:
        """Return sentences about items that were not run, or not stored."""
        found = list(dict.fromkeys(self._gathering.problems))
        left = 0 if self._scheduler is None else self._scheduler.left
        completed = any(worker.completed for worker in self._workers.values())
        if problem := self.losses.problem(left, completed=completed):
            found.append(problem)
        return found

    # Messages of workers

    def _take(self, node: Any, message: tuple[Any, ...]) -> None:
        kind, *data = message
        worker = self._worker(node)
        if kind == link.RUN or kind in RECORD_TYPES:
            station = self._gathering.take(node, f"worker {worker.title}", kind, data[0])
            if station is not None:
                worker.station, worker.host = station, worker.host or station.host
                self.losses.mend({station.gpu_uuid})  # claiming the GPU has restored its settings
        elif kind == link.GROUPS:
            self._collected[node] = (data[0], data[1])
        elif kind == link.MENDED:
            self.losses.mend(data[0])
        elif kind == link.RESTORED:
            self._restored.append(data[0])
        else:
            worker.hear(kind, *data)
            if kind == link.UNUSABLE:
                self._leave_out(worker.name, f"{worker.title}: {worker.unusable}")

    def _judge_options(self) -> None:
        for worker in self.losses.misfits(self._workers.values(), replaceable=self.line.defers):
            self._leave_out(worker.name, f"{worker.title}: {worker.unusable}")

    def _judge_copies(self) -> None:
        """Leave out workers that have collected nothing while others have; they lack the tests."""
        collected = [
            worker for worker in self._workers.values() if worker.collected and not worker.unusable
        ]
        most = max(collected, key=lambda worker: worker.items, default=None)
        for worker in collected:
            if most is not None and most.items and not worker.items:
                worker.unusable = (
                    f"its project has none of the {most.items} items that {most.title} has "
                    "collected: copy the project there."
                )
                self._leave_out(worker.name, f"{worker.title}: {worker.unusable}")

    def _leave_out(self, name: str, sentence: str) -> None:
        self.losses.left_out[name] = sentence
        self._say(f"left out: {sentence}")

    def _worker(self, node: Any) -> XdistWorker:
        worker = self._workers.get(node)
        if worker is None:
            worker = self._workers[node] = XdistWorker.of(node, self.line.numbers.get(node))
        return worker

    def _say(self, sentence: str) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self._config.get_verbosity() >= 0:
            terminal.ensure_newline()
            terminal.write_line(printable(f"gpuenergy: {sentence}"))
