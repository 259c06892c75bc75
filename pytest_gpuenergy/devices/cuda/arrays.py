"""Arrays in the memory of an NVIDIA GPU, by CuPy in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_gpuenergy.workloads.number_types import Array


class CupyArrays:
    """Implements `DeviceArrays`; the first use creates this process's context.

    Args:
        ordinal: CUDA's, of the GPU.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Make the GPU the current one; afterwards give all memory back that nothing holds."""
        import cupy

        with cupy.cuda.Device(self._ordinal):
            try:
                yield
            finally:
                cupy.get_default_memory_pool().free_all_blocks()

    def put(self, array: Array) -> Array:
        """A copy on the GPU."""
        import cupy

        copy: Array = cupy.asarray(array)
        return copy
