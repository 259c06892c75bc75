"""Arrays in a device's memory, on which NumPy's own functions compute."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from pytest_gpuenergy.workloads.number_types import Array


class DeviceArrays(Protocol):
    """Moves arrays to a device.

    NumPy's functions compute there what they are given from there, by the protocols of NEP 13, 18
    and 35; they refuse a mixture with arrays of the host.
    """

    def used(self) -> AbstractContextManager[None]:
        """While arrays are used, in each thread that does; memory is given back at the end."""

    def put(self, array: Array) -> Array:
        """A copy of a host array on the device."""
