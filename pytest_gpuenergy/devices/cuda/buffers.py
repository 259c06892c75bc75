"""Sets of a kernel's buffers in a GPU's memory, each between the guard bands of its arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_gpuenergy.devices.arena import GUARD_BYTES, Arena, Bytes, guard
from pytest_gpuenergy.devices.buffer_sets import pieces, pool_bytes, scattered
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Array, Role, Tensor, stored_as

BufferSet = Mapping[str, Any]
"""The images of all tensors and workspaces by name, as CuPy arrays of bytes."""

_INFINITY = 0x7F800000
_WINDOW = 1 << 20
_POISONS: tuple[tuple[int, ...], ...] = (
    (),
    (_INFINITY, _INFINITY | 1 << 31),
    (_INFINITY | 1 << 31, _INFINITY),
)


class CudaBuffers:
    """Makes sets of buffers, and copies contents between them and the arenas.

    Args:
        cupy: the module.
        kernel: its workspaces are part of each set.
        arenas: of its tensors, by name.
    """

    def __init__(self, cupy: Any, kernel: AnyKernel, arenas: Mapping[str, Arena]) -> None:
        self._cupy = cupy
        self._kernel = kernel
        self._arenas = arenas
        self._refills = 0

    @property
    def in_place(self) -> bool:
        """Whether the arenas are in the GPU's memory, as sets are."""
        return any(arena.memory.in_place for arena in self._arenas.values())

    @property
    def set_bytes(self) -> int:
        """Size of the tensors and workspaces of a set, in bytes."""
        tensors = [*(arena.tensor for arena in self._arenas.values()), *self._kernel.workspaces]
        return sum(tensor.nbytes for tensor in tensors)

    def upload(self) -> BufferSet:
        """A set with the arenas' contents, or the arenas themselves, and fresh workspaces."""
        return {
            name: self._cupy.asarray(arena.image()) for name, arena in self._arenas.items()
        } | self._workspaces()

    def refill(self, one: BufferSet) -> None:
        """Write the arenas' contents to a set, and the next kind of poison to its workspaces.

        As on the emulated GPU: NaN at first, then words of +inf and -inf in turn, then of -inf and
        +inf. A maximum or minimum ignores NaN, and one of the infinities.
        """
        kind = self._refills % len(_POISONS)
        self._refills += 1
        for name, arena in self._arenas.items():
            if not arena.memory.in_place:
                one[name].set(arena.image())
        for space in self._kernel.workspaces:
            # The guard bands have their own pattern.
            payload = one[space.name][GUARD_BYTES : GUARD_BYTES + space.nbytes]
            payload.data.memset(0xFF, payload.nbytes)
            words = payload[: space.nbytes // 4 * 4].view(np.uint32)
            for first, word in enumerate(_POISONS[kind]):
                words[first::2] = word

    def side_by_side(self, count: int) -> list[BufferSet]:
        """Sets like that of `upload`, where the driver places them."""
        first = self.upload()
        return [
            {name: first[name].copy() for name in self._arenas} | self._workspaces()
            for _ in range(count)
        ]

    def scattered(self, count: int) -> list[BufferSet]:
        """Sets like that of `upload`, at random places in a large piece of memory."""
        first = self.upload()
        sizes = {name: image.nbytes for name, image in first.items()}
        of_set = pieces(sizes)
        lengths = count * [max(at + sizes[name] for name, at in one.items()) for one in of_set]
        free_bytes, _ = self._cupy.cuda.runtime.memGetInfo()
        pool = self._cupy.empty(pool_bytes(lengths, free_bytes), dtype=np.uint8)
        places = iter(scattered(lengths, pool.nbytes, np.random.default_rng()))
        sets: list[BufferSet] = []
        for _ in range(count):
            buffers = {}
            for piece in of_set:
                place = next(places)
                for name, at in piece.items():
                    buffers[name] = pool[place + at : place + at + sizes[name]]
                    buffers[name].data.copy_from_device(first[name].data, sizes[name])
            sets.append(buffers)
        return sets

    def staged(self, *roles: Role) -> BufferSet:
        """Copies, in the GPU's memory, of the tensors of these roles in the arenas."""
        staged = {
            name: self._cupy.array(arena.payload(arena.image()))
            for name, arena in self._arenas.items()
            if arena.tensor.role in roles
        }
        self._cupy.cuda.Device().synchronize()  # copies from host memory may still be in progress
        return staged

    def overwrite(self, one: BufferSet, staged: BufferSet) -> None:
        """Enqueue a copy of what is `staged` to a set, on the current stream."""
        for name, content in staged.items():
            payload: Any = self._arenas[name].payload(one[name])
            payload.data.copy_from_device_async(content.data, content.nbytes)

    def windows(self, one: BufferSet, number: int, *, whole: bool = False) -> list[Array]:
        """Parts of the tensors that kernels write, as integers of the size of an element.

        Args:
            one: what is `staged`, or a set.
            number: chooses the part of each, of `_WINDOW` bytes, where it is longer.
            whole: it is a set, with guard bands.
        """
        found = []
        for name, arena in self._arenas.items():
            if arena.tensor.is_written:
                payload = arena.payload(one[name]) if whole else one[name]
                start = number % max(1, payload.nbytes // _WINDOW) * _WINDOW
                size = stored_as(arena.tensor.dtype).itemsize
                part: Any = payload[start : start + _WINDOW]
                found.append(np.asarray(part.get()).view(f"u{size}"))
        return found

    def read(self, one: BufferSet) -> dict[str, Bytes]:
        """The images of a set's tensors, copied to where the arenas are unless they are there."""
        return {
            name: one[name] if arena.memory.in_place else one[name].get()
            for name, arena in self._arenas.items()
        }

    def store(self, images: Mapping[str, Bytes]) -> None:
        """Write images to the arenas."""
        for name, image in images.items():
            there = self._arenas[name].image(writable=True)
            if there is not image:
                there[:] = image
        self._cupy.cuda.Device().synchronize()

    def check_workspaces(self, one: BufferSet) -> None:
        """Check the guard bands of a set's workspaces.

        Raises:
            KernelFault: the kernel wrote into one.
        """
        for space in self._kernel.workspaces:
            image, end = one[space.name], GUARD_BYTES + space.nbytes
            for at, band in ((0, image[:GUARD_BYTES]), (end, image[end:])):
                if (band.get() != guard(space.name, at, band.size)).any():
                    raise KernelFault(
                        "correctness", f"The kernel writes outside its workspace {space.name!r}."
                    )

    def _workspaces(self) -> dict[str, Any]:
        return {space.name: self._workspace(space) for space in self._kernel.workspaces}

    def _workspace(self, space: Tensor) -> Any:
        size = 2 * GUARD_BYTES + -(-space.nbytes // 256) * 256
        image = self._cupy.empty(size, dtype=np.uint8)
        # Not `full`: that is a kernel, which CuPy would have to load first in each process.
        image.data.memset(0xFF, image.nbytes)
        end = GUARD_BYTES + space.nbytes
        image[:GUARD_BYTES].set(guard(space.name, 0, GUARD_BYTES))
        image[end:].set(guard(space.name, end, size - end))
        return image
