"""Instructions for tensor cores are found in machine code, and nothing else is taken for them."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.devices.cuda.machine_code import cubins_in, tensor_core_instructions

CODE = {
    name: lzma.decompress((Path(__file__).parent / "data" / f"{name}.cubin.xz").read_bytes())
    for name in ("sm_80", "sm_90a")
}


@pytest.mark.parametrize(
    ("architecture", "symbol", "found"),
    [
        ("sm_80", "sums", set()),
        ("sm_80", "products", {"HMMA"}),
        ("sm_90a", "sums", set()),
        ("sm_90a", "products", {"HMMA"}),
        ("sm_90a", "group_products", {"HGMMA"}),
        ("sm_90a", "none", set()),
    ],
)
def test_a_function_has_its_instructions(architecture: str, symbol: str, found: set[str]) -> None:
    assert tensor_core_instructions(CODE[architecture], [symbol]) == found


def test_all_functions_that_are_launched_count() -> None:
    found = tensor_core_instructions(CODE["sm_90a"], ["products", "group_products", "sums"])
    assert found == {"HMMA", "HGMMA"}


def test_without_names_all_functions_count() -> None:
    assert tensor_core_instructions(CODE["sm_90a"]) == {"HMMA", "HGMMA"}


def test_a_program_without_code_for_gpus_has_none() -> None:
    assert [*cubins_in(CODE["sm_80"])] == []


@given(st.binary(max_size=200), st.integers(0, 6000), st.integers(0, 6000))
def test_damaged_code_has_none_or_some(noise: bytes, at: int, end: int) -> None:
    damaged = CODE["sm_80"][:at] + noise + CODE["sm_80"][at + len(noise) : end]
    assert tensor_core_instructions(damaged, ["products"]) <= {"HMMA", "IMMA", "BMMA", "DMMA"}
