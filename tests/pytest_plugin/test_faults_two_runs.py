"""Two runs on one GPU at once: the second waits, or names the process that holds it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from points import MORE

from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.slow

ONE = ("--powercap", "450W")


@pytest.fixture
def in_use() -> Iterator[contextlib.ExitStack]:
    """Holds the emulated GPU until it is closed."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(open_device("emulated"))
        stack.enter_context(gpu_lock(device, wait_s=0))
        yield stack


@pytest.fixture
def waits(in_use: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The durations slept; the GPU is released after the third."""
    slept: list[float] = []
    real_sleep = time.sleep

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 3:
            in_use.close()
        real_sleep(0)

    monkeypatch.setattr(time, "sleep", sleep)
    return slept


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("by", ["option", MORE("ini")])
def test_a_second_run_that_may_not_wait_ends_with_a_sentence(project, by):
    if by == "ini":
        project.ini('gpuenergy_lock_wait = "0"')
    result = project.run(*ONE, *(["--gpuenergy-lock-wait", "0"] if by == "option" else []))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [f"*error: NVIDIA H200 (GPU-*) is in use by process {os.getpid()}: wait for it to end *"]
    )
    assert "Traceback" not in result.stdout.str()
    assert not project.runs


def test_a_second_run_waits_for_the_first(project, waits):
    project.run(*ONE, "--gpuenergy-lock-wait", "600").assert_outcomes(passed=1)
    assert len(waits) >= 3
    assert project.stored().measurements[0].measured
