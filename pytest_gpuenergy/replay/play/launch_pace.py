"""Measures how soon one launch of a CUDA graph follows another, which a process can change.

On an H200, using a second stream or many graphs makes each launch of the process 0.18 µs longer.
A step that is measured before such a change is shorter than one after it, by that much for each of
its launches. Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.replay.account.account import LAUNCH_US

_LAUNCHES = 500
_TRIALS = 3


class LaunchPace:
    """A graph of empty kernels, on a stream of its own."""

    def __init__(self) -> None:
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            for _ in range(_LAUNCHES):
                torch.cuda._sleep(0)
        self.launch_us()  # uploads the graph

    def launch_us(self) -> float:
        """Return the time from one empty kernel to the next, in microseconds."""
        found = []
        with torch.cuda.stream(self._stream):
            for _ in range(_TRIALS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self._graph.replay()
                end.record()
                end.synchronize()
                found.append(1e3 * float(begin.elapsed_time(end)) / _LAUNCHES)
        return min(found)

    def noted(self, item: Replayable) -> Replayable:
        """Return what is replayed, whose record will have the pace after its measurement."""
        details = dict(item.details)

        @contextmanager
        def repeater() -> Iterator[Repeater]:
            with item.repeater() as found:
                yield found
                details[LAUNCH_US] = round(self.launch_us(), 4)

        return replace(item, repeater=repeater, details=details)
