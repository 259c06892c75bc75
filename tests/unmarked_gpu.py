"""The emulated GPU in the place of a real one, so that callables can be measured without a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from jobs import job_of

# Imported here, so that a run of pytester, which forgets what it has imported, leaves them alone.
from pytest_gpuenergy import devices
from pytest_gpuenergy.devices import Device, Repeater, Timeline
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.pytest_plugin import session


@contextmanager
def unmarked_gpu(
    monkeypatch: pytest.MonkeyPatch, launch_ms: float, power_w: float
) -> Iterator[None]:
    """Runs in this process meet an emulated GPU that does not say so.

    Every callable is called a few times, as from a host, and is measured as a launch of
    ``launch_ms`` at ``power_w``.
    """
    source = 'extern "C" __global__ void f() {}'
    figures = RecordedFigures("NVIDIA H200", 700.0, launch_ms, power_w, launch_ms * power_w)
    kernel = Kernel(source, (Launch("f", (1, 1, 1), (32, 1, 1), ()),), recorded=(figures,))
    opened: list[Device] = []

    def unmarked(spec: str, *, index: int = 0) -> Device:
        device = open_device(spec, index=index)
        device.emulated = False
        opened.append(device)
        return device

    with ExitStack() as stack:

        class Graph:
            captured = True

            def __init__(
                self, turns: Sequence[Callable[[], object]], *, must_capture: bool
            ) -> None:
                assert not must_capture
                (self._call,) = turns
                self._returned = self._call()
                self.launches = 1
                job = job_of(kernel, flops=10**6, bytes_moved=10**3)
                context = opened[-1].repeat(job, {})
                self._repeater: Repeater = stack.enter_context(context)

            def start(self) -> None:
                self._repeater.start()

            def stop(self) -> Timeline:
                return self._repeater.stop()

            def relaunch(
                self, turn: int, prepare: Callable[[object], object], *, once: bool
            ) -> object:
                assert turn == 0
                for number in range(1 if once else 3):
                    if number == 0:
                        prepare(self._returned)
                    self._returned = self._call()
                    self.launches += 1
                return self._returned

        monkeypatch.setattr(session, "open_device", unmarked)
        monkeypatch.setattr(devices, "GraphRepeater", Graph)
        yield
