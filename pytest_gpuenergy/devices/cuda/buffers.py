"""The sets of a kernel's buffers in a GPU's memory, with the guard bands of their arenas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_gpuenergy.devices.arena import GUARD_BYTES, Arena, Bytes, arena_bytes, guard
from pytest_gpuenergy.devices.buffer_sets import pool_bytes, scattered_offsets, set_layout
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Role, stored_as

BufferSet = Mapping[str, Any]
"""The images of all tensors and workspaces by name, as CuPy arrays of bytes."""

_INFINITY = 0x7F800000  # as a float32
_FIRST_BYTES = 1 << 16
"""The bytes of a workspace's poison that come from the host, a multiple of two words."""
_POISONS: tuple[tuple[int, ...], ...] = (
    (),
    (_INFINITY, _INFINITY | 1 << 31),
    (_INFINITY | 1 << 31, _INFINITY),
)


class CudaBuffers:
    """Makes sets of a kernel's tensors and workspaces, and copies between them and the arenas."""

    def __init__(self, cupy: Any, kernel: AnyKernel, arenas: Mapping[str, Arena]) -> None:
        self._cupy = cupy
        self._kernel = kernel
        self._arenas = arenas
        self._refills = 0

    @property
    def in_place(self) -> bool:
        """Whether the arenas are in the GPU's memory, so that kernels can run on them."""
        return any(arena.memory.in_place for arena in self._arenas.values())

    @property
    def set_bytes(self) -> int:
        """The size of the tensors and workspaces of a set, in bytes."""
        tensors = [*(arena.tensor for arena in self._arenas.values()), *self._kernel.workspaces]
        return sum(tensor.nbytes for tensor in tensors)

    def upload(self) -> BufferSet:
        """Return a set of the arenas, or copies if they are not in place, and new workspaces."""
        return self._tensor_images() | self._new_workspaces()

    def refill(self, buffer_set: BufferSet) -> None:
        """Write the arenas' contents to a set, and the next kind of poison to its workspaces.

        As on the emulated GPU, the poison is NaN at first, then alternates between +inf and -inf,
        then between -inf and +inf: a maximum or minimum ignores NaN and one of the infinities.
        """
        kind = self._refills % len(_POISONS)
        self._refills += 1
        for name, arena in self._arenas.items():
            if not arena.memory.in_place:
                buffer_set[name].set(arena.image())
        for space in self._kernel.workspaces:
            # The guard bands have their own pattern.
            payload = buffer_set[space.name][GUARD_BYTES : GUARD_BYTES + space.nbytes]
            payload.data.memset(0xFF, payload.nbytes)
            self._repeat(payload[: space.nbytes // 4 * 4], np.array(_POISONS[kind], np.uint32))

    def side_by_side(self, count: int) -> list[BufferSet]:
        """Return sets like that of `upload`, where the driver places them."""
        first = self._tensor_images()
        return [
            {name: self.copied(image) for name, image in first.items()} | self._new_workspaces()
            for _ in range(count)
        ]

    def scattered(self, count: int) -> list[BufferSet]:
        """Return sets like that of `upload`, at random places in a large piece of memory."""
        first = self.upload()
        sizes = {name: image.nbytes for name, image in first.items()}
        layout = set_layout(sizes)
        lengths = count * [max(at + sizes[name] for name, at in piece.items()) for piece in layout]
        free_bytes, _ = self._cupy.cuda.runtime.memGetInfo()
        pool = self._cupy.empty(pool_bytes(lengths, free_bytes), dtype=np.uint8)
        places = iter(scattered_offsets(lengths, pool.nbytes, np.random.default_rng()))
        sets: list[BufferSet] = []
        for _ in range(count):
            buffers = {}
            for piece in layout:
                place = next(places)
                for name, at in piece.items():
                    buffers[name] = pool[place + at : place + at + sizes[name]]
                    buffers[name].data.copy_from_device(first[name].data, sizes[name])
            sets.append(buffers)
        return sets

    def staged(self, *roles: Role) -> BufferSet:
        """Return copies, in the GPU's memory, of the arenas' tensors with these roles."""
        staged = {}
        for name, arena in self._arenas.items():
            if arena.tensor.role in roles:
                payload = arena.payload(arena.image())
                if arena.memory.in_place:
                    staged[name] = self.copied(payload)
                else:
                    staged[name] = self._cupy.empty(payload.shape, payload.dtype)
                    staged[name].set(payload)
        self._cupy.cuda.Device().synchronize()  # copies from host memory may still be in progress
        return staged

    def copied(self, image: Any) -> Any:
        """Return a copy of an array of bytes, which is enqueued on the current stream.

        CuPy's own functions would have to compile and load a kernel in each process.
        """
        copy = self._cupy.empty(image.shape, image.dtype)
        copy.data.copy_from_device_async(image.data, image.nbytes)
        return copy

    def overwrite(self, buffer_set: BufferSet, staged: BufferSet) -> None:
        """Enqueue a copy of `staged` tensors to a set, on the current stream."""
        for name, content in staged.items():
            payload: Any = self._arenas[name].payload(buffer_set[name])
            payload.data.copy_from_device_async(content.data, content.nbytes)

    def windows(
        self, buffer_set: BufferSet, number: int, nbytes: int, *, whole: bool = False
    ) -> list[tuple[Any, int]]:
        """Return parts of the tensors that kernels write, with the sizes of their elements.

        ``number`` chooses the part of each tensor that is longer than ``nbytes``. ``whole`` says
        that the buffers have guard bands, as those of a set do and `staged` tensors do not.
        """
        found = []
        for name, arena in self._arenas.items():
            if arena.tensor.is_written:
                payload: Any = arena.payload(buffer_set[name]) if whole else buffer_set[name]
                start = number % max(1, payload.nbytes // nbytes) * nbytes
                size = stored_as(arena.tensor.dtype).itemsize
                found.append((payload[start : start + nbytes], size))
        return found

    def read(self, buffer_set: BufferSet) -> dict[str, Bytes]:
        """Return the images of a set's tensors, in the memory of the arenas."""
        return {
            name: buffer_set[name] if arena.memory.in_place else buffer_set[name].get()
            for name, arena in self._arenas.items()
        }

    def store(self, images: Mapping[str, Bytes]) -> None:
        """Write images to the arenas."""
        for name, image in images.items():
            there = self._arenas[name].image(writable=True)
            if there is not image:
                there[:] = image
        self._cupy.cuda.Device().synchronize()

    def check_workspaces(self, buffer_set: BufferSet) -> None:
        """Raise a fault if the kernel wrote into a guard band of a set's workspaces."""
        for space in self._kernel.workspaces:
            image, end = buffer_set[space.name], GUARD_BYTES + space.nbytes
            for at, band in ((0, image[:GUARD_BYTES]), (end, image[end:])):
                if (band.get() != guard(space.name, at, band.size)).any():
                    raise KernelFault(
                        "correctness", f"The kernel writes outside its workspace {space.name!r}."
                    )

    @staticmethod
    def _repeat(payload: Any, words: Any) -> None:
        """Fill bytes with words in turn, if there are any, by copies that double in length."""
        filled = min(_FIRST_BYTES, payload.nbytes) if words.size else payload.nbytes
        if words.size:
            payload[:filled].set(np.resize(words.view(np.uint8), filled))
        while filled < payload.nbytes:
            count = min(filled, payload.nbytes - filled)
            payload[filled : filled + count].data.copy_from_device_async(
                payload[:count].data, count
            )
            filled += count

    def _tensor_images(self) -> dict[str, Any]:
        return {name: self._cupy.asarray(arena.image()) for name, arena in self._arenas.items()}

    def _new_workspaces(self) -> dict[str, Any]:
        images = {}
        for space in self._kernel.workspaces:
            image = self._cupy.empty(arena_bytes(space), dtype=np.uint8)
            # Not `full`: that is a kernel, which CuPy would have to load first in each process.
            image.data.memset(0xFF, image.nbytes)
            end = GUARD_BYTES + space.nbytes
            image[:GUARD_BYTES].set(guard(space.name, 0, GUARD_BYTES))
            image[end:].set(guard(space.name, end, image.nbytes - end))
            images[space.name] = image
        return images
