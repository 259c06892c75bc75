"""Host programs in the worker: compiled by a compiler that stands for nvcc, run on the host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from host_cupy import device_in_this_process, host_gpu

from pytest_gpuenergy.devices import CudaDevice, NvccCompilers, specific_architecture
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import CudaProgram, Headers
from pytest_gpuenergy.support import InputError, KernelFault, cuda_dir
from pytest_gpuenergy.tuners import configuration_named, cutlass_program, find_headers
from pytest_gpuenergy.workloads import Gemm

pytestmark = pytest.mark.slow

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release 13.0, V13.0.48"; exit
fi
echo "$@" >> "{folder}/calls"
known=
while [ "$1" != -o ]; do case $1 in -I*) known="$known $1";; esac; before=$1; shift; done
exec "{cxx}" $known -shared -fPIC -x c++ "$before" -o "$2"
"""
SOURCE = """
#include <cstddef>
__attribute__((section(".nv_fatbin"), used)) char const code[] = "\\177ELF";
struct Program { void* const* tensors; float *a, *b, *c, *sums; int m, n, k, lda, ldb; };
extern "C" char const* program_open(
    void* const* tensors, int const* numbers, void** program, std::size_t* workspace_bytes) {
  if (numbers[2] > 1000) return "too deep";
  *program = new Program{
      tensors, (float*)tensors[0], (float*)tensors[1], (float*)tensors[2], nullptr, numbers[0],
      numbers[1], numbers[2], numbers[3], numbers[4]};
  *workspace_bytes = sizeof(float) * numbers[1];
  return nullptr;
}
extern "C" char const* program_initialize(void* program, void* workspace, void*) {
  static_cast<Program*>(program)->sums = (float*)workspace;
  return nullptr;
}
extern "C" char const* program_launch(void* program, void*) {
  auto& p = *static_cast<Program*>(program);
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      p.sums[j] = 0;
      for (int k = 0; k < p.k; ++k) p.sums[j] += p.a[i * p.lda + k] * p.b[k * p.ldb + j];
    }
    for (int j = 0; j < p.n; ++j) p.c[i * p.n + j] = p.sums[j];
  }
  return nullptr;
}
extern "C" void program_close(void* program) { delete static_cast<Program*>(program); }
"""
GEMM = Gemm("g", 5, 7, 3, lda=4)
CUTLASS = """
#include <cstddef>
__attribute__((section(".nv_fatbin"), used)) char const code[] = "\\177ELF";
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
cudaError_t cudaGetDevice(int*) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return "an error"; }
namespace cutlass {
enum class Status { kSuccess, kInvalid };
char const* cutlassGetStatusString(Status) { return "cannot be implemented"; }
}
"""
"""What the programs of CUTLASS need of it and of CUDA."""
UNSPLIT = """
using cutlass::Status;
struct Gemm {
  using Arguments = Problem;
  static Status can_implement(Problem const& of) {
    return of.split == 1 ? Status::kSuccess : Status::kInvalid;
  }
  static std::size_t get_workspace_size(Problem const&) { return 0; }
  Problem of;
  Status initialize(Problem const& problem, void*, cudaStream_t) {
    of = problem;
    return Status::kSuccess;
  }
  Status run(cudaStream_t) {
    auto a = (float const*)of.a, b = (float const*)of.b;
    for (int i = 0; i < of.m; ++i) {
      for (int j = 0; j < of.n; ++j) {
        float sum = 0;
        for (int k = 0; k < of.k; ++k) sum += a[i * of.lda + k] * b[k * of.ldb + j];
        ((float*)of.c)[i * of.ldc + j] = sum;
      }
    }
    return Status::kSuccess;
  }
};
Problem arguments_of(Problem const& problem) { return problem; }
Status prepare_launch(Problem const&, void*, cudaStream_t) { return Status::kSuccess; }
"""
"""A product in place of one of CUTLASS's."""
PROGRAM_PARTS = ("problem.cu", "program.cu")


def program_for(gemm: Gemm, source: str = SOURCE) -> CudaProgram:
    numbers = (gemm.M, gemm.N, gemm.K, gemm.lda, gemm.ldb)
    return CudaProgram(source, "product", ("A", "B", "C"), numbers)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the compiler, which is the only folder on the PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    text = NVCC.replace("{folder}", str(folder)).replace("{cxx}", str(shutil.which("g++")))
    (folder / "nvcc").write_text(text)
    (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    for tool in ("as", "ld"):  # which g++ runs
        (folder / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def device(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    assert tools.is_dir()
    device = device_in_this_process(monkeypatch)
    with host_gpu(lambda: None):
        yield device
    device.close()


@pytest.fixture
def compilers(tools: Path, tmp_path: Path) -> Iterator[NvccCompilers]:
    assert tools.is_dir()
    compilers = NvccCompilers("sm_90", tmp_path, processes=1)
    yield compilers
    compilers.close()


def calls(tools: Path) -> list[str]:
    return (tools / "calls").read_text().splitlines()


@pytest.mark.slow
def test_a_program_is_compiled_once_for_all_sizes_and_verified(device, tools):
    for gemm in (GEMM, Gemm("h", 2, 1, 9)):
        device.prepare([program_for(gemm)])
        assert verify_on_device(device, program_for(gemm), gemm).max_relative_error < 1e-5
    assert len(calls(tools)) == 1
    assert "-gencode=arch=compute_90a,code=sm_90a" in calls(tools)[0]


@pytest.mark.parametrize(
    ("source", "outcome", "words"),
    [
        (SOURCE.replace("+= p.a", "+= 2 * p.a"), "correctness", "wrong"),
        (SOURCE.replace("p.sums[j] = 0;", "nonsense;"), "compile", "nvcc: .*error.*nonsense"),
        (SOURCE.replace("> 1000", "> 1"), "constraints", "The program reports: too deep."),
        (SOURCE.replace("program_launch", "launch"), "compile", "cannot be loaded.*program_launch"),
    ],
)
def test_what_is_wrong_with_a_program_is_a_fault(device, source, outcome, words):
    with pytest.raises(KernelFault, match=words) as fault:
        verify_on_device(device, program_for(GEMM, source), GEMM)
    assert fault.value.outcome == outcome


def test_a_program_of_cutlass_gets_all_numbers_of_its_product(device, tmp_path):
    gemm = Gemm("g", 5, 7, 3, lda=4, ldb=9, ldc=8)
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 4")
    configuration = configuration_named("cutlass_simt_sgemm_128x128_8x2_nn_align1", gemm)
    program = cutlass_program(gemm, configuration, 90, find_headers(tmp_path))
    problem, opened = ((cuda_dir() / "cutlass" / name).read_text() for name in PROGRAM_PARTS)
    source = CUTLASS + problem + UNSPLIT + opened
    verify_on_device(device, replace(program, source=source, headers=None), gemm)


def test_a_program_that_hides_its_machine_code_is_not_taken_for_one_of_float32(device):
    hidden = program_for(GEMM, SOURCE.replace(".nv_fatbin", ".other"))
    with pytest.raises(KernelFault, match="product has no machine code to look through"):
        verify_on_device(device, hidden, GEMM)


def test_without_nvcc_a_program_is_refused_in_one_sentence(device, tools):
    assert device.refusal(program_for(GEMM)) is None
    (tools / "nvcc").unlink()
    assert "product needs nvcc, which is not on the PATH" in str(device.refusal(program_for(GEMM)))
    device.prepare([program_for(GEMM)])
    with pytest.raises(KernelFault, match="needs nvcc"):
        device.compile(program_for(GEMM))


def test_what_was_compiled_is_remembered_on_disk(tools, tmp_path):
    for _ in range(2):
        compilers = NvccCompilers("sm_80", tmp_path, processes=1)
        path = compilers.submit(program_for(GEMM)).result(timeout=60).path
        compilers.close()
    assert path.parent == tmp_path
    assert len(calls(tools)) == 1


def test_other_headers_are_another_program(compilers, tools, tmp_path):
    program = replace(program_for(GEMM), headers=Headers("L 1", "a", str(tmp_path)))
    paths = {
        compilers.submit(one).result(timeout=60).path
        for one in (program, replace(program, headers=Headers("L 1", "b", str(tmp_path))))
    }
    assert len(paths) == len(calls(tools)) == 2
    assert f"-I{tmp_path}" in calls(tools)[0]


def test_headers_that_are_gone_are_told(compilers):
    program = replace(program_for(GEMM), headers=Headers("L 1", "a", "/missing"))
    with pytest.raises(KernelFault, match="product needs L 1, which is not in /missing"):
        compilers.submit(program).result(timeout=60)


def test_an_nvcc_that_does_not_work_is_told(compilers, tools):
    (tools / "nvcc").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(KernelFault, match="nvcc does not work: repair the CUDA toolkit"):
        compilers.submit(program_for(GEMM)).result(timeout=60)


def test_older_gpus_have_no_features_of_their_own():
    names = ("sm_89", "sm_90", "sm_120")
    assert [specific_architecture(name) for name in names] == [
        "sm_89",
        "sm_90a",
        "sm_120a",
    ]


@pytest.mark.parametrize("number", [1 << 31, 1.5, True])
def test_a_number_that_is_no_int_is_refused(number):
    with pytest.raises(InputError, match="product takes integers of 32 bits"):
        CudaProgram(SOURCE, "product", (), (number,))
