"""Error messages that quote untrusted files."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.support import GpuEnergyError


@pytest.mark.parametrize("name", ["x" * 100_000, "x y " * 50_000, "x\n" * 50_000])
def test_a_name_of_any_length_is_shortened(name):
    said = str(GpuEnergyError(f"There is no {name}: name another."))
    assert said.startswith("There is no x")
    assert len(said) < 10_000


def test_the_end_of_a_sentence_stays_after_a_long_name():
    said = str(GpuEnergyError(f"There is no {'x' * 100_000}: name another."))
    assert said == f"There is no {'x' * 60}... name another."


def test_the_longest_path_there_may_be_is_whole():
    path = "/folder" * 585
    assert str(GpuEnergyError(f"{path} is missing.")) == f"{path} is missing."
