"""Triton modules that cheat with what Python keeps from launch to launch, in a worker that is here.

That the worker is a process of its own is not tested here.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from host_cupy import Worker, device_in_this_process
from test_binders import SCALE, SOURCE, TRITON, fakes

from pytest_gpuenergy.devices import CudaDevice, ReplayLog
from pytest_gpuenergy.engine import check_again, seeded_arenas, seeded_check, verify_on_device
from pytest_gpuenergy.kernels import Job, TritonKernel
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.search import LaunchPlan, State, additions
from pytest_gpuenergy.support import KernelFault

HONEST = "    y[:] = a * x * 2"
BEGINNING = SOURCE.rpartition("    y[:]")[0]
KEEP = "    KEPT.append(a * x * 2)\n"
CHEATS = {
    "skips the work": "    pass",
    "returns its cached output": f"{KEEP}    y[:] = KEPT[0]",
    "replays an earlier result": f"{KEEP}    y[:] = KEPT[max(0, len(KEPT) - 2)]",
    "works only for the first launches": f"{KEEP}    if len(KEPT) > 5: return\n{HONEST}",
    "batches and skips": f"{KEEP}    if len(KEPT) % 2 == 0: return\n{HONEST}",
    "skips what looks right": f"    if abs(y).max() < 1e9: return\n{HONEST}",
    "writes NaN": "    y[:] = float('nan')",
    "computes in half precision": "    y[:] = a * x.astype('f2') * 2",
    "changes its input": f"{HONEST}\n    x[:] = 0",
}
_LAUNCH: Any = (TRITON.grid, TRITON.arguments, TRITON.constants)


FORGER = """
from pytest_gpuenergy.devices.cuda.graphs import ReplayLog

ADD = ReplayLog.add

def add(log, noticed_s, gpu_s, launches, busy_s, *, noted):
    ADD(log, noticed_s, gpu_s, 1000 * launches, busy_s, noted=noted)

ReplayLog.add = add
"""
"""Reports a thousand times as many launches as there were, in the time that they took."""


def kernel_with(body: str, top: str = "KEPT = []\n") -> TritonKernel:
    return TritonKernel(f"{top}{BEGINNING}{body}\n", "scale", *_LAUNCH)


def state_with(source: str) -> State:
    return State("triton", source, LaunchPlan((1,)))


@pytest.fixture
def calls() -> list[tuple[str, bytes]]:
    """The calls that were sent to the worker."""
    return []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, bytes]]) -> CudaDevice:
    class Noting(Worker):
        def call(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
            calls.append((method, pickle.dumps(arguments)))
            return super().call(method, *arguments, timeout_s=timeout_s)

    return device_in_this_process(monkeypatch, Noting)


def verified_and_repeated(device: CudaDevice, kernel: TritonKernel) -> Correctness:
    """Verify, run back to back, and verify again, as a search does."""
    correctness = verify_on_device(device, kernel, SCALE)
    with seeded_arenas(SCALE, seed=0) as arenas:
        check = seeded_check(device, SCALE, arenas, seed=0)
        with device.repeat(Job.of(kernel, SCALE), arenas) as repeater:
            repeater.start()
            repeater.stop()
            check_again(repeater, check)
    return correctness


def test_an_honest_one_is_correct(device, monkeypatch):
    with fakes(monkeypatch):
        found = verified_and_repeated(device, kernel_with(HONEST))
    assert found.max_relative_error < 1e-7  # rounding


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(device, monkeypatch, name):
    with fakes(monkeypatch), pytest.raises(KernelFault) as fault:
        verified_and_repeated(device, kernel_with(CHEATS[name]))
    assert fault.value.outcome == "correctness"


@pytest.mark.parametrize("body", [CHEATS["skips the work"], HONEST])
@pytest.mark.parametrize("top", ["KEPT = list()\n", "KEPT = [[0][0]]\n", FORGER])
def test_the_text_shows_python_that_triton_does_not_compile(top, body):
    source = kernel_with(body, top).source
    assert additions(state_with(source), state_with(kernel_with(HONEST, "").source))


def test_a_module_that_forges_its_timeline_is_found_by_its_text_alone(device, monkeypatch):
    monkeypatch.setattr(ReplayLog, "add", ReplayLog.add)  # so that it is restored
    kernel = kernel_with(HONEST, FORGER)
    with fakes(monkeypatch), seeded_arenas(SCALE, seed=0) as arenas:
        verify_on_device(device, kernel, SCALE)
        check = seeded_check(device, SCALE, arenas, seed=0)
        with device.repeat(Job.of(kernel, SCALE), arenas) as repeater:
            repeater.start()
            timeline = repeater.stop()
            launches = next(iter(repeater.relaunch(once=True)))
            check()
    assert timeline.launches[-1] > 100 * launches
    honest = state_with(kernel_with(HONEST, "").source)
    assert "the statement ReplayLog.add = add" in additions(state_with(kernel.source), honest)


def test_what_is_sent_to_the_worker_contains_no_expected_output(device, monkeypatch, calls):
    with fakes(monkeypatch):
        verified_and_repeated(device, kernel_with(HONEST))
    assert {"open", "run", "load"} <= {method for method, _ in calls}
    for seed in (0, 1):
        expected = SCALE.reference(SCALE.make_inputs(seed))["y"]
        for dtype in (np.float32, np.float64):
            element = expected[:1].astype(dtype).tobytes()
            assert not any(element in sent for _, sent in calls)
