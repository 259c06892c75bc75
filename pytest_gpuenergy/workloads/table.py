"""The workloads this project ships, by name."""

from __future__ import annotations

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.workloads.conv2d import Conv2d

CASES: dict[str, Conv2d] = {
    workload.name: workload
    for workload in (
        # N, H, W, CO, CI, KH, KW, stride, padding
        Conv2d.of("case1", 1, 272, 272, 64, 32, 3, 3, 1, 1),
        Conv2d.of("case2", 1, 68, 68, 256, 128, 3, 3, 1, 1),
        Conv2d.of("case3", 1, 34, 34, 512, 256, 3, 3, 1, 1),
        Conv2d.of("case4", 1, 17, 17, 1024, 512, 3, 3, 1, 1),
        Conv2d.of("case5", 1, 56, 56, 64, 64, 3, 3, 1, 1),
        Conv2d.of("case6", 1, 28, 28, 128, 128, 3, 3, 1, 1),
        Conv2d.of("case7", 1, 14, 14, 256, 256, 3, 3, 1, 1),
    )
}


def find_workload(name: str) -> Conv2d:
    """The shipped workload called ``name``.

    Raises:
        InputError: there is none of that name.
    """
    try:
        return CASES[name]
    except KeyError:
        known = ", ".join(CASES)
        raise InputError(f"There is no workload {name!r}: choose one of {known}.") from None
