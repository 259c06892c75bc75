"""Templates: the parameters of a kernel, the text it makes, and the resources of the card."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
"""The bytes per cycle that a multiprocessor's shared memory serves from its 32 banks (from sm_70
on)."""
FIRST_ASYNCHRONOUS = 80
"""The first capability with copies to shared memory that bypass registers."""


@dataclass(frozen=True)
class CardResources:
    """The resources of a card that limit the kernels of templates.

    Attributes:
        capability: the compute capability, such as 90.
        multiprocessors: the number of multiprocessors.
        cores: the float32 cores of a multiprocessor.
        threads: the most threads that a multiprocessor holds.
        shared_bytes: the shared memory of a multiprocessor.
        shared_bytes_of_block: the most shared memory that a block may use.
        reserved_shared_bytes: the shared memory that the system takes for each block.
        registers: the registers of a multiprocessor.
        max_registers: the most registers of a thread.
        max_blocks: the most blocks that a multiprocessor holds.
    """

    capability: int
    multiprocessors: int
    cores: int
    threads: int
    shared_bytes: int
    shared_bytes_of_block: int
    reserved_shared_bytes: int = _KIB
    registers: int = 64 * _KIB
    max_registers: int = 255
    max_blocks: int = 32


def card_resources(device: Device) -> CardResources:
    """Return the resources of a device, from its architecture and its number of cores.

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
    return CardResources(
        capability, every // cores, cores, threads, shared, of_block, shared - of_block
    )


W = TypeVar("W", bound=Workload)

MAX_PARAMETER = 1 << 20
"""The largest value of a parameter."""


@dataclass(frozen=True, kw_only=True)
class TemplateParameters(ABC, Generic[W]):
    """The parameters of one kernel of a template; each is a whole number or a truth value.

    Raises:
        InputError: no kernel can have these parameters.
    """

    template: ClassVar[str]
    added: ClassVar[Mapping[str, int]] = {}
    """The parameters that recipes of earlier versions lack, with the values of those kernels."""
    least: ClassVar[Mapping[str, int]] = {}
    """The smallest values of parameters, if not 0."""
    min_capability: ClassVar[int] = 0
    max_capability: ClassVar[int] = 1 << 20

    def __post_init__(self) -> None:
        smallest = self.least
        for name, value in vars(self).items():  # a search makes ten thousand: no copies
            least = smallest.get(name, 0)
            if not isinstance(value, int) or not least <= value <= MAX_PARAMETER:
                raise InputError(
                    f"The template {self.template} needs {name} to be a whole number from "
                    f"{least} to {MAX_PARAMETER}, not {value!r:.40}."
                )

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Self:
        """Make the parameters from their `numbers`; those that were `added` may be missing.

        Raises:
            InputError: a parameter is missing, unknown or not valid.
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
        values = vars(self)  # a search makes ten thousand
        return {name: int(values[name]) for name in _field_names(type(self))}

    @classmethod
    @abstractmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether the template has kernels for a workload."""

    @classmethod
    def suits(cls, card: CardResources) -> bool:
        """Return whether the template's instructions exist on a card."""
        return cls.min_capability <= card.capability <= cls.max_capability

    def runs_on(self, card: CardResources) -> bool:
        """Return whether the instructions of this kernel exist on a card."""
        return self.suits(card)

    @classmethod
    @abstractmethod
    def fitting(cls, workload: W, card: CardResources) -> Iterator[Self]:
        """Yield the parameters worth trying for a workload that fit the card's resources."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """The number of threads of a block."""

    @abstractmethod
    def registers(self, workload: W) -> int:
        """Return about how many registers a thread needs."""

    @abstractmethod
    def shared_bytes(self, workload: W) -> int:
        """Return the bytes of shared memory of a block."""

    def resident(self, workload: W, card: CardResources) -> int:
        """Return how many blocks a multiprocessor holds at once; 0 if it cannot hold one."""
        known: tuple[W, CardResources, int] | None = vars(self).get("_known_resident")
        if known is None or known[0] is not workload or known[1] is not card:
            known = vars(self)["_known_resident"] = workload, card, self._resident(workload, card)
        return known[2]

    def _resident(self, workload: W, card: CardResources) -> int:
        registers, shared_bytes = self.registers(workload), self.shared_bytes(workload)
        if shared_bytes > card.shared_bytes_of_block or registers > card.max_registers:
            return 0
        threads = -(-self.threads // WARP_LANES) * WARP_LANES
        return min(
            card.threads // threads,
            card.shared_bytes // (shared_bytes + card.reserved_shared_bytes),
            card.registers // (registers * threads),
            card.max_blocks,
        )

    @abstractmethod
    def choices(self, workload: W) -> dict[str, object]:
        """Return the choices that made the parameters; each may have an effect on the cost."""

    @abstractmethod
    def cycles(self, workload: W, card: CardResources) -> float:
        """Return the clock cycles that the kernel is expected to take."""

    @abstractmethod
    def kernel(self, workload: W) -> Kernel:
        """Return the kernel for a workload.

        Raises:
            InputError: these parameters have no kernel for it.
        """


@functools.cache
def _field_names(kind: type[TemplateParameters[W]]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


Constant = int | bool | str
"""The value of a constant in the text: a number, a condition, or text for the preprocessor."""


def template_text(
    constants: Mapping[str, Constant], texts: Sequence[str], head: Sequence[str] = ()
) -> str:
    """Return the text of a kernel: its constants, then files of ``cuda/``.

    Args:
        constants: the constants by name.
        texts: the paths of the files in ``cuda/``, without their suffix, such as ``gemm/tiles``.
        head: lines before the constants.
    """
    lines = [
        f"#define {name} {value if isinstance(value, str) else int(value)}"
        if isinstance(value, bool | str)
        else f"[[maybe_unused]] constexpr int {name} = {value};"
        for name, value in constants.items()
    ]
    return "\n".join([*head, *lines, "", *map(_text, texts)])


@functools.cache
def _text(path: str) -> str:
    return (cuda_dir() / f"{path}.cu").read_text()
