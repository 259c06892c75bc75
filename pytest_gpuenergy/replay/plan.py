"""What a replay plays: the calls and the steps of a profiled model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_gpuenergy.devices.device import Device, Repeater
from pytest_gpuenergy.replay.calls import UniqueCall
from pytest_gpuenergy.replay.profiling import ProfileRecord
from pytest_gpuenergy.support.errors import InputError

Cache = Literal["model", "hot", "cold"]


@dataclass(frozen=True)
class Playable:
    """Something to measure.

    Attributes:
        key: id of a call, or see `step_key`.
        repeater: launches it.
        turns: sets of arguments that successive launches rotate through.
    """

    key: str
    repeater: Callable[[], AbstractContextManager[Repeater]]
    turns: int = 1


@dataclass(frozen=True)
class Plan:
    """All that is measured under each power limit.

    Attributes:
        steps: prefill and decode step as wholes.
        calls: those that can be replayed.
        missing: by key, why something cannot.
    """

    steps: Sequence[Playable]
    calls: Sequence[Playable]
    missing: Mapping[str, str] = field(default_factory=dict)


Planner = Callable[[ProfileRecord, Sequence[UniqueCall], Sequence[UniqueCall], Sequence[int]], Plan]
"""Makes a plan for a profile: from all its calls, those to replay, and the numbers of steps."""


def step_key(step: int, level: str) -> str:
    """What a step at a level is called among the measurements."""
    return f"step{step}-{level}"


def planner_for(device: Device, folder: Path, cache: Cache) -> Planner:
    """How to replay on ``device``: the model itself, or recorded figures on an emulated GPU.

    Args:
        device: claimed by the caller.
        folder: of the profile.
        cache: see `pytest_gpuenergy.replay.live.turns_of`.

    Raises:
        InputError: PyTorch is not installed, or cannot use the GPU.
    """
    from pytest_gpuenergy.devices.emulated.device import EmulatedDevice

    if isinstance(device, EmulatedDevice):
        from pytest_gpuenergy.replay.recorded import recorded_planner

        return recorded_planner(device, folder, cache)
    ordinal = getattr(device, "ordinal", None)
    if ordinal is None:
        raise InputError(f"PyTorch cannot run on {device.name}: name another --gpu-device.")
    from pytest_gpuenergy.replay.models import check_packages

    check_packages()
    from pytest_gpuenergy.replay.live import live_planner

    return live_planner(f"cuda:{ordinal}", cache)
