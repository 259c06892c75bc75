"""What a replay plays: the calls and the steps of a profiled model."""

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
Repeat = Callable[[], AbstractContextManager[Repeater]]


@dataclass(frozen=True)
class Plan:
    """All that is measured under each power limit.

    Attributes:
        steps: prefill and decode step as wholes.
        calls: those that can be replayed.
        missing: by key, why something cannot.
        spaced: by the id of a call, a number of gaps and a key, what launches the call and then the
            gaps; None if that is not to be had.
        gap: about 20 µs in which a single thread works.
        source: what was loaded for it; empty for recorded figures.
    """

    steps: Sequence[Replayable]
    calls: Sequence[Replayable]
    missing: Mapping[str, str] = field(default_factory=dict)
    spaced: Callable[[str, int, str], Replayable | None] = lambda _id, _gaps, _key: None
    gap: Replayable | None = None
    source: str = ""


Planner = Callable[[ProfileRecord, Sequence[UniqueCall], Sequence[UniqueCall], Sequence[int]], Plan]
"""Makes a plan for a profile: from all its calls, those to replay, and the numbers of steps."""


def key_of(found: Measurement) -> str:
    """What has been replayed: the id of a call, or a `step_key`."""
    return str(found.workload.parameters.get("replays", ""))


def replayable_call(
    profile: ProfileRecord,
    call: UniqueCall,
    cache: Cache,
    turns: int,
    repeater: Repeat,
    gpu_us: float | None,
) -> Replayable:
    """A call, as a workload of its own.

    Args:
        profile: of the model.
        call: to replay.
        cache: see `pytest_gpuenergy.replay.play.live.turns_of`.
        turns: sets of arguments that successive launches rotate through.
        repeater: makes what launches it.
        gpu_us: see `gpu_us_of`; None where it is not known.
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
    """A call with ``gaps`` after it, under a key of its own; otherwise see `replayable_call`."""
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
    """The gap by itself."""
    parameters: dict[str, int | str] = {"replays": GAP, "cache": cache}
    workload = WorkloadInfo(f"{model_name(profile)}-{GAP}", parameters, 0, 0)
    return Replayable(GAP, GAP, workload, repeater)


def replayable_step(
    profile: ProfileRecord, step: int, level: str, cache: Cache, repeater: Repeat
) -> Replayable:
    """A whole step; the ways to launch it are kernels of the same workload.

    Args:
        profile: of the model.
        step: 0 for the prefill.
        level: see `pytest_gpuenergy.replay.account.account.Account`.
        cache: as for calls, though steps are all alike.
        repeater: makes what launches it.
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
    """Name of a step as a workload: ``bloom-560m-prefill``, ``bloom-560m-decode1``."""
    return f"{model_name(profile)}-{profile.step_name(step).replace(' step ', '')}"


def model_name(profile: ProfileRecord) -> str:
    """The model's name without its folder or owner; with the rank if there are several."""
    name = Path(profile.model).name.replace(":", ".")
    return f"{name}-rank{profile.rank}" if profile.ranks > 1 else name
