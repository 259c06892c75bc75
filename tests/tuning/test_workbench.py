"""Candidates on the bench: lowered and compiled together, timed one by one, failing alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event

import pytest
from tuning_fakes import FakeDevice

from pytest_gpuenergy.errors import DeviceError, KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.tuning.journal import JOURNAL_FILE, Journal
from pytest_gpuenergy.tuning.workbench import INTERRUPTED, Workbench
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
LAUNCH = Launch("k", (1, 1, 1), (1, 1, 1), ("data", "weight", "output"))


def lower(module: str) -> Kernel:
    """In these tests a module is a word, and the kernel's text is that word."""
    if module == "bad":
        raise KernelFault("compile", "it cannot be lowered.")
    return Kernel(module, (LAUNCH,))


def time_ms(kernel: Kernel) -> float:
    if kernel.source == "hang":
        raise KernelFault("timeout", "it hangs.")
    if kernel.source == "gone":
        raise DeviceError("The GPU is lost.")
    return float(len(kernel.source))


@contextmanager
def bench(folder: Path, stop: Event | None = None) -> Iterator[Workbench]:
    device = FakeDevice(time_ms)
    with Journal(folder, "tiny", 9, print) as journal, arenas_for(WORKLOAD, seed=0) as arenas:
        yield Workbench(device, WORKLOAD, arenas, journal, lower, 2, stop or Event())


def outcomes(folder: Path) -> list[str]:
    lines = (folder / JOURNAL_FILE).read_text().splitlines()
    return [json.loads(line)["outcome"] for line in lines]


def test_times_come_in_the_order_of_the_modules(tmp_path: Path) -> None:
    with bench(tmp_path) as workbench:
        names = [built.artifact for built in workbench.build(["xxx", "x", "xx"])]
        times = [timed.time_s for timed in workbench.time([name for name in names if name])]
    assert times == [pytest.approx(3e-3), pytest.approx(1e-3), pytest.approx(2e-3)]
    assert outcomes(tmp_path) == ["timed", "timed", "timed"]


def test_a_batch_is_being_compiled_before_any_of_it_is_timed(tmp_path: Path) -> None:
    with bench(tmp_path) as workbench:
        device = workbench._device
        workbench.build(["a", "bb"])
    assert sorted(device.prepared) == sorted(lower(word).digest for word in ("a", "bb"))
    assert device.timed == []


def test_lowering_uses_several_threads(tmp_path: Path) -> None:
    barrier = Barrier(2, timeout=10)

    def meet(module: str) -> Kernel:
        barrier.wait()  # breaks unless two of them are here at a time
        return lower(module)

    with bench(tmp_path) as workbench:
        workbench._lower = meet
        assert all(built.artifact for built in workbench.build(["a", "b"]))


def test_a_module_that_cannot_be_lowered_fails_alone(tmp_path: Path) -> None:
    with bench(tmp_path) as workbench:
        good, bad = workbench.build(["a", "bad"])
    assert good.artifact
    assert (bad.artifact, bad.message) == (None, "it cannot be lowered.")
    assert outcomes(tmp_path) == ["compile"]


def test_a_kernel_that_hangs_fails_alone(tmp_path: Path) -> None:
    with bench(tmp_path) as workbench:
        names = [str(built.artifact) for built in workbench.build(["hang", "a"])]
        first, second = workbench.time(names)
    assert (first.time_s, first.message) == (None, "it hangs.")
    assert second.time_s is not None
    assert outcomes(tmp_path) == ["timeout", "timed"]


def test_a_lost_device_ends_the_search(tmp_path: Path) -> None:
    with bench(tmp_path) as workbench:
        (built,) = workbench.build(["gone"])
        with pytest.raises(DeviceError, match="lost"):
            list(workbench.time([str(built.artifact)]))


def test_nothing_is_tried_once_told_to_stop(tmp_path: Path) -> None:
    stop = Event()
    with bench(tmp_path, stop) as workbench:
        (built,) = workbench.build(["a"])
        stop.set()
        (timed,) = workbench.time([str(built.artifact)])
        (late,) = workbench.build(["bad"])
    assert (timed.message, late.message) == (INTERRUPTED, INTERRUPTED)
    assert outcomes(tmp_path) == []
