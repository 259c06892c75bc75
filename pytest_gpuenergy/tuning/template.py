"""What the parameters of a template have in common, whatever its kernels compute."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Generic, Self, TypeVar

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, UnavailableError, cuda_dir
from pytest_gpuenergy.workloads import Workload

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


W = TypeVar("W", bound=Workload)

LARGEST = 1 << 20
"""Value of a parameter."""


@dataclass(frozen=True, kw_only=True)
class TemplateParameters(ABC, Generic[W]):
    """The parameters of one kernel of a template; each is a whole number or a yes or no.

    Raises:
        InputError: no kernel can have these.
    """

    template: ClassVar[str]
    added: ClassVar[Mapping[str, int]] = {}
    """Parameters that recipes of earlier versions lack, and what these kernels had."""
    least: ClassVar[Mapping[str, int]] = {}
    """The smallest values of parameters, if not 0."""

    def __post_init__(self) -> None:
        smallest = self.least
        for name, value in vars(self).items():  # a search makes ten thousand: no copies
            least = smallest.get(name, 0)
            if not isinstance(value, int) or not least <= value <= LARGEST:
                raise InputError(
                    f"The template {self.template} needs {name} to be a whole number from "
                    f"{least} to {LARGEST}, not {value!r:.40}."
                )

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Self:
        """From all `numbers`, of which those that were `added` may be missing.

        Raises:
            InputError: one is missing, unknown or not valid.
        """
        numbers = {**cls.added, **numbers}
        known = {field.name: field.default for field in fields(cls)}
        if wrong := known.keys() ^ numbers.keys():
            name = min(wrong)
            problem = f"does not take {name!r:.40}" if name in numbers else f"needs {name}"
            raise InputError(f"The template {cls.template} {problem}.")
        flags = {name for name, default in known.items() if isinstance(default, bool)}
        for name in sorted(flags):
            if numbers[name] not in (0, 1):
                raise InputError(f"The template {cls.template} needs {name} to be 0 or 1.")
        values = {name: bool(value) if name in flags else value for name, value in numbers.items()}
        return cls(**values)

    @property
    def numbers(self) -> dict[str, int]:
        """All parameters by name, as they are stored."""
        return {field.name: int(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    @abstractmethod
    def computes(cls, workload: Workload) -> bool:
        """Whether the template has kernels for a workload."""

    @abstractmethod
    def choices(self, workload: W) -> dict[str, object]:
        """What the parameters were chosen to be, each of which may have an effect of its own."""

    @abstractmethod
    def cycles(self, workload: W, card: Card) -> float:
        """Clock cycles that the kernel is expected to take."""

    @abstractmethod
    def kernel(self, workload: W) -> Kernel:
        """The kernel for a workload.

        Raises:
            InputError: these parameters have none for it.
        """


Constant = int | bool | str
"""A number; a condition or a text for the preprocessor."""


def template_text(
    folder: str, constants: Mapping[str, Constant], texts: Sequence[str], head: Sequence[str] = ()
) -> str:
    """The whole text.

    Args:
        folder: in ``cuda/``.
        constants: by name.
        texts: files of ``folder``, without their suffix.
        head: lines before the constants.
    """
    lines = itertools.starmap(_definition, constants.items())
    return "\n".join([*head, *lines, "", *(_text(folder, name) for name in texts)])


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"#define {name} {int(value)}"
    if isinstance(value, str):
        return f"#define {name} {value}"
    return f"constexpr int {name} = {value};"


@functools.cache
def _text(folder: str, name: str) -> str:
    return (cuda_dir() / folder / f"{name}.cu").read_text()
