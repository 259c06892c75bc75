"""How long it takes from one launch in a CUDA graph to the next, by what its process did before.

    python bench/validation/launch_gaps.py | tee launch-gaps.txt

Needs a GPU and CuPy. Each line is a process of its own that does one thing after the other. Before
the first and after each it replays a graph of 400 launches of a kernel that does nothing: the
figure is the GPU's time between two of them, in us, the least of four replays.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

LAUNCHES = 400
REPLAYS = 4
SOURCE = """
extern "C" __global__ void nothing() {}
extern "C" __global__ void something(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }
"""
GRID, BLOCK = 1024, 256

Step = tuple[str, str, Sequence[Any]]
"""What it is called, and the method of `Process` that does it, with its arguments."""

ROWS: Sequence[Sequence[Step]] = (
    [("nothing", "nothing", ())] * 3,
    (
        ("64 launches from the host", "from_host", (0, 64)),
        ("64 more on another stream", "from_host", (1, 64)),
        ("64 more on the first", "from_host", (0, 64)),
    ),
    (
        ("a graph is uploaded", "make_graph", (1600, True)),
        ("and launched", "launch_graphs", ()),
        ("another is uploaded", "make_graph", (300, True)),
        ("and launched", "launch_graphs", ()),
    ),
    [
        step
        for _ in range(12)
        for step in (
            ("a graph is made", "make_graph", (1024, False)),
            ("and all are launched", "launch_graphs", ()),
        )
    ],
    [
        step
        for _ in range(12)
        for step in (
            ("a graph is made and launched", "make_graph", (1024, False)),
            ("and freed", "free_graphs", ()),
        )
    ],
)


class Process:
    """What the lines' processes can do. Needs CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
        self._nothing = module.get_function("nothing")
        self._something = module.get_function("something")
        self._array = cupy.zeros(GRID * BLOCK, dtype=cupy.float32)
        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        self._graphs: list[Any] = []
        self._launch_nothing()
        self._launch_something()
        cupy.cuda.Device().synchronize()
        self._probe = self._captured(self._launch_nothing, LAUNCHES)
        self._marks = [cupy.cuda.Event() for _ in range(2)]

    def gap_us(self) -> float:
        """The least mean gap of some replays."""
        begin, end = self._marks
        gaps_us = []
        for _ in range(REPLAYS):
            begin.record(self._streams[0])
            self._probe.launch(self._streams[0])
            end.record(self._streams[0])
            end.synchronize()
            gaps_us.append(1e3 * self._cupy.cuda.get_elapsed_time(begin, end) / LAUNCHES)
        return float(min(gaps_us))

    def nothing(self) -> None:
        """For the line to compare with."""

    def from_host(self, stream: int, count: int) -> None:
        """Launches without a graph."""
        with self._streams[stream]:
            for _ in range(count):
                self._launch_something()
        self._streams[stream].synchronize()

    def make_graph(self, launches: int, upload: bool) -> None:
        """A graph of so many launches, which is launched once unless it is uploaded."""
        graph = self._captured(self._launch_something, launches)
        if upload:
            graph.upload(self._streams[0])
        else:
            graph.launch(self._streams[0])
        self._streams[0].synchronize()
        self._graphs.append(graph)

    def launch_graphs(self) -> None:
        """All that there are, one after the other."""
        for graph in self._graphs:
            graph.launch(self._streams[0])
        self._streams[0].synchronize()

    def free_graphs(self) -> None:
        """All that there are."""
        self._graphs.clear()

    def _launch_nothing(self) -> None:
        self._nothing((1,), (32,), ())

    def _launch_something(self) -> None:
        self._something((GRID,), (BLOCK,), (self._array,))

    def _captured(self, launch: Any, count: int) -> Any:
        stream = self._streams[0]
        with stream:
            stream.begin_capture()
            for _ in range(count):
                launch()
            return stream.end_capture()


def follow(row: Sequence[Step]) -> None:
    """Print one line."""
    process = Process()
    print(f"{process.gap_us():.3f}", end="", flush=True)
    for name, method, arguments in row:
        getattr(process, method)(*arguments)
        print(f"  {name}: {process.gap_us():.3f}", end="", flush=True)
    print()


def main(words: Sequence[str]) -> int:
    """Print the lines, or the one of the number given."""
    if words:
        follow(ROWS[int(words[0])])
        return 0
    for number in range(len(ROWS)):
        subprocess.run([sys.executable, __file__, str(number)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
