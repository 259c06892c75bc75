"""The search of one kernel: evaluate the baseline and its variants, then confirm the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.search.comparison import compare
from pytest_gpuenergy.search.control import Control
from pytest_gpuenergy.search.evaluation import Bench
from pytest_gpuenergy.search.explorer import Explorer, Proposal
from pytest_gpuenergy.search.folder import BASELINE, SPEC_JSON, KernelFolder
from pytest_gpuenergy.search.kernel import kernel_of
from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.search_state import (
    Gain,
    Identity,
    Node,
    SearchState,
    identity_of_spec,
)
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.search.trace import candidate_diff, trace
from pytest_gpuenergy.support.errors import InputError, KernelFault
from pytest_gpuenergy.tuning.raw_log import writing

_CONFIRMED = 3
"""The best variants, at most, that are measured alternately with the baseline until one is kept."""


@dataclass(frozen=True)
class Options:
    """What a search was asked for, apart from its spec.

    Attributes:
        budget: variants to evaluate, those of earlier runs included.
        gpus: the GPU, as ``--gpus`` takes it.
        powercap: the power limit, as ``--powercap`` takes it.
    """

    budget: int
    gpus: str
    powercap: str


def identity_of(bench: Bench, strategy: Mapping[str, float]) -> Identity:
    """What a search on this bench must have in common with one that it continues."""
    device: Device = bench.device
    return Identity(
        spec=identity_of_spec(bench.spec),
        gpu=device.name,
        emulated=device.emulated,
        power_limit_w=enforced_setpoint(device).power_limit_w,
        objective=bench.objective,
        seed=bench.seed,
        strategy=dict(strategy),
    )


@dataclass
class Search:
    """A search in one folder. What is on disk there is not evaluated again.

    Attributes:
        bench: where states are evaluated.
        folder: of the kernel.
        explorer: chooses the states.
        options: what was asked for.
        run_info: of this run.
        tell: called with lines of progress.
        stop: set by the caller to end early.
        state: of the search.
        llm: proposals of a language model, which are among the explorer's moves; None without.
    """

    bench: Bench
    folder: KernelFolder
    explorer: Explorer
    options: Options
    run_info: RunInfo
    tell: Callable[[str], None]
    stop: Event
    state: SearchState = field(init=False)
    llm: LlmMoves | None = None

    def __post_init__(self) -> None:
        self.state = SearchState(identity=identity_of(self.bench, self.explorer.settings))
        self._states: dict[str, State] = {}

    def run(self) -> SearchState:
        """Search until the budget is spent or nothing is left to try, and confirm the best.

        Raises:
            InputError: the baseline is wrong or fails, or a file is damaged.
            DeviceError: the device does not respond.
            OutputError: a result cannot be written.
            KeyboardInterrupt: ``stop`` was set; everything evaluated so far is on disk.
        """
        self.folder.event("began", id=self.run_info.run_id, builds=self.options.budget)
        self._baseline()
        while self.state.builds < self.options.budget:
            self._check_stopped()
            if (proposal := self.explorer.propose()) is None:
                break
            self._variant(proposal)
        self._check_stopped()
        self._confirm()
        return self.state

    def _check_stopped(self) -> None:
        if self.stop.is_set():
            self.tell(f"stopped; everything evaluated is kept in {self.folder.path}")
            raise KeyboardInterrupt

    def _baseline(self) -> None:
        spec = self.bench.spec
        result = self.folder.known(BASELINE)
        if result is None:
            self.tell(f"{spec.name}: evaluating the baseline")
            result = self.bench.evaluate(spec.baseline)
            if result.cost is None:
                raise InputError(
                    f"The baseline of {spec.name} cannot be used ({result.outcome}): "
                    f"{result.message}"
                )
            self._keep(BASELINE, spec.baseline, result, None)
        self._add(spec.baseline, result, None)

    def _variant(self, proposal: Proposal) -> None:
        application = proposal.application
        state = application.state
        result = self.folder.known(state.id)
        if result is None:
            result = self.bench.evaluate(state)
            self._keep(state.id, state, result, proposal)
            number = f"{self.state.builds + 1}/{self.options.budget}"
            self.tell(f"{self.bench.spec.name} {number}: {_told(proposal, result)}")
        self._add(state, result, proposal)

    def _keep(self, place: str, state: State, result: Result, proposal: Proposal | None) -> None:
        up = ".." if place == BASELINE else "../.."
        control = Control(
            spec=f"{up}/{SPEC_JSON}",
            state=state,
            objective=self.bench.objective,
            seed=self.bench.seed,
            gpus=self.options.gpus,
            powercap=self.options.powercap,
            **_origin(proposal),
        )
        kernel: AnyKernel | None = None
        listings: Mapping[str, str] = {}
        with suppress(KernelFault):  # the result says so
            kernel = kernel_of(self.bench.spec, state, self.bench.spec.sizes[0])
            listings = self.bench.device.listings(kernel)
        diff = "" if proposal is None else candidate_diff(proposal.parent, state)
        self.folder.keep(place, control, self.run_info, kernel, listings, result, diff)

    def _add(self, state: State, result: Result, proposal: Proposal | None) -> None:
        """Add a result to the graph, on disk and for the explorer."""
        node = Node(
            id=state.id,
            **_origin(proposal),
            outcome=result.outcome,
            cost=result.cost,
            time_ms=result.time_ms,
        )
        self._states[state.id] = state
        nodes = (*self.state.nodes, node)
        self.state = replace(
            self.state,
            builds=len(nodes) - 1,
            nodes=nodes,
            incumbent=_by_cost(nodes)[0].id,
        )
        self.folder.event("variant" if proposal else BASELINE, **_fields(node))
        if self.llm is not None:
            self.llm.learn(node, result)
        self.explorer.learn(state, result)
        earlier = self.folder.earlier
        if earlier is None or len(nodes) > len(earlier.nodes):
            self._write()

    def _confirm(self) -> None:
        """Measure the best variants alternately with the baseline, until one is better."""
        baseline = self.bench.spec.baseline.id
        best, gains = baseline, []
        for node in _by_cost(self.state.nodes)[:_CONFIRMED]:
            if node.id == baseline:
                break
            gains.append(self._gain(node))
            if gains[-1].accepted:
                best = node.id
                break
        self.state = replace(self.state, incumbent=best, finished=True, gains=tuple(gains))
        self.folder.link_best(BASELINE if best == baseline else best)
        self.folder.event("finished", id=best, builds=self.state.builds)
        self._write()

    def _gain(self, node: Node) -> Gain:
        gain = self.folder.known_gain(node.id)
        if gain is None:
            name = self.bench.spec.name
            self.tell(f"{name}: measuring {node.id} alternately with the baseline")
            with writing(self.folder.path):
                gain = compare(self.bench, self._states[node.id])
            self.folder.keep_gain(gain)
        self.folder.event("compared", **_fields(gain))
        return gain

    def _write(self) -> None:
        self.state = replace(self.state, graph=self.explorer.graph())
        self.folder.write_state(self.state)
        proposals = () if self.llm is None else self.llm.lines()
        self.folder.write_trace(trace(self.bench.spec, self.state, proposals))


def _by_cost(nodes: Sequence[Node]) -> list[Node]:
    """The correct nodes, best first; of equal ones the earlier."""
    correct = [(node.cost, node) for node in nodes if node.cost is not None]
    return [node for _, node in sorted(correct, key=lambda pair: pair[0])]


def _origin(proposal: Proposal | None) -> dict[str, Any]:
    """From which state, and how, a state was made; nothing of the baseline."""
    if proposal is None:
        return {"parent": None}
    application = proposal.application
    return {"parent": proposal.parent.id, "move": application.move, "what": application.what}


def _fields(record: Node | Gain) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _told(proposal: Proposal, result: Result) -> str:
    what = f"{proposal.application.move} {proposal.application.what}"
    if result.cost is None:
        return f"{what}: {result.outcome}: {result.message}"
    metric = result.objective
    return f"{what}: {result.cost:.4g} {metric.unit}"
