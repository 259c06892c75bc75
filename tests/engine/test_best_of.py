"""The choice of the fastest correct kernel of a list, made once."""

# ruff: noqa: ARG002 -- a device is told more than this one needs

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from python_kernels import PythonDevice
from tuning_fakes import FakeRepeater, VirtualClock

from pytest_gpuenergy.devices import Arena, KernelRepeater, Loaded
from pytest_gpuenergy.engine import best_of
from pytest_gpuenergy.kernels import AnyKernel, Job, Kernel, Launch, Origin
from pytest_gpuenergy.support import DeviceError, KernelFault, Outcome, UnavailableError
from pytest_gpuenergy.workloads import Gemm, Workload

GEMM = Gemm("product", 3, 4, 5)
FAULTS: Mapping[str, Outcome] = {
    "unbuildable": "compile",
    "crashing": "runtime",
    "large": "constraints",
}


def named(text: str) -> Kernel:
    """Return a kernel: ``0.5`` takes 0.5 ms, ``0.5 wrong`` also leaves out an element."""
    origin = Origin("list", None, {"text": text})
    return Kernel(text, (Launch("f", (1, 1, 1), (1, 1, 1), ("A", "B", "C")),), origin=origin)


class Repeater(FakeRepeater):
    def relaunch(self, *, once: bool) -> Iterator[int]:
        yield from ()


class ListDevice(PythonDevice):
    """A GPU for the kernels of `named`; it records which ones it times."""

    nvml, handle = None, None

    def __init__(self) -> None:
        super().__init__(self.multiply)
        self.clock: Any = VirtualClock()
        self.timed: list[str] = []
        self.kernel = ""
        self.driver = "580"

    def multiply(self, A: Any, B: Any, C: Any) -> None:  # noqa: N803
        C[:] = A @ B
        if "wrong" in self.kernel:
            C[0, 0] = 99

    def refusal(self, kernel: AnyKernel) -> str | None:
        return "It needs a real GPU." if "foreign" in text_of(kernel) else None

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        pass

    @contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        self.kernel = text_of(job.kernel)
        with super().load(job, arenas) as loaded:
            yield loaded

    @contextmanager
    def repeat(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[KernelRepeater]:
        text = text_of(job.kernel)
        self.timed.append(text)
        if text == "lost":
            raise DeviceError("The GPU is lost.")
        if text in FAULTS:
            raise KernelFault(FAULTS[text], f"It is {text}.")
        yield Repeater(self.clock, float(text.split()[0]) / 1e3)

    def describe(self) -> dict[str, str]:
        return {"driver": self.driver}


def text_of(kernel: AnyKernel) -> str:
    assert isinstance(kernel, Kernel)
    return kernel.source


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ListDevice:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    return ListDevice()


def best(device: ListDevice, *texts: str, workload: Workload = GEMM) -> AnyKernel:
    return best_of([named(text) for text in texts], workload, device)


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["2", "1", "3"], "1"),
        (["2", "1 wrong", "0.5 wrong"], "2"),
        (["crashing", "2", "large", "unbuildable"], "2"),
        (["0.1 foreign", "2"], "2"),
    ],
)
def test_the_fastest_right_one_wins(device, texts, chosen):
    assert text_of(best(device, *texts)) == chosen


def test_the_origin_says_of_how_many(device):
    assert best(device, "2", "1", "crashing").origin.details == {"text": "1", "candidates": 3}


def test_the_choice_is_kept(device):
    first = best(device, "2", "1")
    device.timed.clear()
    again = best(device, "1", "2", workload=replace(GEMM, name="other"))
    assert (device.timed, again, again.origin) == ([], first, first.origin)


@pytest.mark.parametrize("what", ["gpu", "driver", "workload", "candidates", "damage"])
def test_it_is_made_again_where_it_may_be_another(device, what, tmp_path):
    best(device, "2", "1")
    device.timed.clear()
    device.name = "Other" if what == "gpu" else device.name
    device.driver = "590" if what == "driver" else device.driver
    if what == "damage":
        for path in (tmp_path / "chosen").iterdir():
            path.write_text("{")
    texts = ("2", "1", "4") if what == "candidates" else ("2", "1")
    best(device, *texts, workload=replace(GEMM, M=6) if what == "workload" else GEMM)
    assert set(device.timed) == set(texts)


@pytest.mark.parametrize(
    ("texts", "outcome", "told"),
    [
        (["crashing", "1 wrong"], "runtime", r"None of the 2 candidates .* \(1 runtime, 1 corr"),
        (["large", "1 wrong"], "correctness", "the first one failed: It is large"),
        (["unbuildable"], "compile", "the first one failed: It is unbuildable"),
    ],
)
def test_without_a_right_one_it_is_a_fault(device, texts, outcome, told):
    with pytest.raises(KernelFault, match=told) as fault:
        best(device, *texts)
    assert fault.value.outcome == outcome


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["large"], r"None of the 1 candidates for product .*\(1 constraints\).* It is large"),
        (["1 foreign", "2 foreign"], "It needs a real GPU"),
        ([], "product has no candidates"),
    ],
)
def test_without_one_for_this_gpu_there_is_none(device, texts, told):
    with pytest.raises(UnavailableError, match=told):
        best(device, *texts)
    assert "1 foreign" not in device.timed


def test_a_lost_gpu_is_no_fault_of_a_candidate(device):
    with pytest.raises(DeviceError, match="The GPU is lost"):
        best(device, "1", "lost")
