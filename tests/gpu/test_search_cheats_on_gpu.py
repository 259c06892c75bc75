"""Kernels that cheat, on a real GPU, also where their text is not looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cheat_candidates import FOLDER, NOT_FOUND, SPEC, candidate
from msgspec.structs import replace

from pytest_gpuenergy.devices.cuda.device import CudaDevice
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.search import refusals
from pytest_gpuenergy.search.evaluation import Bench

pytestmark = pytest.mark.gpu

CHEATS = sorted({path.stem for path in FOLDER.glob("*.cu")} - {"honest", "knows_the_seed"})


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with open_device("auto") as device:
        yield device


@pytest.fixture
def text_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "additions", lambda *_: frozenset())


def test_an_honest_kernel_is_correct_on_sizes_that_are_not_listed(gpu: Device) -> None:
    found = Bench(SPEC, gpu, Metric.TIME).evaluate(candidate("honest"))
    assert found.outcome == "correct"
    assert found.other_sizes is not None


@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused_whatever_its_text_is(gpu: Device, name: str) -> None:
    found = Bench(SPEC, gpu, Metric.TIME).evaluate(candidate(name))
    assert (found.outcome == "correct", found.cost) == (False, None)


@pytest.mark.usefixtures("text_unseen")
def test_one_that_stops_after_many_launches_is_found_by_its_results(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaDevice, "variable_bytes", lambda *_: 0)
    found = Bench(SPEC, gpu, Metric.TIME).evaluate(candidate("stops_after_many_launches"))
    assert "Correct at first, wrong after" in str(found.message)


@pytest.mark.parametrize("name", sorted(NOT_FOUND))
def test_what_the_docs_call_not_found_is_not(gpu: Device, name: str) -> None:
    sizes = ({"M": 64, "N": 48, "K": 40}, {"M": 48, "N": 32, "K": 29})
    found = Bench(replace(SPEC, sizes=sizes), gpu, Metric.TIME)
    assert found.evaluate(candidate(f"not_found/{name}")).outcome == "correct"
