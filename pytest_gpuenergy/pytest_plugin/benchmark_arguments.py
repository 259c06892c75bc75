"""The arguments of ``energy_benchmark``, checked before anything runs."""

from __future__ import annotations

from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import ErrorBound, Workload


def limit_of(bound: object) -> ErrorBound | None:
    """The bound that was given for a callable's result, as an ErrorBound.

    Raises:
        InputError: it is neither a number nor an ErrorBound.
    """
    return None if bound is None else ErrorBound.of(bound, "A call of energy_benchmark")


def check_subject(subject: object, workload: object) -> None:
    """Check what is to be measured.

    Raises:
        InputError: it is something else.
    """
    if not (isinstance(subject, AnyKernel | Replayable) or callable(subject)):
        raise InputError(
            f"energy_benchmark does not measure {subject!r:.80}: give a kernel, as load_kernel "
            "returns, or something to call."
        )
    if not isinstance(workload, Workload | None):
        raise InputError(
            f"energy_benchmark does not accept workload={workload!r:.80}: give a workload, such as "
            "a Contract, or find_workload(name)."
        )


def check_options(subject: object, reference: object, bound: object, label: object) -> None:
    """Check how it is to be verified and called.

    Raises:
        InputError: a value is of another type, or does not go with the subject.
    """
    if isinstance(subject, Replayable) and reference is not None:
        raise InputError("energy_benchmark takes no reference= for what is replayed.")
    if isinstance(subject, AnyKernel) and reference is not None:
        raise InputError(
            "energy_benchmark takes no reference= for a kernel: give it to the workload, such as "
            "compute in Contract(name, contract, compute)."
        )
    if not isinstance(label, str | None):
        raise InputError(f"energy_benchmark does not accept label={label!r}: give a string.")
    limit_of(bound)
