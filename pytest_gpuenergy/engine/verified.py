"""What has been verified in this process, so that no setpoint makes it necessary again."""

from __future__ import annotations

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.verification import verify
from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.workloads import Workload


class Verifier:
    """Verifies on one device; on an emulated one, each kernel of a workload once.

    This includes workloads that are functions, which no hash identifies in other processes.

    Args:
        device: where to run.
        timeout_s: for one run of a kernel.
        seed: of the last inputs; by default one that is drawn.
    """

    def __init__(self, device: Device, timeout_s: float, seed: int | None) -> None:
        self._device = device
        self._timeout_s = timeout_s
        self._seed = seed
        self._known: dict[tuple[str, Workload], Correctness] = {}

    def verify(self, kernel: AnyKernel, workload: Workload) -> Correctness:
        """See `verification.verify`.

        Raises:
            KernelFault: the kernel is wrong or fails; it will then be verified again.
            InputError: the reference is not finite.
        """
        subject = (kernel.digest, workload)
        remembered = self._device.emulated and _is_hashable(workload)
        if remembered and (known := self._known.get(subject)) is not None:
            return known
        found = verify(self._device, kernel, workload, drawn=self._seed, timeout_s=self._timeout_s)
        if remembered:
            self._known[subject] = found
        return found


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
