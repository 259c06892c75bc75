"""CuPy arrays in the memory of an NVIDIA GPU, some of it shared between two processes.

Memory is shared by CUDA's interprocess communication. The process that owns it lives longer than
the process that runs kernels, which may die at any time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pytest_gpuenergy.devices.arena import Bytes, DeviceArrays, Memory
from pytest_gpuenergy.devices.cuda._compat import PLAIN_REDUCTIONS
from pytest_gpuenergy.devices.cuda.array_kernels import KernelMath
from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.support import DeviceError
from pytest_gpuenergy.workloads import Array

_DLPACK_CUDA = 2
"""DLPack's ``kDLCUDA``, the type of CUDA devices."""
_BLOCK = 2 << 20
"""The unit in which memory is shared: CUDA divides such blocks among small allocations."""


class Handle(NamedTuple):
    """The handle by which another process opens the memory."""

    token: bytes
    nbytes: int


class CupyArrays(KernelMath, DeviceArrays):
    """The arrays of a GPU, see `DeviceArrays`. The first use creates this process's context.

    Args:
        ordinal: CUDA's number of the GPU.
        is_open_to: a function that returns whether the process that runs kernels can open a handle.
        binary: see `KernelMath`.
    """

    def __init__(
        self,
        ordinal: int,
        is_open_to: Callable[[Handle], bool],
        binary: Callable[[], Binary | None] | None = None,
    ) -> None:
        super().__init__(binary)
        self._ordinal = ordinal
        self._is_open_to = is_open_to
        self._inside = threading.local()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Make the GPU the current one; afterwards wait for it, and free unused memory.

        Within another such block of the same thread, only the end of the outer one waits: that
        takes milliseconds while another process keeps the GPU busy.

        It stays the current GPU: CUDA creates a context on a GPU that becomes current, and other
        GPUs, whose power somebody may be measuring, must not get one.
        """
        import cupy

        self.make_current()
        outer = getattr(self._inside, "depth", 0)
        with PLAIN_REDUCTIONS:
            self._inside.depth = outer + 1
            try:
                yield
            finally:
                self._inside.depth = outer
                if not outer:
                    cupy.cuda.Device(self._ordinal).synchronize()
                    cupy.get_default_memory_pool().free_all_blocks()

    def begin(self) -> None:
        """Import CuPy, create this process's context, and load the `array_kernels`."""
        with self.used():
            _ = self.is_loaded

    def make_current(self) -> None:
        """Make the GPU the current one of this thread."""
        import cupy

        cupy.cuda.Device(self._ordinal).use()

    def current(self) -> int:
        """Return CUDA's number of the current GPU."""
        import cupy

        return int(cupy.cuda.Device().id)

    def put(self, array: Array) -> Array:
        """Return an array on the GPU with the contents of ``array``."""
        import cupy

        there: Array = cupy.asarray(array)
        return there

    def get(self, array: Array) -> Array:
        """Return an array on the host with the contents of ``array``."""
        import cupy

        here: Array = cupy.asnumpy(array)
        return here

    def memory(self, nbytes: int) -> Memory:
        """Allocate memory of the GPU that belongs to this process.

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


def array_ordinal(value: object) -> int | None:
    """Return CUDA's number of the GPU that holds an array; None for anything else."""
    where = getattr(value, "__dlpack_device__", None)
    if where is None:
        return None
    kind, ordinal = where()
    return int(ordinal) if kind == _DLPACK_CUDA else None


class OwnMemory:
    """GPU memory of this process, which becomes a `MappedMemory` when sent to another process."""

    in_place = True

    def __init__(self, arrays: CupyArrays, nbytes: int) -> None:
        import cupy

        self.arrays = arrays
        block = cupy.cuda.memory.Memory(-(-nbytes // _BLOCK) * _BLOCK)
        self._image = _bytes_at(block, nbytes)
        self.handle = Handle(cupy.cuda.runtime.ipcGetMemHandle(block.ptr), nbytes)

    def image(self, *, writable: bool = False) -> Bytes:  # noqa: ARG002 -- always is
        """Return all bytes, in the GPU's memory."""
        return self._image

    def __reduce__(self) -> tuple[type[MappedMemory], tuple[Handle]]:
        return MappedMemory, (self.handle,)


class MappedMemory:
    """GPU memory of another process, opened at its first use."""

    in_place = True

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._image: Bytes | None = None

    @property
    def arrays(self) -> CupyArrays:
        """The arrays of the GPU, which is the only one that this process sees."""
        return CupyArrays(0, can_open)

    def image(self, *, writable: bool = False) -> Bytes:  # noqa: ARG002 -- always is
        """Return all bytes, in the GPU's memory."""
        if self._image is None:
            self._image = _bytes_at(_Mapping(self._handle), self._handle.nbytes)
        return self._image


class _Mapping:
    """An open handle, which is closed when nothing refers to it any more."""

    def __init__(self, handle: Handle) -> None:
        import cupy

        self._close = cupy.cuda.runtime.ipcCloseMemHandle
        self.ptr = cupy.cuda.runtime.ipcOpenMemHandle(handle.token)

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            self._close(self.ptr)


def can_open(handle: Handle) -> bool:
    """Return whether this process can open another process's memory."""
    import cupy

    try:
        _Mapping(handle)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def _bytes_at(owner: Any, nbytes: int) -> Bytes:
    """Return memory that ``owner`` keeps allocated, as a CuPy array."""
    import cupy

    memory = cupy.cuda.UnownedMemory(owner.ptr, nbytes, owner)
    image: Bytes = cupy.ndarray(nbytes, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return image
