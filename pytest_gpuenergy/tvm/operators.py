"""What TVM needs for each kind of workload: its computation, our forms of it, names in logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tvm.conv2d import Conv2dOperator
from pytest_gpuenergy.tvm.gemm import GemmOperator
from pytest_gpuenergy.workloads import Workload

Rewrite = Callable[[Any], None]
"""Rewrites a schedule of the computation into one of its forms, in place."""


class Operator(Protocol):
    """One kind of workload. TVM is imported inside `module` and the forms.

    Attributes:
        formless: why a workload of this kind may have no forms.
    """

    @property
    def formless(self) -> str: ...

    def module(self, workload: Workload) -> Any:
        """The computation: an IRModule whose function ``main`` takes the workload's tensors.

        Raises:
            UnavailableError: TVM has no schedules of it.
        """

    def forms(self, workload: Workload) -> Sequence[Rewrite]:
        """Other ways to compute it, which respect the limits of a GPU.

        Raises:
            UnavailableError: TVM has no schedules of it.
        """

    def from_log_name(self, name: str) -> Workload | None:
        """The workload whose sizes are in a log's file name; None if there are none."""

    def from_log_key(self, key: Sequence[Any]) -> Workload | None:
        """The workload whose sizes are in a workload key of TVM; None if there are none."""

    def flops_of(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """FLOPs of a workload with tensors of these shapes; None for shapes of another kind."""


OPERATORS: Mapping[str, Operator] = {"conv2d": Conv2dOperator(), "gemm": GemmOperator()}
"""By `Workload.kind`."""


def operator_of(workload: Workload) -> Operator:
    """What TVM needs for ``workload``.

    Raises:
        InputError: TVM does not know its kind.
    """
    if workload.kind not in OPERATORS:
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}, which cannot be tuned with TVM: "
            f"choose a workload of the kind {' or '.join(OPERATORS)}."
        )
    return OPERATORS[workload.kind]
