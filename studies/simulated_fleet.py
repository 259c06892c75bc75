"""Workers of a fleet that are none: they take virtual time for items, starts and messages.

`FakeManager` takes the place of pytest-xdist's ``NodeManager``; everything of the controller that
is above it is real.
"""

from __future__ import annotations

import copy
import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import execnet
import pytest

from pytest_gpuenergy.pytest_plugin.distribute import link
from pytest_gpuenergy.record import KernelInfo, Measurement, RunInfo, Window, WorkloadInfo
from pytest_gpuenergy.report import MEASUREMENT
from pytest_gpuenergy.support import encode

LATENCY_S = 0.05
"""One way, between the controller and a worker."""
START_S, COLLECT_S = 10.0, 10.0
NOTICED_S = 5.0
"""After so long the controller notices that a worker is gone."""
CAPS = (200, 325, 450, 575, 700)


@dataclass(frozen=True)
class Plan:
    """What is simulated.

    Attributes:
        hosts: number of hosts.
        gpus: of each.
        items: in all.
        kernels: of each workload; each is measured under each of `CAPS`.
        item_s: mean duration of an item.
        kills: workers that are killed; others start in their places.
        hosts_lost: hosts that are lost for good.
        unusable: GPUs on which nothing can be measured.
        seed: of all that is drawn.
        known: whether the durations are known from an earlier run.
    """

    hosts: int = 8
    gpus: int = 8
    items: int = 10_000
    kernels: int = 4
    item_s: float = 2.5
    kills: int = 8
    hosts_lost: int = 1
    unusable: int = 2
    seed: int = 1
    known: bool = True


class World:
    """Virtual time, and what is going to happen in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now_s = 0.0
        self.controller_s = self.controller_cpu_s = 0.0
        self._order = count()
        self._happenings: list[tuple[float, int, Callable[[], object]]] = []
        self._events: list[Any] = []
        self._left_s = self._left_cpu_s = 0.0
        self.draw = random.Random(plan.seed)
        self.ids, self.durations_s = _items(plan, random.Random(plan.seed))
        self.nodes: list[FakeNode] = []
        self.dead_hosts: set[int] = set()
        places = [(host, gpu) for host in range(plan.hosts) for gpu in range(plan.gpus)]
        self.unusable = set(self.draw.sample(places, plan.unusable))
        self.busy_s = 0.0
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def later(self, after_s: float, happening: Callable[[], object]) -> None:
        heapq.heappush(self._happenings, (self.now_s + after_s, next(self._order), happening))

    def put(self, event: Any) -> None:
        self._events.append(event)

    def get(self, timeout: float) -> Any:  # noqa: ARG002 -- as a queue's
        """The next event for the controller, which has done with the last one."""
        if self._left_s:
            took_s = time.process_time() - self._left_cpu_s
            self.controller_cpu_s += took_s
            self.controller_s += time.perf_counter() - self._left_s
            self.now_s += took_s
        while not self._events:
            at_s, _, happening = heapq.heappop(self._happenings)
            self.now_s = max(self.now_s, at_s)
            happening()
        self._left_s, self._left_cpu_s = time.perf_counter(), time.process_time()
        return self._events.pop(0)


class FakeChannel:
    """The controller's end of a line."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.callback: Callable[[Any], object] = lambda _message: None

    def setcallback(
        self,
        callback: Callable[[Any], object],
        endmarker: object,  # noqa: ARG002 -- as a channel's
    ) -> None:
        self.callback = callback

    def send(self, message: Any) -> None:
        self._node.answered(message)


class FakeGateway:
    """As much of execnet's gateway as is used."""

    def __init__(self, spec: Any, node: FakeNode) -> None:
        self.spec, self.id, self._node = spec, spec.id, node

    def newchannel(self) -> FakeChannel:
        return self._node.line


class FakeNode:
    """A worker: what pytest-xdist's WorkerController is to its session, in virtual time."""

    def __init__(self, world: World, spec: Any, config: pytest.Config) -> None:
        self.world, self.config = world, config
        self.line = FakeChannel(self)
        self.gateway = FakeGateway(spec, self)
        self.workerinput: dict[str, Any] = {}
        self.workeroutput: dict[str, Any] = {}
        self.workerinfo: dict[str, Any] = {
            "version_info": (3, 11, 0),
            "sysplatform": "linux",
            "executable": "",
        }
        host, gpu = spec.place.split(".")
        self.place = (int(host), int(gpu))
        self.alive, self.shutting_down = True, False
        self.ready_s = self.gone_s = 0.0
        self._queue: list[int | None] = []
        self._running = self._claimed = False
        world.nodes.append(self)
        world.later(START_S * world.draw.uniform(0.8, 1.5), self._ready)

    # What the controller says

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.world.later(LATENCY_S, lambda: self._received(list(indices)))

    def shutdown(self) -> None:
        if not self.shutting_down:
            self.shutting_down = True
            self.world.later(LATENCY_S, lambda: self._received([None]))

    def answered(self, message: Any) -> None:
        pass

    # What the worker does

    def _ready(self) -> None:
        if not self.alive:
            return
        self._event("workerready", workerinfo=self.workerinfo)
        self.world.later(COLLECT_S, self._collected)

    def _collected(self) -> None:
        world = self.world
        if not self.alive:
            return
        self.ready_s = world.now_s
        names: dict[str, int] = {}
        places = [names.setdefault(_workload(one), len(names)) for one in world.ids]
        self._tell(link.GROUPS, [f"workload {name}" for name in names], places)
        self._event("collectionfinish", ids=list(world.ids))

    def _received(self, indices: list[int | None]) -> None:
        self._queue += indices
        self._next()

    def _next(self) -> None:
        if not self.alive or self._running:
            return
        if self._queue and self._queue[0] is None:
            self.alive, self.gone_s = False, self.world.now_s
            self._tell(link.SET, "")
            self._tell(link.ENDED)
            output = {"exitstatus": 0, "shouldfail": False, "shouldstop": False}
            self._event("workerfinished", output=output)
        elif len(self._queue) > 1:
            index = self._queue.pop(0)
            assert index is not None
            self._run(index)

    def _run(self, index: int) -> None:
        world, node_id = self.world, self.world.ids[index]
        if self.place in world.unusable:
            if not self._claimed:
                self._claimed = True
                self._tell(link.UNUSABLE, "Other processes use NVIDIA H200: 4711.", self._host)
            self._tell(link.DEFERRED, node_id)
            self._event("runtest_protocol_complete", item_index=index, duration=0.0)
            self.world.later(0.0, self._next)
            return
        if not self._claimed:
            self._claimed = True
            self._tell(link.RUN, encode(run_info(self)))
        self._tell(link.BEGAN, node_id)
        self._tell(link.SET, node_id.rpartition("-")[2].rstrip("]"))
        world.began[node_id] += 1
        self._running = True
        world.later(world.durations_s[node_id], lambda: self._ended(index, world.now_s))

    def _ended(self, index: int, _: float) -> None:
        if not self.alive:
            return
        world, node_id = self.world, self.world.ids[index]
        world.busy_s += world.durations_s[node_id]
        world.ended[node_id] += 1
        self._tell(MEASUREMENT, encode(measurement_of(node_id, self)))
        for when in ("setup", "call", "teardown"):
            self._event("testreport", rep=_report(node_id, when))
        self._event("runtest_protocol_complete", item_index=index, duration=1.0)
        self._running = False
        self._next()

    def die(self) -> None:
        if self.alive:
            self.alive, self.gone_s = False, self.world.now_s
            self.world.later(NOTICED_S, lambda: self.line.callback(None))
            self.world.later(
                NOTICED_S,
                lambda: self.world.put(("errordown", {"node": self, "error": "lost"})),
            )

    @property
    def _host(self) -> str:
        return f"host{self.place[0]}"

    def _tell(self, *message: Any) -> None:
        self.world.later(LATENCY_S, lambda: self.line.callback(message))

    def _event(self, name: str, **values: Any) -> None:
        def arrive() -> None:
            if "output" in values:
                self.workeroutput |= values.pop("output")
            self.world.put((name, {"node": self, **values}))

        self.world.later(LATENCY_S, arrive)


class FakeManager:
    """In the place of pytest-xdist's NodeManager."""

    world: World

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.group = config, execnet.Group()
        session: Any = config.pluginmanager.getplugin("dsession")
        session.queue = self.world
        plan = self.world.plan
        self.specs = [
            execnet.XSpec(f"popen//python=remote//place={host}.{gpu}")
            for host in range(plan.hosts)
            for gpu in range(plan.gpus)
        ]
        for spec in self.specs:
            self.group.allocate_id(spec)

    def setup_nodes(self, putevent: Callable[[Any], object]) -> list[FakeNode]:
        self.config.hook.pytest_xdist_setupnodes(config=self.config, specs=self.specs)
        nodes = [self.setup_node(spec, putevent) for spec in self.specs]
        self._plan_losses(nodes)
        return nodes

    def setup_node(
        self,
        spec: Any,
        putevent: Callable[[Any], object],  # noqa: ARG002 -- the world has the events
    ) -> FakeNode:
        if int(spec.place.split(".")[0]) in self.world.dead_hosts:
            raise OSError(113, "No route to host")
        node = FakeNode(self.world, copy.copy(spec), self.config)
        self.config.hook.pytest_configure_node(node=node)
        return node

    def teardown_nodes(self) -> None:
        pass

    def _plan_losses(self, nodes: list[FakeNode]) -> None:
        world, plan = self.world, self.world.plan
        expected_s = plan.items * plan.item_s / max(1, len(nodes))
        for _ in range(plan.kills):
            at_s, place = world.draw.uniform(0.1, 1.0) * expected_s, world.draw.choice(nodes).place
            world.later(at_s, lambda place=place: self._kill(lambda node: node.place == place))
        for host in world.draw.sample(range(plan.hosts), plan.hosts_lost):
            at_s = world.draw.uniform(0.3, 0.8) * expected_s
            world.later(at_s, lambda host=host: self._lose(host))

    def _kill(self, chosen: Callable[[FakeNode], bool]) -> None:
        for node in filter(chosen, list(self.world.nodes)):
            node.die()

    def _lose(self, host: int) -> None:
        self.world.dead_hosts.add(host)
        self._kill(lambda node: node.place[0] == host)


def _items(plan: Plan, draw: random.Random) -> tuple[list[str], dict[str, float]]:
    ids: list[str] = []
    workload = 0
    while len(ids) < plan.items:
        workload += 1
        ids += [
            f"bench/test_sweep.py::test_sweep[w{workload:05d}-k{kernel:02d}-{cap}W]"
            for kernel in range(1, plan.kernels + 1)
            for cap in CAPS
        ]
    del ids[plan.items :]
    scales: dict[str, float] = {}
    durations = {}
    for one in ids:
        scale = scales.setdefault(_workload(one), draw.lognormvariate(0.0, 0.3))
        durations[one] = plan.item_s * scale * draw.uniform(0.8, 1.2)
    return ids, durations


def _workload(node_id: str) -> str:
    return node_id.partition("[")[2].partition("-")[0]


def measurement_of(node_id: str, node: FakeNode) -> Measurement:
    """What the worker measures of an item."""
    name, kernel, cap = node_id.partition("[")[2].rstrip("]").split("-")
    trials = tuple(Window(0.1, 30.0 + place / 1e3, 100, 0.1) for place in range(12))
    return Measurement(
        node_id,
        WorkloadInfo(name, {"n": 1, "c": 64, "h": 56, "w": 56, "k": 64, "r": 3}, 231211008, 1),
        KernelInfo(kernel, f"{name}{kernel}" * 4, "tvm", int(kernel[1:])),
        "correct",
        cap,
        power_limit_w=float(cap.rstrip("W")),
        enforced_power_limit_w=float(cap.rstrip("W")),
        gpu_uuid=_uuid(node),
        time_ms=1.0,
        energy_mj=300.0,
        edp_mj_ms=300.0,
        power_w=300.0,
        gflops=231.2,
        gflops_per_w=0.77,
        trials=trials,
        warm_trials=trials,
        started=f"2026-11-25T00:00:00+00:00 {node.world.now_s:.3f}",
        wall_s=node.world.durations_s[node_id],
    )


def run_info(node: FakeNode) -> RunInfo:
    """The run's identity on the worker."""
    return RunInfo(
        run_id=node.workerinput["gpuenergy_run_id"],
        started="2026-11-25T00:00:00+00:00",
        host=f"host{node.place[0]}",
        gpu_name="NVIDIA H200",
        gpu_uuid=_uuid(node),
        architecture="sm_90",
        emulated=True,
        power_limits_w={"min": 200.0, "max": 700.0, "default": 700.0},
        software={"driver": "580.1"},
        options={},
        cap_table_w=tuple(map(float, CAPS)),
    )


def _uuid(node: FakeNode) -> str:
    return f"GPU-simulated-{node.place[0]}-{node.place[1]}"


def _report(node_id: str, when: Any) -> pytest.TestReport:
    figures = [("gpuenergy", "1 ms 300 mJ 300 mJ·ms")] if when == "call" else []
    return pytest.TestReport(
        node_id, ("bench/test_sweep.py", 1, "test_sweep"), {}, "passed", None, when,
        user_properties=figures,
    )  # fmt: skip
