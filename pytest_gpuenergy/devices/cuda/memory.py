"""A GPU's memory that two processes share, by CUDA's interprocess communication.

The process that owns it lives longer than the one that runs kernels, which may die at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_gpuenergy.devices.guards import Bytes

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.arrays import Arrays

_BLOCK = 2 << 20
"""CUDA divides blocks of this size among small allocations, and shares them as a whole."""


class Handle(NamedTuple):
    """What another process needs to open the memory."""

    token: bytes
    nbytes: int


class OwnMemory:
    """Memory of this process, which becomes a `MappedMemory` in another one.

    Args:
        arrays: of the GPU, which is the current one.
        nbytes: how much.
    """

    in_place = True

    def __init__(self, arrays: Arrays, nbytes: int) -> None:
        import cupy

        self.arrays = arrays
        block = cupy.cuda.memory.Memory(-(-nbytes // _BLOCK) * _BLOCK)
        self._image = _bytes_at(block, nbytes)
        self.handle = Handle(cupy.cuda.runtime.ipcGetMemHandle(block.ptr), nbytes)

    def image(self, *, writable: bool = False) -> Bytes:  # noqa: ARG002 -- always is
        """All bytes, in the GPU's memory."""
        return self._image

    def __reduce__(self) -> tuple[type[MappedMemory], tuple[Handle]]:
        return MappedMemory, (self.handle,)


class MappedMemory:
    """Another process's memory, opened when it is first used."""

    in_place = True

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._image: Bytes | None = None

    @property
    def arrays(self) -> Arrays:
        """The owner's, which this process does not have."""
        raise NotImplementedError("only the owner fills shared memory")

    def image(self, *, writable: bool = False) -> Bytes:  # noqa: ARG002 -- always is
        """All bytes, in the GPU's memory."""
        if self._image is None:
            self._image = _bytes_at(_Mapping(self._handle), self._handle.nbytes)
        return self._image


class _Mapping:
    """Open until nothing refers to it any more."""

    def __init__(self, handle: Handle) -> None:
        import cupy

        self._close = cupy.cuda.runtime.ipcCloseMemHandle
        self.ptr = cupy.cuda.runtime.ipcOpenMemHandle(handle.token)

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            self._close(self.ptr)


def can_open(handle: Handle) -> bool:
    """Whether this process can open another one's memory."""
    import cupy

    try:
        _Mapping(handle)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def _bytes_at(owner: Any, nbytes: int) -> Bytes:
    """Memory that ``owner`` keeps, as an array of CuPy."""
    import cupy

    memory = cupy.cuda.UnownedMemory(owner.ptr, nbytes, owner)
    image: Bytes = cupy.ndarray(nbytes, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return image
