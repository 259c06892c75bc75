"""`gpuenergy kernels export --gemm`: programs for matrix products."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_outcomes import ended
from gemm_products import template_records
from points import MORE

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.kernels import load_kernel
from pytest_gpuenergy.tuners import TEMPLATE_FORM, SimtParameters
from pytest_gpuenergy.tuning import dump_records, file_name
from pytest_gpuenergy.workloads import Gemm

EXPORT = ("kernels", "export", "--out", "out")
EMULATED = ("--gpu-device", "emulated")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_program_is_written_for_each_product_and_layout(capsys):
    sizes = "MNK=64 mode=3xtf32; M=8 N=12 K=20 layout=nt lda=16"
    assert main([*EXPORT, "--gemm", sizes, *EMULATED]) == 0
    assert {path.name for path in Path("out/kernels").iterdir()} == {
        *("gemm_64x64x64_nn_3xtf32", "gemm_64x64x64_nt_3xtf32", "gemm_8x12x20_nt_lda16")
    }
    assert capsys.readouterr().out.startswith(
        "wrote 3 kernels to out, made for NVIDIA H200 (sm_90)"
    )


@pytest.mark.slow
def test_the_estimate_chooses_the_kernel_without_records():
    assert (
        "t and O of the sizes have no effect here"
        in ended(0, *EXPORT, "--gemm", "MNK=64 layout=nn t=5", *EMULATED).err
    )
    kernel = load_kernel("out/kernels/gemm_64x64x64_nn/kernel01.json")
    assert kernel.origin.kind == "template"
    assert {launch.entry for launch in kernel.launches} <= {"gemm", "gemm_sum"}


def test_records_choose_the_kernel_if_there_are_any(elsewhere):
    product = Gemm("mine", 64, 64, 64)
    parameters = SimtParameters(tile_m=32, tile_n=64, thread_m=8, thread_n=8, stages=2)
    file = template_records(product, parameters)
    (elsewhere / "tuned").mkdir()
    dump_records(file, elsewhere / "tuned" / file_name(product, TEMPLATE_FORM.variant))
    sizes = "MNK=64 layout=nn"
    assert main([*EXPORT, "--gemm", sizes, *EMULATED, "--records", "tuned"]) == 0
    kernel = load_kernel("out/kernels/gemm_64x64x64_nn/kernel01.json")
    assert kernel.source == parameters.kernel(product).source


@pytest.mark.parametrize(
    ("gpu", "mode", "architecture"),
    [MORE("a100", "tf32", "80"), ("h200", "float32", "90"), ("h200", "bfloat16", "90a")],
)
@pytest.mark.slow
def test_the_program_is_built_for_the_gpu_that_it_is_for(gpu, mode, architecture):
    device = f"emulated:{gpu}"
    assert main([*EXPORT, "--gemm", f"MNK=128 mode={mode}", "--gpu-device", device]) == 0
    built = Path("out/CMakeLists.txt").read_text()
    assert f"set(CMAKE_CUDA_ARCHITECTURES {architecture})" in built


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gemm", "MNK=64", "--case", "case1"], "--case chooses among record files"),
        (["--gemm", "MNK=64", "--kernels", "top1"], "--kernels chooses among record files"),
        (["--gemm", "MNK=64", "--tuner", "tvm"], "--tuner chooses among record files"),
        (["--case", "case1", "--contender", "tvm"], "--contender is only for matrix products"),
        (["--gpu-device", "emulated"], "--gpu-device is only for matrix products"),
        (["--gemm", "MNK"], "which is not understood: give sizes such as"),
        (["--gemm", "MNK=64", "--contender", "triton"], "of the contender triton are no CUDA text"),
        (["--gemm", "MNK=64", "--contender", "cublas"], "choose from template, tvm"),
        (["--gemm", "MNK=64", "--contender", "mkl"], "no contender 'mkl': choose from template"),
        (["--gemm", "MNK=64", "--contender", "tvm"], "no records for gemm_64x64x64_nn"),
        (["--gemm", "MNK=64", "--records", "file"], "--records file: there is no such folder"),
        (["--gemm", "MNK=64", "--records", "none"], "--records none: there is no such folder"),
        (["--gemm", "MNK=64 mode=tf32", "--gpu-device", "emulated:v100"], "sm_80 or later"),
    ],
)
def test_what_cannot_be_exported_is_told_in_one_sentence(arguments, told):
    Path("file").write_text("")
    (line,) = ended(2, *EXPORT, *arguments).err.splitlines()
    assert told in line
    assert not Path("out").exists()


def test_a_full_folder_is_left_alone():
    Path("out").mkdir()
    Path("out/mine").write_text("mine")
    assert "out is not empty" in ended(2, *EXPORT, "--gemm", "MNK=64", *EMULATED).err
    assert [path.name for path in Path("out").iterdir()] == ["mine"]
