"""The kernels that compare boards compute what their workloads specify."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuenergy.engine import board_kernels, verify_on_device
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow


def test_the_kernels_of_boards_are_right_and_their_references_can_tell() -> None:
    with open_device("emulated") as device:
        rotate, scale = board_kernels(device)
        for one in (rotate, scale):
            verify_on_device(device, one.kernel, one.workload)
        shorter = replace(rotate.kernel, source=rotate.kernel.source.replace("k < 512", "k < 511"))
        with pytest.raises(KernelFault, match="wrong"):
            verify_on_device(device, shorter, rotate.workload)


def test_boards_of_one_model_get_the_same_kernels() -> None:
    with open_device("emulated:h200x2") as one, open_device("emulated:h200x2", index=1) as other:
        assert [k.kernel.digest for k in board_kernels(one)] == [
            k.kernel.digest for k in board_kernels(other)
        ]
