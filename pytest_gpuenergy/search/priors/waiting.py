"""How often a thread of a CUDA kernel waits for loads, by what the compiler can load ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.priors.averages import LOOPS, Averages
from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.tree import ancestors, field, inside, nodes

if TYPE_CHECKING:
    from tree_sitter import Node

BARRIERS = ("__syncthreads", "__syncwarp")
_IN_FLIGHT = 8
"""Loads of a thread at a time, as in the timing model of the emulated GPU; a guess."""
_ROUNDS_AHEAD = 4
"""Of a loop that nvcc repeats because its ends are not known, as machine code for sm_90 shows."""


class Waiting:
    """Rounds of loads, each of which takes their latency once.

    The compiler moves loads ahead within a straight piece of code. It repeats the body of an inner
    loop and moves its loads ahead, too, unless a branch, a barrier or another loop is in the way.

    Args:
        text: of the kernel.
        averages: of its loops.
    """

    def __init__(self, text: CudaText, averages: Averages) -> None:
        self._text = text
        self._averages = averages
        self._straight: dict[int, bool] = {}

    def rounds(self, loads: Iterable[Node]) -> float:
        """Of the thread that waits most, for loads at these places."""
        pieces: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
        around: dict[tuple[int, int], tuple[Node | None, Node | None]] = {}
        for load in loads:
            loop, branch = self._around(load)
            key = loop.id if loop else 0, branch.id if branch else 0
            pieces[key].append(load)
            around[key] = loop, branch
        return sum(self._of_piece(*around[key], some) for key, some in pieces.items())

    def _around(self, load: Node) -> tuple[Node | None, Node | None]:
        """The innermost loop that stays one, and the branch in it, if the load is in one."""
        branch = None
        for outer in ancestors(load):
            if outer.type in LOOPS and not self._is_unrolled(outer):
                return outer, branch
            condition = field(outer, "condition") if outer.type == "if_statement" else None
            if branch is None and condition is not None and not inside(load, condition):
                branch = outer
        return None, branch

    def _of_piece(self, loop: Node | None, branch: Node | None, loads: list[Node]) -> float:
        passes = 1.0
        if loop is not None:
            passes = self._averages.times(loop).most * self._averages.rounds(loop).most
        count = sum(self._averages.times(load).most for load in loads)
        if not passes:
            return 0.0
        each = count / passes
        ahead = 1.0
        if loop is not None and branch is None and self._is_straight(loop):
            ahead = min(_ROUNDS_AHEAD, max(1.0, _IN_FLIGHT / each))
        return max(min(1.0, passes), passes / ahead) * max(1.0, each / _IN_FLIGHT)

    def _is_straight(self, loop: Node) -> bool:
        if loop.id not in self._straight:
            inner = (one for one in nodes(loop, *LOOPS) if one != loop)
            self._straight[loop.id] = all(map(self._is_unrolled, inner)) and not any(
                True for _ in self._text.calls(loop, *BARRIERS)
            )
        return self._straight[loop.id]

    def _is_unrolled(self, loop: Node) -> bool:
        return loop.type == "for_statement" and self._averages.is_constant(loop)
