"""Launches a loaded kernel again on the buffers of its measurement, to verify its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_gpuenergy.devices.arena import Bytes
from pytest_gpuenergy.devices.cuda.array_kernels import KernelMath
from pytest_gpuenergy.devices.cuda.buffers import BufferSet, CudaBuffers
from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater
from pytest_gpuenergy.devices.host_clock import monotonic_s

Result = Mapping[str, Bytes]
"""The images of a set's tensors, by name."""

SINGLE = 33
"""The largest number of single launches in a row, which start from the same false outputs. A kernel
that skips every 33rd launch, or works at every 33rd launch only, fails."""
SINGLE_S = 0.02
"""The time limit for these launches."""
BURST = 2000
"""The largest number of launches before the results of a kernel that is verified are read again."""
BURST_S = 0.04
"""The time limit for these launches."""
_WINDOW, _HOST_WINDOW = 1 << 24, 1 << 20
"""The number of bytes of a tensor that are compared after a single launch, on the GPU and where
they have to be copied to the host, which takes longer than most launches."""
_MAX_BEFORE = 8
"""The largest number of launches before a single launch."""


class HostLaunches:
    """Launches a kernel from the host when it is verified without having been measured.

    It counts ``launches`` and ``used`` turns as a `GraphRepeater` does.
    """

    def __init__(self, cupy: Any, launch: Callable[[], object]) -> None:
        self._device = cupy.cuda.Device()
        self._launch = launch
        self.launches, self.used = 0, 1

    def relaunch(
        self,
        turn: int,  # noqa: ARG002 -- a kernel that is verified has one set of buffers
        prepare: Callable[[object], object],
        *,
        once: bool,
        again: Callable[[], bool],
    ) -> None:
        """Launch up to `BURST` times, or a few times; then do as `GraphRepeater.relaunch`."""
        most = 1 + int(np.random.default_rng().integers(_MAX_BEFORE)) if once else BURST
        deadline_s, made = monotonic_s() + BURST_S, 0
        while not made or (made < most and monotonic_s() < deadline_s):
            # Twice as many each time: waiting for a launch takes several times as long as it does.
            count = min(max(1, made), most - made)
            self._launch_all(count)
            made += count
        while True:
            prepare(None)
            self._launch_all(1)
            if not (once and again()):
                return

    def _launch_all(self, count: int) -> None:
        for _ in range(count):
            self._launch()
        self._device.synchronize()
        self.launches += count


class CudaRelaunch:
    """The worker's part of `Relaunching.relaunch`, with the sets of buffers of each turn."""

    def __init__(
        self,
        repeater: GraphRepeater | HostLaunches,
        buffers: CudaBuffers,
        sets: Sequence[Sequence[BufferSet]],
    ) -> None:
        self._repeater = repeater
        self._buffers = buffers
        self._sets = sets
        self._math = KernelMath(None)
        self._outputs: BufferSet = {}
        self._first: Result | None = None
        self._first_set: BufferSet = {}
        self._results: list[Result] = []

    def begin(self, math: KernelMath) -> int:
        """Stage the outputs in the arenas, and return how many turns have been used.

        Args:
            math: compares on the GPU.
        """
        self._math = math
        self._outputs, self._first = self._buffers.staged("output", "inout"), None
        return self._repeater.used

    def relaunch(self, turn: int, *, once: bool) -> tuple[int, int]:
        """Launch a turn again on the outputs that `begin` has staged.

        Single launches are repeated until a launch skips an element that the first has written.

        Returns:
            The number of launches so far, and the number of results for `fetch`: the result of the
            first set since `begin`, and those that may differ from it.

        Raises:
            KernelFault: the kernel has written outside a workspace.
        """
        sets = self._sets[turn]

        def prepare(_: object) -> None:
            for buffer_set in sets:
                self._buffers.overwrite(buffer_set, self._outputs)

        first: list[Any] = []
        window = int(np.random.default_rng().integers(1 << 32))
        nbytes = _WINDOW if self._math.is_loaded else _HOST_WINDOW
        staged = self._buffers.windows(self._outputs, window, nbytes) * len(sets)
        deadline_s, left = 0.0, SINGLE

        def again() -> bool:
            nonlocal deadline_s, left
            deadline_s, left = deadline_s or monotonic_s() + SINGLE_S, left - 1
            now = [
                of_set
                for buffer_set in sets
                for of_set, _ in self._buffers.windows(buffer_set, window, nbytes, whole=True)
            ]
            if not first:
                first.extend(map(self._buffers.copied, now))
            skipped = any(
                self._math.is_skipped(before, has, had_first, size)
                for (before, size), has, had_first in zip(staged, now, first, strict=True)
            )
            return not skipped and left > 0 and monotonic_s() < deadline_s

        self._repeater.relaunch(turn, prepare, once=once, again=again)
        self._results = []
        for buffer_set in sets:
            self._buffers.check_workspaces(buffer_set)
            if self._equals_first(buffer_set):
                continue
            result = self._buffers.read(buffer_set)
            if self._first is None:
                self._first, self._first_set = result, buffer_set
            elif not self._buffers.in_place and all(
                # Words are compared faster than bytes; an image's length is a multiple of 256.
                np.array_equal(image.view(np.uint64), self._first[name].view(np.uint64))
                for name, image in result.items()
            ):
                continue
            self._results.append(result)
        return self._repeater.launches, len(self._results)

    def _equals_first(self, buffer_set: BufferSet) -> bool:
        """Return whether a set is known to hold the first result, without a copy to the host."""
        if self._first is None or not self._math.is_loaded:
            return False
        return not self._math.differing(
            [(buffer_set[name], self._first_set[name]) for name in self._first]
        )

    def fetch(self, number: int) -> None:
        """Write a result of the last `relaunch` to the arenas."""
        self._buffers.store(self._results[number])
