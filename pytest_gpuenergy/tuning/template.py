"""What the parameters of a template have in common, whatever its kernels compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Generic, Self, TypeVar

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning.card import Card
from pytest_gpuenergy.workloads import Workload

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
