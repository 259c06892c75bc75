"""What the tests of tuning share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuenergy.support import Worker
from pytest_gpuenergy.tuners import KernelStore


@pytest.fixture(scope="session")
def child() -> Iterator[Worker]:
    """Does with TVM what `tuning_child.Child` says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        worker = Worker("tuning_child:Child")
        yield worker
        worker.close()


@pytest.fixture(scope="session")
def store() -> Iterator[KernelStore]:
    """One process that lowers, for the whole session."""
    with KernelStore() as store:
        yield store
