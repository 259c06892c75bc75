"""Defines the plan of a replay: the calls and steps of a profiled model that it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import Measurement, WorkloadInfo
from pytest_gpuenergy.replay.account.figures import (
    GAP,
    GPU_US,
    GRAPH,
    LAYERS,
    step_key,
)
from pytest_gpuenergy.replay.extract.calls import UniqueCall
from pytest_gpuenergy.replay.profile_folder import ProfileRecord

Cache = Literal["model", "hot", "cold"]
"""What the L2 cache holds when a call is made again.

``model``: what it held in the model. ``hot``: the tensors of the call. ``cold``: none of them."""
Repeat = Callable[[], AbstractContextManager[Repeater]]


@dataclass(frozen=True)
class ReplayPlan:
    """Everything that is measured under each power limit.

    Attributes:
        steps: The prefill and the decode step as wholes.
        calls: The calls that can be replayed.
        missing: By its key, the reason why a call or step cannot be replayed.
        spaced: Returns what launches a call and then gaps, from the id of the call, the number of
            gaps and the key of the measurement; None if that is not available.
        gap: What launches a gap of about 20 µs, in which a single thread works; None if that is not
            available.
        source: The name of the program that was loaded; empty for recorded figures.
    """

    steps: Sequence[Replayable]
    calls: Sequence[Replayable]
    missing: Mapping[str, str] = field(default_factory=dict)
    spaced: Callable[[str, int, str], Replayable | None] = lambda _id, _gaps, _key: None
    gap: Replayable | None = None
    source: str = ""


Planner = Callable[
    [ProfileRecord, Sequence[UniqueCall], Sequence[UniqueCall], Sequence[int]], ReplayPlan
]
"""Makes a plan from the record of a profile, all its calls, those to replay, and the steps."""


def key_of(found: Measurement) -> str:
    """Return the key of what was measured: the id of a call, or a `step_key`."""
    return str(found.workload.parameters.get("replays", ""))


def replayable_call(
    profile: ProfileRecord,
    call: UniqueCall,
    cache: Cache,
    turns: int,
    repeater: Repeat,
    gpu_us: float | None,
) -> Replayable:
    """Return a call as a workload of its own.

    Args:
        profile: The record of the profile.
        call: The call to replay.
        cache: What the L2 cache holds.
        turns: The number of sets of arguments that successive launches rotate through.
        repeater: Makes what launches the call.
        gpu_us: The GPU time of the call alone, see `gpu_us_of`; None where it is unknown.
    """
    parameters: dict[str, int | str] = {"replays": call.id, "cache": cache, "turns": turns}
    workload = WorkloadInfo(f"{model_name(profile)}-{call.id}", parameters, 0, 0)
    details = {} if gpu_us is None else {GPU_US: gpu_us}
    return Replayable(
        call.id,
        call.operator,
        workload,
        repeater,
        details,
        together=profile.ranks > 1 and call.is_exchange,
    )


def replayable_spaced(
    profile: ProfileRecord,
    call: UniqueCall,
    gaps: int,
    key: str,
    cache: Cache,
    turns: int,
    repeater: Repeat,
) -> Replayable:
    """Return a call with ``gaps`` after it, under a key of its own; see `replayable_call`."""
    parameters: dict[str, int | str] = {"replays": key, "gaps": gaps}
    parameters |= {"cache": cache, "turns": turns}
    if call.is_exchange:
        parameters["exchange"] = call.id
    return Replayable(
        key,
        call.operator,
        WorkloadInfo(f"{model_name(profile)}-{key}", parameters, 0, 0),
        repeater,
        together=profile.ranks > 1 and call.is_exchange,
    )


def replayable_gap(profile: ProfileRecord, cache: Cache, repeater: Repeat) -> Replayable:
    """Return a gap alone as a workload of its own."""
    parameters: dict[str, int | str] = {"replays": GAP, "cache": cache}
    workload = WorkloadInfo(f"{model_name(profile)}-{GAP}", parameters, 0, 0)
    return Replayable(GAP, GAP, workload, repeater)


def replayable_step(
    profile: ProfileRecord, step: int, level: str, cache: Cache, repeater: Repeat
) -> Replayable:
    """Return a whole step; the ways to launch it are kernels of the same workload.

    Args:
        profile: The record of the profile.
        step: The number of the step; 0 for the prefill.
        level: The way of launching it, see `Account`.
        cache: What the L2 cache holds for calls; it does not affect a whole step.
        repeater: Makes what launches the step.
    """
    key = step_key(step, level)
    name = step_workload(profile, step)
    label = level
    if level == LAYERS:  # less work
        name, label = f"{name}-{LAYERS}", GRAPH
    return Replayable(
        key,
        label,
        WorkloadInfo(name, {"replays": key, "cache": cache}, 0, 0),
        repeater,
        together=profile.ranks > 1,
    )


def step_workload(profile: ProfileRecord, step: int) -> str:
    """Return the name of a step as a workload, such as ``bloom-560m-decode1``."""
    return f"{model_name(profile)}-{profile.step_name(step).replace(' step ', '')}"


def model_name(profile: ProfileRecord) -> str:
    """Return the model's name without its folder or owner, with the rank if there are several."""
    name = Path(profile.model).name.replace(":", ".")
    return f"{name}-rank{profile.rank}" if profile.ranks > 1 else name
