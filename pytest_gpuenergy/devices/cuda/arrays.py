"""Arrays in the memory of an NVIDIA GPU, by CuPy, and memory there that two processes share.

It is shared by CUDA's interprocess communication. The process that owns it lives longer than the
one that runs kernels, which may die at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pytest_gpuenergy.devices.arena import Bytes, Memory
from pytest_gpuenergy.devices.cuda._compat import PLAIN_REDUCTIONS
from pytest_gpuenergy.support import DeviceError
from pytest_gpuenergy.workloads import Array

_DLPACK_CUDA = 2
"""DLPack's ``kDLCUDA``."""
_BLOCK = 2 << 20
"""CUDA divides blocks of this size among small allocations, and shares them as a whole."""


class Handle(NamedTuple):
    """What another process needs to open the memory."""

    token: bytes
    nbytes: int


class CupyArrays:
    """Implements `DeviceArrays`; the first use creates this process's context.

    Args:
        ordinal: CUDA's, of the GPU.
        is_open_to: whether the process that runs kernels can open a handle.
    """

    def __init__(self, ordinal: int, is_open_to: Callable[[Handle], bool]) -> None:
        self._ordinal = ordinal
        self._is_open_to = is_open_to

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Make the GPU the current one; afterwards wait for it, and free what nothing holds.

        It stays the current one: CUDA creates a context on a GPU that becomes current, and another
        GPU, whose power somebody may be measuring, must not get one.
        """
        import cupy

        self.make_current()
        with PLAIN_REDUCTIONS:
            try:
                yield
            finally:
                cupy.cuda.Device(self._ordinal).synchronize()
                cupy.get_default_memory_pool().free_all_blocks()

    def make_current(self) -> None:
        """Make the GPU the current one of this thread."""
        import cupy

        cupy.cuda.Device(self._ordinal).use()

    def current(self) -> int:
        """CUDA's ordinal of the current GPU."""
        import cupy

        return int(cupy.cuda.Device().id)

    def put(self, array: Array) -> Array:
        """An array on the GPU."""
        import cupy

        there: Array = cupy.asarray(array)
        return there

    def get(self, array: Array) -> Array:
        """An array on the host."""
        import cupy

        here: Array = cupy.asnumpy(array)
        return here

    def memory(self, nbytes: int) -> Memory:
        """Memory of the GPU that belongs to this process.

        Raises:
            DeviceError: there is not enough, or the system does not let processes share it.
        """
        import cupy

        try:
            with self.used():
                memory = OwnMemory(self, nbytes)
        except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise DeviceError(f"{nbytes} bytes of the GPU cannot be shared: {error}.") from None
        if not self._is_open_to(memory.handle):
            raise DeviceError("Processes cannot share the GPU's memory here.")
        return memory


def gpu_of(value: object) -> int | None:
    """CUDA's ordinal of the GPU that holds an array; None for anything else."""
    where = getattr(value, "__dlpack_device__", None)
    if where is None:
        return None
    kind, ordinal = where()
    return int(ordinal) if kind == _DLPACK_CUDA else None


class OwnMemory:
    """Memory of this process, which becomes a `MappedMemory` in another one.

    Args:
        arrays: of the GPU, which is the current one.
        nbytes: how much.
    """

    in_place = True

    def __init__(self, arrays: CupyArrays, nbytes: int) -> None:
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
    def arrays(self) -> CupyArrays:
        """Those of the GPU, which is the only one that the other process sees."""
        return CupyArrays(0, can_open)

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
