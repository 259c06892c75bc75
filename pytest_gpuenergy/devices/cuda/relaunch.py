"""Launches a loaded kernel again on the sets of buffers with which it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pytest_gpuenergy.devices.cuda.buffers import BufferSet, CudaBuffers
from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater
from pytest_gpuenergy.devices.guards import Bytes

Result = Mapping[str, Bytes]
"""The images of a set's tensors, by name."""


class CudaRelaunch:
    """The worker's half of `Relaunching.relaunch`.

    Args:
        repeater: of the kernel.
        buffers: made the sets.
        sets: those of each turn of the repeater.
    """

    def __init__(
        self, repeater: GraphRepeater, buffers: CudaBuffers, sets: Sequence[Sequence[BufferSet]]
    ) -> None:
        self._repeater = repeater
        self._buffers = buffers
        self._sets = sets
        self._outputs: BufferSet = {}
        self._first: Result | None = None
        self._results: list[Result] = []

    def begin(self) -> int:
        """Stage the outputs in the arenas, and return how many turns have been used."""
        self._outputs, self._first = self._buffers.staged("output", "inout"), None
        return self._repeater.used

    def relaunch(self, turn: int, *, once: bool) -> tuple[int, int]:
        """Launch a turn again on the outputs that `begin` has staged.

        Returns:
            The number of launches so far, and the number of results for `fetch`: that of the first
            set since `begin`, and those that may differ from it.

        Raises:
            KernelFault: the kernel has written outside a workspace.
        """
        sets = self._sets[turn]

        def prepare(_: object) -> None:
            for one in sets:
                self._buffers.overwrite(one, self._outputs)

        self._repeater.relaunch(turn, prepare, once=once)
        self._results = []
        for one in sets:
            self._buffers.check_workspaces(one)
            result = self._buffers.read(one)
            if self._first is None:
                self._first = result
            elif not self._buffers.in_place and _same(result, self._first):
                continue
            self._results.append(result)
        return self._repeater.launches, len(self._results)

    def fetch(self, number: int) -> None:
        """Write a result of the last `relaunch` to the arenas."""
        self._buffers.store(self._results[number])


def _same(one: Result, other: Result) -> bool:
    # Words are compared faster than bytes; the length of an image is a multiple of 256.
    return all(
        np.array_equal(image.view(np.uint64), other[name].view(np.uint64))
        for name, image in one.items()
    )
