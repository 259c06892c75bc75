"""The errors a user can meet. Each message is one sentence: what is wrong and what to do."""

from __future__ import annotations

from typing import Literal

from pytest_gpuenergy.support.terminal import printable_text

Outcome = Literal["correct", "correctness", "compile", "runtime", "timeout", "constraints"]
"""How a kernel fared, in the T4 vocabulary of auto-tuning results."""


class GpuEnergyError(Exception):
    """Base of every error this package raises on purpose.

    Its message can be shown anywhere, whatever name from a file is in it.
    """

    def __str__(self) -> str:
        return printable_text(super().__str__())


class InputError(GpuEnergyError):
    """What the user gave (option, file, record, workload) cannot be used. Exit code 2."""


class DeviceError(GpuEnergyError):
    """The device, its driver or its NVML library does not do what is needed."""


class SetpointError(DeviceError):
    """A card could not be set as asked; the item is skipped, or fails under --strict-powercap."""


class WritesDeniedError(SetpointError):
    """GPUENERGY_CAP_WRITES=deny forbids changing the settings of a real GPU."""


class OutputError(GpuEnergyError):
    """What a search has found cannot be written, such as on a full disk; it can go on later."""


class ReportError(GpuEnergyError):
    """A report file or run folder cannot be written or read."""


class ReportInputError(ReportError, InputError):
    """A report that was given cannot be read, or cannot be merged with another. Exit code 2."""


class ResultError(GpuEnergyError):
    """What a callable returned cannot be compared with its reference; the item fails."""


class KernelFault(GpuEnergyError):  # noqa: N818 -- the field's word for what a kernel does wrong
    """A kernel did not compile, crashed, hung or computed something wrong.

    Attributes:
        outcome: the T4 word for it, never ``correct``.
    """

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome

    def __reduce__(self) -> tuple[type[KernelFault], tuple[Outcome, str]]:
        return type(self), (self.outcome, str(self))
