"""Whether the inputs and outputs of a workload fit into the memory of this machine."""

from __future__ import annotations

import os

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import Workload

_BYTES = 8
"""Of an element: inputs are drawn, and outputs computed, in double precision."""


def check_fits(workload: Workload) -> None:
    """Refuse tensors for which this machine has too little memory, instead of being killed.

    Raises:
        InputError: they are too large.
    """
    needed = _BYTES * sum(tensor.size for tensor in workload.tensors)
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > have:
        raise InputError(
            f"The tensors of {workload.name} take {needed / 2**30:.0f} GiB in double precision, "
            f"and this machine has {have / 2**30:.0f} GiB: give smaller sizes in the spec."
        )
