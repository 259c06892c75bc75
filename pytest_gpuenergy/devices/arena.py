"""Arenas: tensors between guard bands, in memory that processes share."""

from __future__ import annotations

import functools
import mmap
import os
import zlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads import Array, ArrayMath, Tensor, repeated, stored_as, write_repeated

GUARD_BYTES = 65536
"""Length of the guard band on either side of a buffer; a multiple of every alignment needed."""

Bytes = npt.NDArray[np.uint8]
_ALIGNMENT = 256
"""The length of an arena is a multiple of this."""


class Arrays(ArrayMath, ABC):
    """The arrays of one memory, such as the host's or a GPU's; moves contents between the two.

    NumPy's functions compute where their arguments are, by the protocols of NEP 13, 18 and 35; they
    refuse a mixture of arrays from different memories.
    """

    @abstractmethod
    def used(self) -> AbstractContextManager[None]:
        """Return a context in which arrays may be used; each thread that uses them enters it.

        On exit, the work on them has finished, and memory that nothing holds is released.
        """

    @abstractmethod
    def put(self, array: Array) -> Array:
        """Return an array in this memory with the contents of ``array``; itself if it is there."""

    @abstractmethod
    def get(self, array: Array) -> Array:
        """Return an array on the host with the contents of ``array``."""


class Memory(Protocol):
    """Bytes that this process shares with the process that runs kernels."""

    @property
    def arrays(self) -> Arrays:
        """The kind of memory that holds the bytes."""

    @property
    def in_place(self) -> bool:
        """Whether kernels run on these bytes rather than on copies."""

    def image(self, *, writable: bool = False) -> Bytes:
        """Return all bytes as an array of the memory that holds them."""


class DeviceArrays(Arrays):
    """Arrays in the memory of a device."""

    def begin(self) -> None:
        """Do now what the first use of arrays would have to do, such as creating a context."""
        with self.used():
            pass

    @abstractmethod
    def memory(self, nbytes: int) -> Memory:
        """Allocate device memory on which kernels run in place.

        Raises:
            DeviceError: there is not enough, or processes cannot share it.
        """


class HostArrays(Arrays):
    """Arrays in the host's own memory."""

    def used(self) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, array: Array) -> Array:
        return array

    def get(self, array: Array) -> Array:
        return array


@functools.lru_cache(maxsize=64)
def guard(name: str, start: int, count: int) -> Bytes:
    """Return bytes ``start`` to ``start + count`` of the guard bands of the buffer ``name``.

    Each pair of bytes is 0x7FF1 to 0x7FFE: NaN as a floating-point number of any size, and never
    equal to 0xFF, which fills unwritten memory and the integer -1. The bytes are drawn at random
    from the name, so that a kernel is caught that copies from the guard band of another buffer.
    The array cannot be written.
    """
    wanted = np.resize(np.roll(_pattern(name), -start), count)
    wanted.flags.writeable = False
    return wanted


def changed_guard_bytes(
    name: str, before: Bytes, after: Bytes, nbytes: int
) -> npt.NDArray[np.intp]:
    """Return the positions at which guard bands have changed, counted from the start of the first.

    Args:
        name: the buffer's name.
        before: the guard band before the buffer.
        after: the guard band after it, with up to 255 bytes of padding in front.
        nbytes: the size of the buffer.
    """
    end = GUARD_BYTES + nbytes
    first = np.flatnonzero(before != guard(name, 0, GUARD_BYTES))
    second = np.flatnonzero(after != guard(name, end, len(after)))
    return np.concatenate([first, second + end])


@functools.lru_cache(maxsize=64)
def _pattern(name: str) -> Bytes:
    draw = np.random.default_rng(zlib.crc32(name.encode(errors="surrogatepass")))
    pattern = np.full(GUARD_BYTES, 0x7F, np.uint8)
    pattern[::2] = draw.integers(0xF1, 0xFF, GUARD_BYTES // 2, np.uint8)
    pattern.flags.writeable = False
    return pattern


@dataclass(frozen=True)
class FileMemory:
    """Memory backed by a file. Devices run kernels on copies of it, or map it themselves."""

    path: Path
    arrays: ClassVar[Arrays] = HostArrays()
    in_place: ClassVar[bool] = False
    _images: dict[bool, Bytes] = field(default_factory=dict, repr=False, compare=False)

    def image(self, *, writable: bool = False) -> Bytes:
        """Return the whole file; it stays mapped until `unmap`, since mapping takes time."""
        if (image := self._images.get(writable)) is None:
            # np.memmap takes ten times as long, and a search does this thousands of times.
            descriptor = os.open(self.path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            try:
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                image = np.frombuffer(mmap.mmap(descriptor, 0, access=access), np.uint8)
            finally:
                os.close(descriptor)
            self._images[writable] = image
        return image

    def unmap(self) -> None:
        """Forget the mapped images, so that a removed file takes no more memory."""
        self._images.clear()

    def __reduce__(self) -> tuple[type[FileMemory], tuple[Path]]:
        return FileMemory, (self.path,)


@dataclass(frozen=True)
class Arena:
    """A tensor's bytes between two guard bands.

    Its arrays are in the arena's memory, and are used within `Arrays.used`.

    The memory holds ``GUARD_BYTES`` of `guard`, the tensor, and again ``GUARD_BYTES``, with up to
    255 more bytes that make its length a multiple of 256.
    """

    tensor: Tensor
    memory: Memory

    @classmethod
    def create(cls, path: Path, tensor: Tensor, value: Array | None = None) -> Arena:
        """Create an arena in a file, with ``value`` as the payload; see `fill`.

        Raises:
            OSError: there is no room.
        """
        end = GUARD_BYTES + tensor.nbytes
        with path.open("wb") as file:  # writing to a mapped file on a full disk kills the process
            file.write(guard(tensor.name, 0, GUARD_BYTES).data)
            if value is None:
                nan = np.full(GUARD_BYTES, 0xFF, np.uint8)
                for begin in range(0, tensor.nbytes, GUARD_BYTES):
                    file.write(nan[: tensor.nbytes - begin].data)
            else:
                whole = repeated(_checked(tensor, value), tensor.shape)
                file.write(np.ascontiguousarray(whole).reshape(-1).view(np.uint8).data)
            file.write(guard(tensor.name, end, arena_bytes(tensor) - end).data)
        return cls(tensor, FileMemory(path))

    @classmethod
    def within(cls, memory: Memory, tensor: Tensor, value: Array | None = None) -> Arena:
        """Create an arena in memory of `arena_bytes`, with ``value`` as the payload; see `fill`."""
        arena, end = cls(tensor, memory), GUARD_BYTES + tensor.nbytes
        with memory.arrays.used():
            image = memory.image(writable=True)
            for begin, stop in ((0, GUARD_BYTES), (end, image.size)):
                image[begin:stop] = memory.arrays.put(guard(tensor.name, begin, stop - begin))
        arena.fill(value)
        return arena

    def image(self, *, writable: bool = False) -> Bytes:
        """Return all bytes, without copying them."""
        return self.memory.image(writable=writable)

    def payload(self, image: Bytes) -> Bytes:
        """Return the tensor's bytes in an image."""
        return image[GUARD_BYTES : GUARD_BYTES + self.tensor.nbytes]

    def elements(self, *, writable: bool = False) -> Array:
        """Return the tensor, without copying it."""
        payload = self.payload(self.image(writable=writable))
        return payload.view(stored_as(self.tensor.dtype)).reshape(self.tensor.shape)

    def value(self) -> Array:
        """Return a copy of the tensor."""
        return self.elements().copy()

    def words(self, *, writable: bool = False) -> Array:
        """Return the bits of the elements as flat unsigned integers, without copying them.

        As integers, NaN equals itself, and 0.0 differs from -0.0. An element of sixteen bytes has
        two integers.
        """
        payload = self.payload(self.image(writable=writable))
        return payload.view(f"u{min(8, stored_as(self.tensor.dtype).itemsize)}")

    def bits(self) -> Array:
        """Return a flat copy on the host, of unsigned integers with the bits of the elements."""
        with self.memory.arrays.used():
            flat = self.memory.arrays.get(self.payload(self.image()).copy())
        return flat.view(f"u{stored_as(self.tensor.dtype).itemsize}")

    def guards(self) -> tuple[Bytes, Bytes]:
        """Return both guard bands without copying them, the second with the padding."""
        image = self.image()
        return image[:GUARD_BYTES], image[GUARD_BYTES + self.tensor.nbytes :]

    def expected_guards(self) -> tuple[Bytes, Bytes]:
        """Return what the guard bands were made of, on the host."""
        end = GUARD_BYTES + self.tensor.nbytes
        after = guard(self.tensor.name, end, arena_bytes(self.tensor) - end)
        return guard(self.tensor.name, 0, GUARD_BYTES), after

    def fill(self, value: Array | None = None) -> None:
        """Overwrite the tensor.

        Args:
            value: the elements, or their `beginning`, which is repeated, in any memory. If None,
                every byte becomes 0xFF (NaN).

        Raises:
            ValueError: the data type of ``value`` is not that of the tensor.
        """
        with self.memory.arrays.used():
            if value is None:
                self.memory.arrays.fill_bytes(self.payload(self.image(writable=True)), 0xFF)
            else:
                first = self.memory.arrays.put(_checked(self.tensor, value))
                write_repeated(first, self.elements(writable=True))


def arena_bytes(tensor: Tensor) -> int:
    """Return the size of an arena's memory."""
    return 2 * GUARD_BYTES + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _checked(tensor: Tensor, value: Array) -> Array:
    if value.dtype != stored_as(tensor.dtype):
        raise ValueError(f"{tensor.name} is {tensor.dtype}, not {value.dtype}")
    return value
