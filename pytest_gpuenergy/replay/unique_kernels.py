"""Launches that do the same work, counted once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.launches import Launch, Operator, Sizes, Work


class UniqueKernel(Struct, frozen=True):
    """What the launches with the same kernel, operator, arguments, launch plan and phase share.

    Attributes:
        id: ``k`` and the first hexadecimal digits of a hash of all that they share, so that the
            same kernel has the same id in every trace.
        calls: how many there are; None where that is not known.
        total_us: the sum of their durations.
        layers: of the model in which they occur; empty where the trace does not tell.
    """

    id: str
    name: str
    work: Work
    operator: Operator | None
    phase: str | None
    grid: Sizes | None
    block: Sizes | None
    shared_memory_bytes: int | None
    registers: int | None
    bytes: int | None
    calls: int | None
    total_us: float
    layers: tuple[int, ...] = ()


def unique_kernels(launches: Iterable[Launch]) -> list[tuple[UniqueKernel, Sequence[Launch]]]:
    """Each with its launches, the most total time first."""
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(identity(launch), []).append(launch)
    found = [(_unique(key, group), group) for key, group in groups.items()]
    return sorted(found, key=lambda pair: (-pair[0].total_us, pair[0].id))


def identity(launch: Launch) -> str:
    """The id of the unique kernel that a launch belongs to."""
    shared: list[Any] = [
        *(launch.name, launch.work, launch.operator, launch.phase, launch.grid, launch.block),
        *(launch.shared_memory_bytes, launch.registers, launch.bytes),
    ]
    text = msgspec.json.encode(shared, order="deterministic")
    return f"k{hashlib.sha256(text).hexdigest()[:12]}"


def _unique(key: str, group: Sequence[Launch]) -> UniqueKernel:
    first = group[0]
    return UniqueKernel(
        id=key,
        name=first.name,
        work=first.work,
        operator=first.operator,
        phase=first.phase,
        grid=first.grid,
        block=first.block,
        shared_memory_bytes=first.shared_memory_bytes,
        registers=first.registers,
        bytes=first.bytes,
        calls=len(group),
        total_us=sum(one.duration_us for one in group),
        layers=tuple(sorted({one.layer for one in group if one.layer is not None})),
    )
