"""Kernels that cheat, on a real GPU, also where their text is not looked at."""

from __future__ import annotations

import pytest
from cheat_candidates import FOLDER, RIGHT_BUT_READS, SPEC, WHOLE_BLOCKS, candidate
from msgspec.structs import replace

from pytest_gpuenergy.devices import CudaDevice
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import SearchBench
from pytest_gpuenergy.search.validation import variant_refusals

pytestmark = pytest.mark.gpu

CHEATS = sorted(
    {path.stem for path in FOLDER.glob("*.cu")} - {"honest", "knows_the_seed", RIGHT_BUT_READS}
)


@pytest.fixture
def text_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("additions", "outputs_read"):
        monkeypatch.setattr(variant_refusals, check, lambda *_: frozenset())


def test_an_honest_kernel_is_correct_on_sizes_that_are_not_listed(gpu):
    found = SearchBench(SPEC, gpu, Metric.TIME).evaluate(candidate("honest"))
    assert found.outcome == "correct"
    assert found.other_sizes is not None


@pytest.mark.usefixtures("text_unseen")
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused_whatever_its_text_is(gpu, name):
    found = SearchBench(SPEC, gpu, Metric.TIME).evaluate(candidate(name))
    assert (found.outcome == "correct", found.cost) == (False, None)


@pytest.mark.usefixtures("text_unseen")
def test_one_that_stops_after_many_launches_is_found_by_its_results(gpu, monkeypatch):
    monkeypatch.setattr(CudaDevice, "variable_bytes", lambda *_: 0)
    found = SearchBench(SPEC, gpu, Metric.TIME).evaluate(candidate("stops_after_many_launches"))
    assert "Correct at first, wrong after" in str(found.message)


def test_one_that_recognizes_its_output_is_found_by_its_text(gpu):
    found = SearchBench(replace(SPEC, sizes=WHOLE_BLOCKS), gpu, Metric.TIME)
    assert found.evaluate(candidate(RIGHT_BUT_READS)).outcome == "constraints"


@pytest.mark.usefixtures("text_unseen")
def test_it_would_be_accepted_if_its_text_were_not_looked_at(gpu):
    found = SearchBench(replace(SPEC, sizes=WHOLE_BLOCKS), gpu, Metric.TIME)
    assert found.evaluate(candidate(RIGHT_BUT_READS)).outcome == "correct"
