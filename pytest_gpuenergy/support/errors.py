"""The errors a user may see. Each message is one sentence: what is wrong and what to do."""

from __future__ import annotations

import os
import re
from typing import Literal

from pytest_gpuenergy.support.text import printable_text

Outcome = Literal["correct", "correctness", "compile", "runtime", "timeout", "constraints"]
"""The outcome of running a kernel, in the T4 vocabulary for auto-tuning results."""

_ENDLESS_WORD = re.compile(r"(\S{60})\S{4096,}")  # longer than any path
_MAX_LENGTH = 8000
"""The most characters of a message."""


class GpuEnergyError(Exception):
    """Base of every error this package raises deliberately.

    Its message is safe to show in a terminal, even if it quotes names from untrusted files.
    Extremely long names are shortened.
    """

    def __str__(self) -> str:
        text = _ENDLESS_WORD.sub(r"\1...", super().__str__())
        return printable_text(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")


class InputError(GpuEnergyError):
    """The user's input (option, file, record, workload) cannot be used. Exit code 2."""


class UnavailableError(InputError):
    """Something optional is missing: it is not installed, or lacks the feature asked for.

    A caller that can go on without it does so and reports that.
    """


class DeviceError(GpuEnergyError):
    """The device, its driver or its NVML library fails or lacks a needed feature."""


class SetpointError(DeviceError):
    """A setpoint cannot be applied; the item is skipped, or fails under --strict-powercap."""


class SettingRefusedError(SetpointError):
    """A write of a setting was refused, so the card is as it was before."""


class WritesDeniedError(SettingRefusedError):
    """GPUENERGY_CAP_WRITES=deny forbids changing the settings of a real GPU."""


class OutputError(GpuEnergyError):
    """A search's results cannot be written, for example to a full disk; it can be resumed."""


class ReportError(GpuEnergyError):
    """A report file or run folder cannot be written or read."""


class ReportInputError(ReportError, InputError):
    """A report named by the user cannot be read or merged with another one. Exit code 2."""


class ResultError(GpuEnergyError):
    """A callable's result cannot be compared with its reference; the item fails."""


class KernelFault(GpuEnergyError):  # noqa: N818 -- the field's word for what a kernel does wrong
    """A kernel did not compile, crashed, hung or computed something wrong.

    Attributes:
        outcome: the kind of fault, in the T4 vocabulary; never ``correct``.
    """

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome: Outcome = outcome

    def __reduce__(self) -> tuple[type[KernelFault], tuple[Outcome, str]]:
        return type(self), (self.outcome, str(self))


def error_message(error: GpuEnergyError | OSError) -> str:
    """Return an error's message for the user, as one sentence.

    An `OSError` gets here only if no caller on the way could explain it better.
    """
    if isinstance(error, GpuEnergyError):
        return str(error)
    name, reason = error.filename, error.strerror or str(error) or "no reason given"
    if name is None:
        return f"The operating system denies a resource that is needed: {reason}."
    name = os.fsdecode(name) if isinstance(name, str | bytes) else name
    return printable_text(f"{name} cannot be used: {reason}.")
