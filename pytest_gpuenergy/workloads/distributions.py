"""How floating-point inputs are drawn, which decides about tens of percent of a kernel's power.

Bits that do not change cost little energy: a matrix product of zeros takes a fraction of the power
that one of random numbers takes.
"""

from __future__ import annotations

import re

import numpy as np

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.number_types import Array, rounded_to

NORMAL = "normal"
LARGEST_INTEGER = 4
"""Of ``integers``: products of these are exact in every type, and so are sums of many."""
_SPARSE = re.compile(r"sparse:([01]|[01]?\.[0-9]{1,9})", re.ASCII)
NAMES = (NORMAL, "uniform", "integers", "ones", "zeros", "sorted")


def check_distribution(text: object) -> None:
    """Check the name of a distribution.

    Raises:
        InputError: it is not one that `draw_from` knows.
    """
    if isinstance(text, str) and (text in NAMES or _share(text) is not None):
        return
    raise InputError(
        f"Inputs cannot be drawn as {shown(text)}: choose one of {', '.join(NAMES)} or a share of "
        "zeros such as sparse:0.5."
    )


def draw_from(
    text: str, generator: np.random.Generator, dtype: str, shape: tuple[int, ...]
) -> Array:
    """Floating-point values of a distribution.

    Args:
        text: ``normal`` (standard), ``uniform`` (from -1 to 1), ``integers`` (from
            -`LARGEST_INTEGER` to `LARGEST_INTEGER`), ``ones``, ``zeros``, ``sorted`` (standard
            normal, ascending), or ``sparse:P`` (standard normal, each zero with probability P).
        generator: draws them.
        dtype: of the result.
        shape: of the result.
    """
    if text == "uniform":
        values = generator.uniform(-1, 1, shape)
    elif text == "integers":
        whole = generator.integers(-LARGEST_INTEGER, LARGEST_INTEGER, shape, endpoint=True)
        values = whole.astype(np.float64)
    elif text in ("ones", "zeros"):
        values = np.full(shape, float(text == "ones"))
    else:
        values = generator.standard_normal(shape)
        if text == "sorted":
            values = np.sort(values, axis=None).reshape(shape)
        elif share := _share(text):
            values = np.where(generator.random(shape) < share, 0.0, values)
    return rounded_to(values, dtype)


def _share(text: str) -> float | None:
    """P of ``sparse:P``; None if it is no probability in plain digits, as names of items need."""
    match = _SPARSE.fullmatch(text)
    return float(match[1]) if match and float(match[1]) <= 1 else None
