"""The process that owns a CUDA context and runs other people's kernels in it. It may die."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeVar

import numpy as np

from pytest_gpuenergy.devices.cache import CacheState, sets_needed
from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater
from pytest_gpuenergy.devices.cuda.nvrtc import Binary
from pytest_gpuenergy.devices.device import GUARD_BYTES, Arena, Launches, Timeline
from pytest_gpuenergy.devices.places import pieces, placements, pool_bytes, scattered
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import KernelFault, Outcome
from pytest_gpuenergy.workloads.workload import Scalar, Tensor

_T = TypeVar("_T")

_CONSTRAINTS = (
    "INVALID_CONFIGURATION",
    "INVALIDCONFIGURATION",
    "OUT_OF_RESOURCES",
    "OUTOFRESOURCES",
    "INVALID_VALUE",
    "INVALIDVALUE",
    "OUT_OF_MEMORY",
    "MEMORYALLOCATION",
)


class CudaRunner:
    """Runs kernels on the first GPU this process sees. Every method may raise KernelFault."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        # Blocks are returned at once: a kernel must not read what an earlier one left behind.
        cupy.cuda.set_allocator(None)
        self._repeater: GraphRepeater | None = None
        self._kept: list[Any] = []

    def run_once(
        self,
        kernel: Kernel,
        binary: Binary,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
    ) -> None:
        """Run the kernel once, in place on the arenas; workspaces are checked for overruns."""

        def run() -> None:
            images = {name: self._upload(arena.image()) for name, arena in arenas.items()}
            spaces = {space.name: self._workspace(space) for space in kernel.workspaces}
            self._bind(kernel, binary, {**images, **spaces}, arenas, scalars)()
            self._cupy.cuda.Device().synchronize()
            for name, arena in arenas.items():
                target = arena.image("r+")
                target[:] = images[name].get()
            for space in kernel.workspaces:
                image = spaces[space.name].get()
                after = image[GUARD_BYTES + space.nbytes :]
                if (image[:GUARD_BYTES] != 0xFF).any() or (after != 0xFF).any():
                    raise KernelFault(
                        "correctness", f"The kernel writes outside its workspace {space.name!r}."
                    )

        self._guarded(run)

    def load(
        self,
        kernel: Kernel,
        binary: Binary,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        cache: CacheState = "hot",
        spread: bool = False,
    ) -> None:
        """Load the kernel with its buffers, ready for `start`; what was loaded before is freed."""

        def load() -> None:
            self.unload()
            images = {name: self._upload(arena.image()) for name, arena in arenas.items()}
            size = sum(tensor.nbytes for tensor in _buffers(kernel, arenas))
            if cache == "cold":
                l2_bytes = int(self._cupy.cuda.Device().attributes["L2CacheSize"])
                sets = self._sets(sets_needed(size, l2_bytes), kernel, images)
            elif spread:
                sets = self._scattered_sets(placements(size), kernel, images)
            else:
                sets = self._sets(1, kernel, images)
            self._kept += sets
            turns = [self._bind(kernel, binary, buffers, arenas, scalars) for buffers in sets]
            self._repeater = (
                GraphRepeater([_in_turn(turns)], multiple=len(sets))
                if cache == "cold"
                else GraphRepeater(turns)
            )

        self._guarded(load)

    def start(self) -> None:
        """Begin running back to back."""
        self._guarded(self._loaded().start)

    def stop(self) -> Timeline:
        """Stop running and tell what was done."""
        return self._guarded(self._loaded().stop)

    def launch(self, count: int) -> Launches:
        """Launch from the host, and wait."""
        return self._guarded(lambda: self._loaded().launch(count))

    def unload(self) -> None:
        """Free what `load` made."""
        self._repeater, self._kept = None, []

    def describe(self) -> dict[str, str]:
        """Versions of CuPy and the CUDA runtime."""
        runtime = self._cupy.cuda.runtime.runtimeGetVersion()
        return {
            "cupy": str(self._cupy.__version__),
            "cuda_runtime": f"{runtime // 1000}.{runtime % 1000 // 10}",
        }

    def _loaded(self) -> GraphRepeater:
        if self._repeater is None:
            raise RuntimeError("no kernel is loaded")
        return self._repeater

    def _upload(self, image: Any) -> Any:
        return self._cupy.asarray(np.asarray(image))

    def _workspace(self, space: Tensor) -> Any:
        image = self._cupy.empty(_workspace_bytes(space), dtype=np.uint8)
        # Not with `full`, which is a kernel that each process of CuPy's has to prepare first.
        image.data.memset(0xFF, image.nbytes)
        return image

    def _sets(self, count: int, kernel: Kernel, images: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Sets of buffers, each where the driver puts it."""
        return [
            {name: image.copy() for name, image in images.items()}
            | {space.name: self._workspace(space) for space in kernel.workspaces}
            for _ in range(count)
        ]

    def _scattered_sets(
        self, count: int, kernel: Kernel, images: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Sets of buffers at random places in a large piece of memory."""
        sizes = {name: image.nbytes for name, image in images.items()}
        sizes |= {space.name: _workspace_bytes(space) for space in kernel.workspaces}
        of_set = pieces(sizes)
        lengths = count * [max(at + sizes[name] for name, at in one.items()) for one in of_set]
        free_bytes, _ = self._cupy.cuda.runtime.memGetInfo()
        pool = self._cupy.empty(pool_bytes(lengths, free_bytes), dtype=np.uint8)
        places = iter(scattered(lengths, pool.nbytes, np.random.default_rng()))
        sets = []
        for _ in range(count):
            buffers = {}
            for piece in of_set:
                place = next(places)
                for name, at in piece.items():
                    buffers[name] = pool[place + at : place + at + sizes[name]]
            for name, buffer in buffers.items():
                if name in images:
                    buffer.data.copy_from_device(images[name].data, buffer.nbytes)
                else:
                    buffer.data.memset(0xFF, buffer.nbytes)
            sets.append(buffers)
        return sets

    def _bind(
        self,
        kernel: Kernel,
        binary: Binary,
        images: Mapping[str, Any],
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
    ) -> Callable[[], None]:
        """A function that launches the kernel once on the current stream."""
        module = self._cupy.RawModule(path=str(binary.path))
        sizes = {name: arena.tensor.nbytes for name, arena in arenas.items()}
        sizes |= {space.name: space.nbytes for space in kernel.workspaces}
        values: dict[str, Any] = {
            name: image[GUARD_BYTES : GUARD_BYTES + sizes[name]] for name, image in images.items()
        }
        values |= {
            name: np.dtype(scalar.dtype).type(scalar.value) for name, scalar in scalars.items()
        }
        plan = []
        for launch in kernel.launches:
            function = module.get_function(binary.symbols[launch.entry])
            if launch.shared_bytes > 48 * 1024:
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
            arguments = tuple(values[name] for name in launch.arguments)
            plan.append((function, launch.grid, launch.block, arguments, launch.shared_bytes))

        def enqueue() -> None:
            for function, grid, block, arguments, shared_bytes in plan:
                function(grid, block, arguments, shared_mem=shared_bytes)

        return enqueue

    def _guarded(self, action: Callable[[], _T]) -> _T:
        cupy = self._cupy
        errors: Sequence[type[Exception]] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.memory.OutOfMemoryError,
        )
        try:
            return action()
        except tuple(errors) as error:
            said = str(error)
            outcome: Outcome = "runtime"
            if isinstance(error, cupy.cuda.memory.OutOfMemoryError) or any(
                word in said.upper().replace("CUDAERROR", "") for word in _CONSTRAINTS
            ):
                outcome = "constraints"
            raise KernelFault(outcome, f"CUDA: {said}.") from None


def _buffers(kernel: Kernel, arenas: Mapping[str, Arena]) -> list[Tensor]:
    return [*(arena.tensor for arena in arenas.values()), *kernel.workspaces]


def _workspace_bytes(space: Tensor) -> int:
    return 2 * GUARD_BYTES + -(-space.nbytes // 256) * 256


def _in_turn(actions: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """A function that does one of ``actions`` at each call, in a circle."""
    turns = cycle(actions)
    return lambda: next(turns)()
