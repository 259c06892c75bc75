"""Arrays in the memory of an NVIDIA GPU, by CuPy in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pytest_gpuenergy.devices.arrays import Memory
from pytest_gpuenergy.devices.cuda._compat import PLAIN_REDUCTIONS
from pytest_gpuenergy.devices.cuda.memory import Handle, OwnMemory
from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.workloads.number_types import Array


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
        """Make the GPU the current one; afterwards wait for it, and free what nothing holds."""
        import cupy

        with PLAIN_REDUCTIONS, cupy.cuda.Device(self._ordinal) as device:
            try:
                yield
            finally:
                device.synchronize()
                cupy.get_default_memory_pool().free_all_blocks()

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
