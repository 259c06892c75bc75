"""Defines the plan of a replay: the calls and steps of a profiled model that it measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import Measurement, WorkloadInfo
from pytest_gpuenergy.replay.account.account import (
    EAGER,
    GRAPH,
    WINDOW_CALLS,
    WINDOW_COUNT,
    WINDOW_HOST,
    WINDOW_LAYER,
    WINDOW_STEP,
    gaps_key,
    host_gaps_key,
    restores_key,
    step_key,
    window_key,
)
from pytest_gpuenergy.replay.account.call_figures import (
    GAP,
    GPU_US,
    RESTORES,
)
from pytest_gpuenergy.replay.account.change_savings import CallChange
from pytest_gpuenergy.replay.extract.calls import UniqueCall
from pytest_gpuenergy.replay.profile_folder import ProfileRecord

Cache = Literal["model", "hot", "cold"]
"""The content of the L2 cache when a call is repeated.

``model``: what it held in the model. ``hot``: the tensors of the call. ``cold``: none of them."""
Repeat = Callable[[], AbstractContextManager[Repeater]]
"""Makes what launches a call, a step or a gap again and again."""


@dataclass(frozen=True)
class PlannedChange:
    """A change of what a model calls, with what has to be measured for it.

    Attributes:
        change: The change.
        items: What is changed, and what of the present has not been measured otherwise.
    """

    change: CallChange
    items: Sequence[Replayable]


@dataclass(frozen=True)
class ReplayPlan:
    """Everything that is measured under each power limit.

    Attributes:
        steps: The prefill and the decode step as wholes.
        calls: The calls that can be replayed.
        missing: By its key, the reason why a call or step cannot be replayed.
        spaced: Returns what launches a call or window and then gaps, from its key, the number of
            gaps and the key of the measurement; None if that is not available.
        gap: What launches a gap of about 20 µs, in which a single thread works; None if that is not
            available.
        source: The name of the program that was loaded; empty for recorded figures.
        gapped_steps: The steps as graphs with an empty kernel after each call, see `gap_power`.
        changes: Yields changes of what takes most energy, by what has been measured; None if that
            is not available.
        windows: Successive calls of layers together, and whole layers, see `choose_windows`.
        host_gaps: Returns empty kernels that the host launches, from the number of the step whose
            gaps they stand for and the nanoseconds between two of them; None if that is not
            available.
    """

    steps: Sequence[Replayable]
    calls: Sequence[Replayable]
    missing: Mapping[str, str]
    spaced: Callable[[str, int, str], Replayable | None]
    gap: Replayable | None
    source: str = ""
    gapped_steps: Sequence[Replayable] = ()
    changes: Callable[[Mapping[str, Measurement]], Iterator[PlannedChange]] | None = None
    windows: Sequence[Replayable] = ()
    host_gaps: Callable[[int, int], Replayable | None] | None = None


Calls = Sequence[UniqueCall]
Planner = Callable[[ProfileRecord, Calls, Calls, Sequence[int], Callable[[], object]], ReplayPlan]
"""Makes a plan from the record of a profile, all its calls, those to replay, and the steps.

The last argument is called when the program has been loaded. From then on, nothing else may use the
GPU, or the profiler's times of calls alone include time slices of others."""


def replayed_key(measurement: Measurement) -> str:
    """Return the key of what was measured: the id of a call, or a `step_key`."""
    return str(measurement.workload.parameters.get("replays", ""))


def window_calls(window: Measurement | Replayable) -> list[str]:
    """Return the ids of the calls of a window, in their order; none for anything else."""
    return str(window.workload.parameters.get(WINDOW_CALLS, "")).split()


@dataclass(frozen=True)
class ReplayWorkloads:
    """Describes what a replay measures as workloads of their own.

    Attributes:
        profile: The record of the profile.
        cache: What the L2 cache holds for calls; it does not affect a whole step.
    """

    profile: ProfileRecord
    cache: Cache

    def call(
        self, call: UniqueCall, repeat: Repeat, turns: int, gpu_us: float | None = None
    ) -> Replayable:
        """Return a call."""
        details = {} if gpu_us is None else {GPU_US: gpu_us}
        found = self._replayable(call.id, call.operator, repeat, call.is_exchange, turns=turns)
        return replace(found, details=details)

    def spaced(self, found: Replayable, repeat: Repeat, gaps: int, key: str) -> Replayable:
        """Return a call or window with ``gaps`` after it, under a key of its own."""
        kept = ("turns", RESTORES)
        parameters = found.workload.parameters
        others = {name: parameters[name] for name in kept if name in parameters}
        if found.together:
            others["exchange"] = found.key
        return self._replayable(key, found.label, repeat, found.together, gaps=gaps, **others)

    def window(
        self,
        step: int,
        number: int,
        calls: Sequence[str],
        count: int,
        repeat: Repeat,
        turns: int,
        gpu_us: float | None,
        *,
        is_layer: bool,
        from_host: bool = False,
    ) -> Replayable:
        """Return successive calls of a layer, or all of them, of ``count`` layers of a step."""
        details = {} if gpu_us is None else {GPU_US: gpu_us}
        of_window: dict[str, int | str] = {
            WINDOW_STEP: step,
            WINDOW_CALLS: " ".join(calls),
            WINDOW_COUNT: count,
        }
        if is_layer:
            of_window[WINDOW_LAYER] = 1
        if from_host:
            of_window[WINDOW_HOST] = 1
        key = window_key(step, number, is_layer=is_layer, from_host=from_host)
        found = self._replayable(key, GRAPH, repeat, False, turns=turns, **of_window)
        return replace(found, details=details)

    def with_restores(self, found: Replayable, repeat: Repeat) -> list[Replayable]:
        """Return what is replayed, and what restores the values that it reads before each time."""
        key = restores_key(found.key)
        parameters = {**found.workload.parameters, RESTORES: key}
        turns = int(parameters["turns"])
        restored = structs.replace(found.workload, parameters=parameters)
        return [
            replace(found, workload=restored),
            self._replayable(key, RESTORES, repeat, turns=turns),
        ]

    def changed(self, key: str, label: str, repeat: Repeat, turns: int = 1) -> Replayable:
        """Return what is changed, or what a change replaces, under a key of its own."""
        return self._replayable(key, label, repeat, turns=turns)

    def gap(self, repeat: Repeat) -> Replayable:
        """Return a gap alone."""
        return self._replayable(GAP, GAP, repeat)

    def host_gaps(self, step: int, period_ns: int, repeat: Repeat) -> Replayable:
        """Return an empty kernel that the host launches every ``period_ns`` nanoseconds."""
        return self._replayable(host_gaps_key(step), EAGER, repeat, period_ns=period_ns)

    def step(self, step: int, level: str, repeat: Repeat) -> Replayable:
        """Return a whole step; the ways to launch it are kernels of the same workload."""
        found = self._replayable(step_key(step, level), level, repeat, shared=True)
        name = step_workload(self.profile, step)
        if level not in (GRAPH, EAGER):  # less work
            name, found = f"{name}-{level}", replace(found, label=GRAPH)
        return replace(found, workload=structs.replace(found.workload, name=name))

    def gapped_step(self, step: int, repeat: Repeat) -> Replayable:
        """Return a step whose graph has an empty kernel after each call."""
        key = gaps_key(step)
        found = self._replayable(key, GRAPH, repeat, shared=True)
        name = f"{model_name(self.profile)}-{key}"
        return replace(found, workload=structs.replace(found.workload, name=name))

    def _replayable(
        self, key: str, label: str, repeat: Repeat, shared: bool = False, **parameters: int | str
    ) -> Replayable:
        workload = WorkloadInfo(
            f"{model_name(self.profile)}-{key}",
            {"replays": key, "cache": self.cache, **parameters},
            0,
            0,
        )
        together = shared and self.profile.ranks > 1
        return Replayable(key, label, workload, repeat, together=together)


def step_workload(profile: ProfileRecord, step: int) -> str:
    """Return the name of a step as a workload, such as ``bloom-560m-decode1``."""
    return f"{model_name(profile)}-{profile.step_name(step).replace(' step ', '')}"


def model_name(profile: ProfileRecord) -> str:
    """Return the model's name without its folder or owner, with the rank if there are several."""
    name = Path(profile.model).name.replace(":", ".")
    return f"{name}-rank{profile.rank}" if profile.ranks > 1 else name
