"""A kernel too slow to be launched often is launched in parts, on the results of its latest run."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from pathlib import Path

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import AFFORDABLE_S, HostKernel
from pytest_gpuenergy.workloads import Tensor

SIZE = 8
SLOW_S, FAST_S = 3 * AFFORDABLE_S, AFFORDABLE_S / 2


class Program:
    """Writes the number of the run to all elements, or in a part of a launch to every stride-th."""

    def __init__(self, arena: Arena, launches_s: list[float]) -> None:
        self.arena, self.launches_s, self.runs = arena, launches_s, 0

    def run(
        self,
        *,
        order_seed: int = 0,  # noqa: ARG002 -- as of a `HostProgram`, like the following
        fresh: bool = True,
        most: int = 1,  # noqa: ARG002
        budget_s: float = 0.0,  # noqa: ARG002
        stride: int = 1,
    ) -> tuple[int, float]:
        self.runs += fresh
        values = self.arena.value()
        values[::stride] = self.runs
        self.arena.fill(values)
        return 1, self.launches_s[self.runs - 1]


@pytest.mark.parametrize(
    "launches_s", [[SLOW_S] * 3, [SLOW_S, SLOW_S, FAST_S], [SLOW_S, FAST_S, SLOW_S]]
)
def test_what_a_part_does_not_write_is_from_the_latest_run(
    tmp_path: Path, launches_s: list[float]
) -> None:
    arena = Arena.create(tmp_path / "y", Tensor("y", (SIZE,), "float32", "output"))
    program = Program(arena, launches_s)
    with ExitStack() as stack:
        kernel = HostKernel(
            lambda: None, lambda: nullcontext(program), stack, [arena], divisible=True
        )
        for _ in launches_s:
            kernel.run()
        (left,) = [arena.value() for _ in kernel.relaunch(once=False)]
    np.testing.assert_array_equal(left, np.full(SIZE, 3, np.float32))
