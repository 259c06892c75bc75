"""What the templates need to know of a card."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.support import UnavailableError

_KIB = 1024
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": cores, threads and
# shared memory of a multiprocessor; a block may use all but 1 KiB of the latter from sm_80 on.
_MULTIPROCESSORS = {
    70: (64, 2048, 96 * _KIB, 96 * _KIB),
    75: (64, 1024, 64 * _KIB, 64 * _KIB),
    80: (64, 2048, 164 * _KIB, 163 * _KIB),
    86: (128, 1536, 100 * _KIB, 99 * _KIB),
    87: (128, 1536, 164 * _KIB, 163 * _KIB),
    89: (128, 1536, 100 * _KIB, 99 * _KIB),
    90: (128, 2048, 228 * _KIB, 227 * _KIB),
    100: (128, 2048, 228 * _KIB, 227 * _KIB),
    103: (128, 2048, 228 * _KIB, 227 * _KIB),
    120: (128, 1536, 100 * _KIB, 99 * _KIB),
}
WARP_LANES = 32
SHARED_BYTES_PER_CYCLE = 128
"""Of a multiprocessor's shared memory, in 32 banks (all from sm_70 on)."""
FIRST_ASYNCHRONOUS = 80
"""The first capability with copies to shared memory that bypass registers."""


@dataclass(frozen=True)
class Card:
    """Resources of a card.

    Attributes:
        capability: such as 90.
        multiprocessors: their number.
        cores: of one, for float32.
        threads: that one holds.
        shared_bytes: of one.
        shared_bytes_of_block: the most that a block may use.
        reserved_shared_bytes: that each block takes besides.
        registers: of one; ``most_registers`` of a thread.
        most_blocks: that one holds.
    """

    capability: int
    multiprocessors: int
    cores: int
    threads: int
    shared_bytes: int
    shared_bytes_of_block: int
    reserved_shared_bytes: int = _KIB
    registers: int = 64 * _KIB
    most_registers: int = 255
    most_blocks: int = 32


def card_of(device: Device) -> Card:
    """The resources of a device, from its architecture and its number of cores.

    Raises:
        UnavailableError: the architecture is not known.
    """
    capability = int(device.architecture.removeprefix("sm_"))
    if capability not in _MULTIPROCESSORS:
        known = ", ".join(f"sm_{number}" for number in _MULTIPROCESSORS)
        raise UnavailableError(
            f"The templates do not know the resources of {device.name} ({device.architecture}): "
            f"choose a GPU of {known}."
        )
    cores, threads, shared, of_block = _MULTIPROCESSORS[capability]
    try:
        every = int(device.nvml.nvmlDeviceGetNumGpuCores(device.handle))
    except device.nvml.NVMLError as error:
        raise UnavailableError(
            f"{device.name} does not report its number of cores ({error}), which the templates "
            "need: install a driver of CUDA 12.2 or later."
        ) from None
    return Card(capability, every // cores, cores, threads, shared, of_block, shared - of_block)
