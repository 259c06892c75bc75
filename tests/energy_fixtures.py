"""An emulated GPU whose kernels need no compiler: these tests are about power, not results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import create_autospec

import pytest
from jobs import job_of
from power_cards import PRIOR_MW, as_real, write

from pytest_gpuenergy.devices import NvmlGpu, Repeater
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice, HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures

TIME_MS, POWER_W = 0.0194, 419.0


@pytest.fixture
def runner() -> HostRunner:
    """Compiles and runs nothing."""
    made: HostRunner = create_autospec(HostRunner, instance=True)
    return made


@pytest.fixture
def device(runner: HostRunner) -> Iterator[EmulatedDevice]:
    """An emulated H200 that is idle."""
    with EmulatedDevice(DEFAULT_PROFILE, runner=runner) as found:
        assert isinstance(found, EmulatedDevice)
        yield found


@pytest.fixture
def repeat(device: EmulatedDevice) -> Callable[..., AbstractContextManager[Repeater]]:
    """Something that runs back to back and takes what it is told to take."""

    def make(
        time_ms: float = TIME_MS, power_w: float = POWER_W, on: EmulatedDevice = device
    ) -> Any:
        launch = Launch("f", (1, 1, 1), (32, 1, 1), ())
        figures = RecordedFigures(on.name, 700.0, time_ms, power_w, time_ms * power_w)
        kernel = Kernel('extern "C" __global__ void f() {}', (launch,), recorded=(figures,))
        return on.repeat(job_of(kernel, flops=10**8, bytes_moved=10**6), {})

    return make


@pytest.fixture
def real(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> NvmlGpu:
    """A card with a limit of its owner's that may be written; zeusd and sudo are not there."""
    monkeypatch.setenv("GPUENERGY_CAP_WRITES", "allow")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "/nowhere/zeusd.sock")
    monkeypatch.delenv("ZEUSD_TOKEN", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    write(device, PRIOR_MW)
    return as_real(device)
