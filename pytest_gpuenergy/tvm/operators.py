"""What TVM must know of each kind of workload: its computation, our forms of it, names in logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.tvm.conv2d import Conv2dOperator
from pytest_gpuenergy.workloads.workload import Workload

Rewrite = Callable[[Any], None]
"""Rewrites a schedule of the computation in place, as a form of it."""


class Operator(Protocol):
    """One kind of workload. TVM is imported inside `module` and the forms.

    Attributes:
        formless: why a workload of this kind may have no forms.
    """

    @property
    def formless(self) -> str: ...

    def module(self, workload: Workload) -> Any:
        """The computation as an IRModule with a function ``main`` of the workload's tensors."""

    def forms(self, workload: Workload) -> Sequence[Rewrite]:
        """Other ways to compute it, which keep the limits of a GPU."""

    def from_log_name(self, name: str) -> Workload | None:
        """The workload whose sizes a log's file name tells; None when it does not."""

    def from_log_key(self, key: Sequence[Any]) -> Workload | None:
        """The workload whose sizes a workload key of TVM's tells; None when it does not."""

    def flops_of(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """FLOPs of the workload that has tensors of these shapes; None when it has others."""


OPERATORS: Mapping[str, Operator] = {"conv2d": Conv2dOperator()}
"""By `Workload.kind`."""


def operator_of(workload: Workload) -> Operator:
    """What TVM must know of ``workload``.

    Raises:
        InputError: TVM does not know its kind.
    """
    if workload.kind not in OPERATORS:
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}, of which TVM makes no kernels here: "
            f"choose a workload of the kind {' or '.join(OPERATORS)}."
        )
    return OPERATORS[workload.kind]
