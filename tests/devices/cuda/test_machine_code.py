"""Instructions for tensor cores are found in machine code, and nothing else is taken for them."""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from pytest_gpuenergy.devices import (
    Binary,
    CudaDevice,
    host_program_cubins,
    sass_listing,
    tensor_core_instructions,
    variable_bytes,
)
from pytest_gpuenergy.kernels import Kernel, Launch, TritonKernel

VARIABLES = lzma.decompress((Path(__file__).parent / "data/variables.cubin.xz").read_bytes())
CODE = {
    name: lzma.decompress((Path(__file__).parent / "data" / f"{name}.cubin.xz").read_bytes())
    for name in ("sm_80", "sm_90a")
}


@pytest.mark.parametrize(
    ("architecture", "symbol", "found"),
    [
        ("sm_80", "sums", set()),
        ("sm_80", "products", {"HMMA.F32.TF32"}),
        ("sm_90a", "sums", set()),
        ("sm_90a", "products", {"HMMA.F32.TF32"}),
        ("sm_90a", "group_products", {"HGMMA.F32.BF16"}),
        ("sm_90a", "none", set()),
    ],
)
def test_a_function_has_its_instructions(architecture, symbol, found):
    assert tensor_core_instructions(CODE[architecture], [symbol]) == found


def test_all_functions_that_are_launched_count():
    found = tensor_core_instructions(CODE["sm_90a"], ["products", "group_products", "sums"])
    assert found == {"HMMA.F32.TF32", "HGMMA.F32.BF16"}


def test_without_names_all_functions_count():
    assert tensor_core_instructions(CODE["sm_90a"]) == {"HMMA.F32.TF32", "HGMMA.F32.BF16"}


@pytest.mark.parametrize("types", ["f32_f16", "f16_f16", "f32_bf16", "f32_tf32"])
@pytest.mark.parametrize(
    ("architecture", "prefix", "name"),
    [("sm_80", "", "HMMA"), ("sm_90a", "", "HMMA"), ("sm_90a", "group_", "HGMMA")],
)
def test_instructions_have_their_types(architecture, prefix, name, types):
    file = Path(__file__).parent / "data" / f"types_{architecture}.cubin.xz"
    found = tensor_core_instructions(lzma.decompress(file.read_bytes()), [prefix + types])
    assert found == {f"{name}.{types.replace('_', '.').upper()}"}


def test_variables_that_outlive_a_launch_are_counted():
    assert variable_bytes(VARIABLES) == 64 * 4 + 4


@pytest.mark.parametrize("architecture", CODE)
def test_arguments_and_shared_memory_are_no_variables(architecture):
    assert variable_bytes(CODE[architecture]) == 0


def test_a_card_counts_those_of_kernels_that_it_compiled(tmp_path, monkeypatch):
    (tmp_path / "k.cubin").write_bytes(VARIABLES)
    binary = Binary(tmp_path / "k.cubin", {"counts": "counts"})
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: binary)
    device = object.__new__(CudaDevice)
    launch = Launch("counts", (1, 1, 1), (32, 1, 1), ("x", "n"))
    assert device.variable_bytes(Kernel("__global__ void counts() {}", (launch,))) == 260
    assert (
        device.variable_bytes(TritonKernel("import triton", "counts", (1, 1, 1), ("x", "n"), {}))
        == 0
    )


def test_a_program_without_code_for_gpus_has_none():
    assert [*host_program_cubins(CODE["sm_80"])] == []


@example(noise=bytes(8) + b"\xff" * 8, at=32, end=6000)  # the table lies beyond any memory
@given(st.binary(max_size=200), st.integers(0, 6000), st.integers(0, 6000))
def test_damaged_code_has_none_or_some(noise, at, end):
    damaged = CODE["sm_80"][:at] + noise + CODE["sm_80"][at + len(noise) : end]
    found = tensor_core_instructions(damaged, ["products"])
    assert {name.split(".")[0] for name in found} <= {"HMMA", "IMMA", "BMMA", "DMMA"}


@pytest.fixture
def nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that prints the number of bytes in its argument."""
    path = tmp_path / "bin/nvdisasm"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nwc -c < "$2"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def cubin(folder: Path, size: int) -> Path:
    """Write a file whose ELF header has 2 program headers, from byte 88 to 200."""
    content = bytearray(200)
    struct.pack_into("<Q", content, 32, 88)
    struct.pack_into("<HH", content, 54, 56, 2)
    path = folder / "kernel.cubin"
    path.write_bytes(content[:size])
    return path


@pytest.mark.usefixtures("nvdisasm")
@pytest.mark.parametrize(("size", "given"), [(200, 200), (199, 200), (198, 198), (9, 9)])
def test_only_a_byte_that_is_missing_is_added(tmp_path, size, given):
    assert sass_listing(cubin(tmp_path, size)) == f"{given}\n"


def test_what_nvdisasm_refuses_has_no_listing(tmp_path, nvdisasm):
    nvdisasm.write_text("#!/bin/sh\nexit 1\n")
    assert sass_listing(cubin(tmp_path, 200)) is None


@pytest.mark.usefixtures("nvdisasm")
def test_a_missing_file_has_no_listing(tmp_path):
    assert sass_listing(tmp_path / "nothing.cubin") is None


def test_without_nvdisasm_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sass_listing(cubin(tmp_path, 200)) is None
