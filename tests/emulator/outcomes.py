"""What the tests expect of kernels that fail."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuenergy.support import KernelFault


def raises(outcome: str, match: str | None = None) -> Any:
    """Expect a `KernelFault` with this outcome, and a message that matches."""
    return pytest.raises(KernelFault, match=match, check=lambda fault: fault.outcome == outcome)
