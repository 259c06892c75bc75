"""Kept kernels are verified at the same time on devices beside a GPU, or else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuning import Measured, TuningGpus
from pytest_gpuenergy.workloads import Conv2d, Workload

TINY = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
MEASURED = Measured(1.0, 300.0, 300.0, 700.0)


class Several(EmulatedDevice):
    """A GPU beside which other devices run kernels; it notes how many were asked for."""

    asked = 0

    @contextmanager
    def beside(self, count: int) -> Iterator[Sequence[Device]]:
        self.asked = count
        # An emulated card runs one kernel at a time, so that each of them has its own.
        yield [EmulatedDevice(index=number) for number in range(count)] if count > 1 else (self,)


def kernel(formula: str, threads: int = 16) -> Kernel:
    """A kernel of `TINY`, whose output is each element of its input times its only weight."""
    source = (
        'extern "C" __global__ void k(const float* data, const float* weight, float* output) '
        f"{{ int i = threadIdx.x; output[i] = {formula}; }}"
    )
    arguments = tuple(tensor.name for tensor in TINY.tensors)
    return Kernel(source, (Launch("k", (1, 1, 1), (threads, 1, 1), arguments),))


def confirmed(
    device: Device, kernels: Sequence[Kernel], *, energy: bool = False
) -> tuple[list[Measured | KernelFault | None], list[str]]:
    """Return what is found of kernels, and the digests of those that are confirmed alone."""
    alone: list[str] = []

    def confirm(kernel: Kernel, _: Workload, *, energy: bool) -> Measured | None:
        assert energy == (kernel.digest in measured)
        alone.append(kernel.digest)
        return MEASURED

    measured = [one.digest for one in kernels] if energy else []
    gpus = TuningGpus((device,), (confirm,))
    return list(gpus.confirm_all(kernels, TINY, energy=energy)), alone


RIGHT = [kernel(f"data[i] * weight[0] + {number}.0f * 0.0f") for number in range(4)]


@pytest.mark.slow
def test_what_is_found_is_in_order():
    with Several() as device:
        found, alone = confirmed(device, [RIGHT[0], kernel("data[i]"), *RIGHT[1:]])
    assert [isinstance(one, KernelFault) for one in found] == [False, True, False, False, False]
    assert found[0] is None
    assert isinstance(found[1], KernelFault)
    assert found[1].outcome == "correctness"
    assert alone == []


@pytest.mark.slow
def test_what_may_be_due_to_the_others_is_tried_alone():
    huge = kernel("data[i] * weight[0]", threads=4096)
    with Several() as device:
        found, alone = confirmed(device, [RIGHT[0], huge])
    assert found == [None, MEASURED]
    assert alone == [huge.digest]


def test_kernels_whose_energy_is_measured_are_confirmed_one_by_one():
    with Several() as device:
        found, alone = confirmed(device, RIGHT, energy=True)
        assert device.asked == 1
    assert found == [MEASURED] * 4
    assert alone == [one.digest for one in RIGHT]


def test_an_emulated_gpu_confirms_one_by_one():
    with EmulatedDevice() as device:
        found, alone = confirmed(device, RIGHT)
    assert found == [MEASURED] * 4
    assert alone == [one.digest for one in RIGHT]
