"""Arenas: tensors between guard bands, in memory that processes share."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pytest_gpuenergy.devices.arrays import Arrays, HostArrays, Memory
from pytest_gpuenergy.devices.guards import GUARD_BYTES, Bytes, guard
from pytest_gpuenergy.workloads import Array, Tensor, repeated, stored_as, write_repeated

_ALIGNMENT = 256


@dataclass(frozen=True)
class FileMemory:
    """The contents of a file: devices run kernels on copies, or map it themselves."""

    path: Path
    arrays: ClassVar[Arrays] = HostArrays()
    in_place: ClassVar[bool] = False

    def image(self, *, writable: bool = False) -> Bytes:
        """The whole file, mapped."""
        # np.memmap takes five times as long, and a search does this thousands of times.
        with self.path.open("r+b" if writable else "rb") as file:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)


@dataclass(frozen=True)
class Arena:
    """A tensor's bytes between two guard bands.

    Its arrays are of the place where its memory is, and are to be used while that is, see `Arrays`.

    The memory holds ``GUARD_BYTES`` of `guard`, the tensor, and again ``GUARD_BYTES``, with up to
    255 more bytes to make its length a multiple of 256.
    """

    tensor: Tensor
    memory: Memory

    @classmethod
    def create(cls, path: Path, tensor: Tensor, value: Array | None = None) -> Arena:
        """Write a file with ``value`` as the payload, see `fill`.

        Raises:
            OSError: there is no room.
        """
        with path.open("wb") as file:  # a full disk would kill the process that had mapped it
            for piece in _pieces(tensor, value):
                file.write(piece.data)
        return cls(tensor, FileMemory(path))

    @classmethod
    def within(cls, memory: Memory, tensor: Tensor, value: Array | None = None) -> Arena:
        """Use memory of `arena_bytes`, with ``value`` as the payload, see `fill`."""
        arena, end = cls(tensor, memory), GUARD_BYTES + tensor.nbytes
        with memory.arrays.used():
            image = memory.image(writable=True)
            for begin, stop in ((0, GUARD_BYTES), (end, image.size)):
                image[begin:stop] = memory.arrays.put(guard(tensor.name, begin, stop - begin))
        arena.fill(value)
        return arena

    def image(self, *, writable: bool = False) -> Bytes:
        """All bytes, where they are."""
        return self.memory.image(writable=writable)

    def payload(self, image: Bytes) -> Bytes:
        """The tensor's bytes in an image."""
        return image[GUARD_BYTES : GUARD_BYTES + self.tensor.nbytes]

    def elements(self, *, writable: bool = False) -> Array:
        """The tensor itself, where it is."""
        payload = self.payload(self.image(writable=writable))
        return payload.view(stored_as(self.tensor.dtype)).reshape(self.tensor.shape)

    def value(self) -> Array:
        """A copy of the tensor."""
        return self.elements().copy()

    def bits(self) -> Array:
        """A flat copy of the tensor on the host, as unsigned integers with its elements' bits."""
        with self.memory.arrays.used():
            flat = self.memory.arrays.get(self.payload(self.image()).copy())
        return flat.view(f"u{stored_as(self.tensor.dtype).itemsize}")

    def guards(self) -> tuple[Bytes, Bytes]:
        """The two guard bands, on the host; the second with what follows it."""
        image, end = self.image(), GUARD_BYTES + self.tensor.nbytes
        before, after = map(self.memory.arrays.get, (image[:GUARD_BYTES], image[end:]))
        return before.view(np.uint8), after.view(np.uint8)

    def fill(self, value: Array | None = None) -> None:
        """Overwrite the tensor.

        Args:
            value: its elements, or its `beginning`, which is repeated; wherever that is. Without
                one, every byte becomes 0xFF (NaN).

        Raises:
            ValueError: this is no value of the tensor.
        """
        with self.memory.arrays.used():
            if value is None:
                self.payload(self.image(writable=True))[:] = 0xFF
            else:
                first = self.memory.arrays.put(_checked(self.tensor, value))
                write_repeated(first, self.elements(writable=True))


def arena_bytes(tensor: Tensor) -> int:
    """Size of an arena's memory."""
    return 2 * GUARD_BYTES + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _pieces(tensor: Tensor, value: Array | None) -> Iterator[Bytes]:
    """The contents of a file."""
    end = GUARD_BYTES + tensor.nbytes
    yield guard(tensor.name, 0, GUARD_BYTES)
    if value is None:
        nan = np.full(GUARD_BYTES, 0xFF, np.uint8)
        for begin in range(0, tensor.nbytes, GUARD_BYTES):
            yield nan[: tensor.nbytes - begin]
    else:
        whole = repeated(_checked(tensor, value), tensor.shape)
        yield np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
    yield guard(tensor.name, end, arena_bytes(tensor) - end)


def _checked(tensor: Tensor, value: Array) -> Array:
    if value.dtype != stored_as(tensor.dtype):
        raise ValueError(f"{tensor.name} is {tensor.dtype}, not {value.dtype}")
    return value
