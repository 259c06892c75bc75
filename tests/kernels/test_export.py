"""Exported kernels: what is written, what is refused, and that it really compiles."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_gpuenergy.kernels import (
    Im2col,
    Kernel,
    Launch,
    RankedKernel,
    RecordedFigures,
    TensorMap,
    export_kernels,
    load_kernel,
)
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import MmaParameters, WgmmaParameters
from pytest_gpuenergy.workloads import Contract, Conv2d, Gemm, Tensor

TINY = Conv2d.of("tiny", 1, 6, 6, 4, 3, 3, 3, 1, 1)
DIRECT = """
extern "C" __global__ void __launch_bounds__(36) direct(
    float* __restrict__ data, float* __restrict__ output, float* __restrict__ weight) {
  const int y = threadIdx.x / 6, x = threadIdx.x % 6;
  float sum = 0;
  for (int i = 0; i < 27; ++i) {
    const int ci = i / 9, row = y + i / 3 % 3 - 1, column = x + i % 3 - 1;
    if (row >= 0 && row < 6 && column >= 0 && column < 6)
      sum += data[(ci * 6 + row) * 6 + column] * weight[blockIdx.x * 27 + i];
  }
  output[blockIdx.x * 36 + threadIdx.x] = sum;
}
"""
ITEM = RankedKernel(
    TINY,
    1,
    Kernel(
        DIRECT,
        (Launch("direct", (4, 1, 1), (36, 1, 1), ("data", "output", "weight")),),
        recorded=(RecordedFigures("NVIDIA H200", 700.0, 0.25, 400.0, 100.0),),
    ),
)


def with_launch(**changes: object) -> RankedKernel:
    launch = replace(ITEM.kernel.launches[0], **changes)  # type: ignore[arg-type]
    return replace(ITEM, kernel=replace(ITEM.kernel, launches=(launch,)))


def exported(item: RankedKernel, folder: Path, suffix: str) -> str:
    """A file that is written for a kernel, as text."""
    export_kernels([item], folder)
    return (folder / f"kernels/{item.workload.name}/{item.stem}.{suffix}").read_text()


def test_an_export_holds_everything_needed_to_build_it(tmp_path):
    written = export_kernels([ITEM, replace(ITEM, rank=12)], tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")) for path in written} == {
        "kernel_metadata.csv",
        "driver.cu",
        "energy.cuh",
        "replays.cuh",
        "CMakeLists.txt",
        "references/conv2d.cuh",
        *(
            f"kernels/tiny/kernel{rank}.{suffix}"
            for rank in ("01", "12")
            for suffix in ("cu", "json", "launch.cu", "workload.cuh")
        ),
    }
    assert all(path.is_file() for path in written)


def test_an_exported_kernel_loads_as_the_same_kernel(tmp_path):
    export_kernels([ITEM], tmp_path)
    assert load_kernel(tmp_path / "kernels/tiny/kernel01.json") == ITEM.kernel


def test_the_table_has_a_row_for_every_launch(tmp_path):
    twice = replace(ITEM.kernel, launches=ITEM.kernel.launches * 2, recorded=())
    export_kernels([ITEM, RankedKernel(TINY, 2, twice)], tmp_path)
    with (tmp_path / "kernel_metadata.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["rank"], row["launch"]) for row in rows] == [("1", "0"), ("2", "0"), ("2", "1")]
    first = rows[0]
    assert (first["grid_x"], first["block_x"], first["entry"]) == ("4", "36", "direct")
    assert first["arguments"] == "data output weight"
    assert (first["tuned_for"], first["time_ms"], first["energy_mj"]) == (
        "NVIDIA H200",
        "0.25",
        "100.0",
    )
    assert first["flops"] == str(TINY.flops)
    assert rows[1]["time_ms"] == ""


def test_the_launch_keeps_the_kernels_own_argument_order(tmp_path):
    source = exported(ITEM, tmp_path, "launch.cu")
    assert (
        "direct<<<dim3(4, 1, 1), dim3(36, 1, 1), 0, stream>>>(\n"
        "      static_cast<float*>(tensors[0]), static_cast<float*>(tensors[2]), "
        "static_cast<float*>(tensors[1]));"
    ) in source


def test_the_header_has_every_parameter_and_tensor(tmp_path):
    grouped = Conv2d.of("tiny", 1, 6, 6, 4, 4, 3, 3, 1, 2, 2, 4)
    header = exported(replace(ITEM, workload=grouped), tmp_path, "workload.cuh")
    for name, value in grouped.shape.sizes.items():
        assert f"#define PARAMETER_{name} {value}\n" in header
    assert f'{{"data", Type::float32, {4 * 36}, false, 0, 0}}' in header
    bound = grouped.error_bound
    bounds = f"{bound.max_relative!r}, {bound.normwise!r}"
    assert f'{{"output", Type::float32, {4 * 36}, true, {bounds}}}' in header


def test_dynamic_shared_memory_is_asked_for(tmp_path):
    none, some = with_launch(shared_bytes=0), with_launch(shared_bytes=48 << 10)
    assert "cudaFuncSetAttribute" not in exported(none, tmp_path, "launch.cu")
    source = exported(some, tmp_path, "launch.cu")
    assert "MaxDynamicSharedMemorySize, 49152)" in source


def test_a_workspace_is_allocated_and_passed(tmp_path):
    space = Tensor("pack", (8, 4), "float32", "workspace")
    item = with_launch(arguments=("data", "pack"))
    item = replace(item, kernel=replace(item.kernel, workspaces=(space,)))
    assert "WORKSPACE_BYTES[] = {128}" in exported(item, tmp_path, "workload.cuh")
    arguments = "static_cast<float*>(tensors[0]), static_cast<float*>(workspaces[0]));"
    assert arguments in exported(item, tmp_path, "launch.cu")


def test_an_unknown_argument_is_refused(tmp_path):
    with pytest.raises(InputError, match="takes 'bias', which is not a tensor of tiny"):
        exported(with_launch(arguments=("data", "bias")), tmp_path, "launch.cu")
    with pytest.raises(InputError, match=r"takes '{data, output}', which is not a tensor of"):
        exported(with_launch(arguments=(("data", "output"),)), tmp_path, "launch.cu")


def test_a_workload_without_a_reference_is_refused(tmp_path):
    output = Tensor("output", (4,), "float32", "output")
    contract = Contract("mine", (output,), lambda _: {"output": np.zeros(4)})
    item = replace(with_launch(arguments=("output",)), workload=contract)
    with pytest.raises(InputError, match="mine is of kind contract, for which the exported"):
        export_kernels([item], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_workspace_of_an_unknown_type_is_refused(tmp_path):
    space = Tensor("pack", (8,), "int16", "workspace")
    item = replace(ITEM, kernel=replace(ITEM.kernel, workspaces=(space,)))
    with pytest.raises(InputError, match="the workspace pack of type int16"):
        exported(item, tmp_path, "launch.cu")


@pytest.mark.parametrize("name", ["../up", 'x";//', "two\nlines", "${ENV}", "a b", ""])
def test_a_workload_whose_name_is_other_text_is_refused(tmp_path, name):
    item = replace(ITEM, workload=replace(TINY, name=name))
    with pytest.raises(InputError, match="cannot be exported: use letters"):
        export_kernels([item], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        export_kernels([ITEM], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_export_takes_the_place_of_an_earlier_one(tmp_path):
    export_kernels([ITEM, replace(ITEM, rank=12)], tmp_path / "out")
    (tmp_path / "out" / "build").mkdir()
    (tmp_path / "out" / "build" / "cache").write_text("cmake's")
    for _ in range(2):
        export_kernels([replace(ITEM, rank=3)], tmp_path / "out", "sm_80")
    export_kernels([replace(ITEM, rank=3)], tmp_path / "fresh", "sm_80")
    again = contents(tmp_path / "out")
    assert again.pop("build/cache") == b"cmake's"
    assert again == contents(tmp_path / "fresh")


def test_what_was_changed_in_an_export_is_not_lost(tmp_path):
    export_kernels([ITEM], tmp_path)
    (tmp_path / "driver.cu").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"driver\.cu was changed after it had been exported"):
        export_kernels([replace(ITEM, rank=3)], tmp_path)
    assert contents(tmp_path) == before


def test_a_file_in_the_way_of_an_export_is_not_lost(tmp_path):
    export_kernels([ITEM], tmp_path)
    (mine := tmp_path / "kernels" / "tiny" / "kernel03.cu").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"kernel03\.cu is in the way"):
        export_kernels([replace(ITEM, rank=3)], tmp_path)
    assert contents(tmp_path) == before
    assert mine.read_text() == "mine"


def test_an_export_that_was_interrupted_can_be_repeated(tmp_path):
    export_kernels([ITEM], tmp_path)
    for name in ("driver.cu", "CMakeLists.txt"):
        (tmp_path / name).unlink()
    export_kernels([ITEM], tmp_path)
    assert (tmp_path / "driver.cu").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        export_kernels([ITEM], tmp_path / "out")


def test_an_export_is_built_for_the_architecture_that_is_named(tmp_path):
    export_kernels([ITEM], tmp_path / "here")
    export_kernels([ITEM], tmp_path / "there", "sm_80")
    lines = [(tmp_path / one / "CMakeLists.txt").read_text() for one in ("here", "there")]
    assert "set(CMAKE_CUDA_ARCHITECTURES native)" in lines[0]
    assert "set(CMAKE_CUDA_ARCHITECTURES 80)" in lines[1]


@pytest.mark.thorough  # as on a GPU, in test_exported_program_on_gpu.py
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_an_export_with_all_that_a_launch_may_need_compiles_with_nvcc(tmp_path):
    product = Gemm("tiny", 60, 50, 300, "nt", "3xtf32", lda=64, ldb=56)
    kernel = MmaParameters(tile_m=32, tile_n=32, tile_k=64, stages=4, blocks=7).kernel(product)
    assert len(kernel.launches) == 2
    assert kernel.workspaces
    item = RankedKernel(product, 1, kernel)
    assert "MaxDynamicSharedMemorySize" in exported(item, tmp_path, "launch.cu")
    header = '-DWORKLOAD_HEADER="kernels/tiny/kernel01.workload.cuh"'
    flags = ["-std=c++17", "-arch=sm_80", "-Werror=all-warnings", "-o", "tiny_kernel01"]
    built = subprocess.run(
        ["nvcc", *flags, header, "driver.cu", "kernels/tiny/kernel01.launch.cu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    usage = subprocess.run(
        [tmp_path / "tiny_kernel01", "no-number"], capture_output=True, text=True, check=False
    )
    assert (usage.returncode, usage.stderr.split(":")[0]) == (2, "usage")


def test_a_kernel_with_tensor_maps_is_built_for_hopper_with_their_header(tmp_path):
    gemm = Gemm("g", 64, 128, 256, "nt", "bfloat16")
    item = RankedKernel(gemm, 1, WgmmaParameters().kernel(gemm))
    export_kernels([item], tmp_path, "sm_90")
    assert "set(CMAKE_CUDA_ARCHITECTURES 90a)" in (tmp_path / "CMakeLists.txt").read_text()
    assert (tmp_path / "tensor_maps.cuh").is_file()
    assert (
        "const CUtensorMap a_map = tensor_map(static_cast<nv_bfloat16*>(tensors[0]), "
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,\n"
        "      {64, 256}, {128}, {64, 64}, CU_TENSOR_MAP_SWIZZLE_128B);"
    ) in exported(item, tmp_path, "launch.cu")


def test_an_im2col_map_is_made_with_its_corners_and_strides(tmp_path):
    images = TensorMap(
        *("a_map", "data", "bfloat16", (8, 9, 4, 2), (16, 144, 576), (8, 24), 0),
        Im2col((-1, -2), (-3, 1), (2, 3)),
    )
    item = replace(ITEM, kernel=replace(ITEM.kernel, tensor_maps=(images,)))
    export_kernels([item], tmp_path)
    assert (
        "const CUtensorMap a_map = im2col_map(static_cast<float*>(tensors[0]), "
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,\n      {8, 9, 4, 2}, {16, 144, 576}, {8, 24}, "
        "{-1, -2}, {-3, 1}, {1, 2, 3, 1}, CU_TENSOR_MAP_SWIZZLE_NONE);"
    ) in exported(item, tmp_path, "launch.cu")


def test_other_kernels_are_exported_without_it(tmp_path):
    export_kernels([ITEM], tmp_path)
    assert not (tmp_path / "tensor_maps.cuh").exists()
