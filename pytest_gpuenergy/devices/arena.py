"""Arenas: tensors between guard bands, in memory that processes share."""

from __future__ import annotations

import functools
import mmap
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads import Array, Tensor, repeated, stored_as, write_repeated


class Arrays(Protocol):
    """Moves arrays from the host to some place and back.

    NumPy's functions compute there what they are given from there, by the protocols of NEP 13, 18
    and 35; they refuse a mixture with arrays of another place.
    """

    def used(self) -> AbstractContextManager[None]:
        """While arrays are used, in each thread that does.

        At the end, work on them is finished, and memory that nothing holds is given back.
        """

    def put(self, array: Array) -> Array:
        """An array there with these contents: ``array`` itself if it is there."""

    def get(self, array: Array) -> Array:
        """An array on the host with the contents of one that is there."""


class Memory(Protocol):
    """Bytes that this process shares with the one that runs kernels."""

    @property
    def arrays(self) -> Arrays:
        """Where they are."""

    @property
    def in_place(self) -> bool:
        """Whether kernels run on these bytes, rather than on copies."""

    def image(self, *, writable: bool = False) -> Bytes:
        """All bytes, as an array of the place where they are."""


class DeviceArrays(Arrays, Protocol):
    """Arrays in the memory of a device."""

    def memory(self, nbytes: int) -> Memory:
        """Memory of the device, which its kernels run on.

        Raises:
            DeviceError: there is not enough, or processes cannot share it.
        """


class HostArrays:
    """Arrays in the host's own memory."""

    def used(self) -> AbstractContextManager[None]:
        """There is nothing to prepare."""
        return nullcontext()

    def put(self, array: Array) -> Array:
        """The array itself."""
        return array

    def get(self, array: Array) -> Array:
        """The array itself."""
        return array


GUARD_BYTES = 65536
"""Length of the guard band on either side of a buffer; a multiple of every alignment needed."""

Bytes = npt.NDArray[np.uint8]


def guard(name: str, start: int, count: int) -> Bytes:
    """Bytes ``start`` to ``start + count`` of the guard bands of the buffer ``name``.

    Each two bytes are 0x7FF1 to 0x7FFE: NaN as a floating-point number of any size, and never equal
    to the 0xFF of unwritten memory and of -1. They are drawn from the name, so that what a kernel
    copies past the end of one buffer from past the end of another is seen.
    """
    return np.resize(np.roll(_pattern(name), -start), count)


def written(name: str, before: Bytes, after: Bytes, nbytes: int) -> npt.NDArray[np.intp]:
    """Positions at which guard bands have changed, counted from the start of the first.

    Args:
        name: of the buffer.
        before: the first guard band.
        after: the second, with up to 255 bytes of padding in front.
        nbytes: of the buffer, which lies between them.
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
