"""What measurements can be plotted against: how they were launched, and their parameters."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuenergy.record import LaunchInfo, Measurement

Value = str | int | float | bool

LAUNCH_AXES = (
    *("grid_x", "grid_y", "grid_z", "blocks"),
    *("block_x", "block_y", "block_z", "threads", "shared_bytes"),
)
PARAMETER, WORKLOAD = "parameter_", "workload_"


def axes(m: Measurement) -> dict[str, Value]:
    """The values of a measurement by axis; an axis that it has no value for is missing.

    `LAUNCH_AXES` are those of the launch with the most threads: its blocks in each direction and in
    total, the threads of a block, and the bytes of shared memory of a block, dynamic and static.
    ``parameter_`` and a name are pytest's parameters of the item, ``workload_`` and a name those of
    the workload.
    """
    return {
        **_launch(max(m.kernel.launches, key=lambda one: one.blocks * one.threads, default=None)),
        **{f"{PARAMETER}{name}": value for name, value in m.parameters.items()},
        **{f"{WORKLOAD}{name}": value for name, value in m.workload.parameters.items()},
    }


def parameter_kinds(measurements: Iterable[Measurement]) -> dict[str, type]:
    """The names of all parameters of items, in order of appearance, each with its type.

    A parameter with values of several types is text, unless all are numbers.
    """
    kinds: dict[str, set[type]] = {}
    for m in measurements:
        for name, value in m.parameters.items():
            kinds.setdefault(name, set()).add(type(value))
    return {
        name: found.pop() if len(found) == 1 else float if found == {int, float} else str
        for name, found in kinds.items()
    }


def _launch(launch: LaunchInfo | None) -> dict[str, Value]:
    if launch is None:
        return {}
    known = (launch.shared_bytes, launch.static_shared_bytes)
    shared = {} if None in known else {"shared_bytes": sum(size or 0 for size in known)}
    sizes = (*launch.grid, launch.blocks, *launch.block, launch.threads)
    return {**dict(zip(LAUNCH_AXES, sizes, strict=False)), **shared}
