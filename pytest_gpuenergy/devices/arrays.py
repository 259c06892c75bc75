"""Arrays in a device's memory, on which NumPy's own functions compute."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pytest_gpuenergy.devices.guards import Bytes
from pytest_gpuenergy.workloads import Array


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
