"""Labels of kernels, part of a measurement's identity with workload, setpoint and cache state."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.pytest_plugin.names import POWERCAP_FIXTURE

if TYPE_CHECKING:
    import pytest


_MOST = 1 << 63
"""Larger integers are no numbers in JSON that every reader understands."""


def kernel_label(subject: AnyKernel | Callable[..., Any]) -> str:
    """``k01`` from a kernel's rank, or else its function's name; for a callable, its name.

    Not the hash, because the next version of the kernel must have the same label.
    """
    if not isinstance(subject, AnyKernel):
        return str(getattr(subject, "__name__", "callable"))
    rank = subject.origin.rank
    return subject.label if rank is None else f"k{rank:02d}"


def item_label(item: pytest.Item, label: str, workload: str, setpoint: Setpoint) -> str:
    """``label`` and the ids of the item's parameters: ``scale-64`` for ``test_scale[64-450W]``.

    Ids that the measurement already contains are omitted: the power cap, the workload's name and
    ``label`` itself. The item ``test_conv2d[case1-k01-450W]`` of the workload ``case1`` whose
    kernel is ``k01`` therefore has the label ``k01``.
    """
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return label
    ids = callspec.id
    if {"powercap", POWERCAP_FIXTURE} & callspec.params.keys():
        # The cap is the last parameter, unless the test parametrizes it itself.
        ids = _without(ids, setpoint.label, last=True)
    for known in (workload, label):
        ids = _without(ids, known)
    return f"{label}-{ids}" if ids else label


def plain_parameters(item: pytest.Item) -> dict[str, str | int | float | bool]:
    """The parameters of an item by name, as far as they are text or finite numbers.

    A member of an enumeration counts as text. The power cap is left out, because the measurement
    has it.
    """
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    found: dict[str, str | int | float | bool] = {}
    for name, value in params.items():
        if isinstance(value, Enum):
            found[name] = value.name
        elif isinstance(value, str | bool):
            found[name] = value
        elif isinstance(value, Integral):
            whole = int(value)
            found[name] = whole if abs(whole) < _MOST else str(whole)
        elif isinstance(value, Real) and math.isfinite(value):
            found[name] = float(value)
    return {name: value for name, value in found.items() if name != POWERCAP_FIXTURE}


def _without(ids: str, part: str, *, last: bool = False) -> str:
    """``ids`` without the first (or ``last``) ``part`` between dashes."""
    dashed = f"-{ids}-"
    at = dashed.rfind(f"-{part}-") if last else dashed.find(f"-{part}-")
    return ids if at < 0 else f"{dashed[:at]}{dashed[at + len(part) + 1 :]}"[1:-1]
