"""What the tests expect of kernels: their faults, and what several leave one after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault


def raises(outcome: str, match: str | None = None) -> Any:
    """Expect a `KernelFault` with this outcome, and a message that matches."""
    return pytest.raises(KernelFault, match=match, check=lambda fault: fault.outcome == outcome)


def one_after_another(bodies: Iterable[str]) -> str:
    """Return a body that moves what each of ``bodies`` leaves in the first 64 elements of y."""
    moved = "__syncthreads(); y[64 * {} + t] = y[t]; y[t] = 0; __syncthreads();"
    return "".join(f"{{ {body}\n{moved.format(k)} }}\n" for k, body in enumerate(bodies, 1))


def each_of(values: Any, count: int) -> Any:
    """Return y after `one_after_another` of so many bodies, each of which leaves ``values``."""
    return np.concatenate([np.zeros(64), np.tile(values, count)])


def in_blocks(bodies: Iterable[str], number: str = "blockIdx.x") -> str:
    """Return a body of which each block runs another one of ``bodies``, or that of ``number``."""
    cases = "".join(f"case {k}: {{ {body}\n}} break;\n" for k, body in enumerate(bodies))
    return f"switch ({number}) {{ {cases} }}"
