"""Exported programs on the host, with the CUDA runtime replaced by host memory."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_gpuenergy.kernels import Kernel, RankedKernel, export_kernels
from pytest_gpuenergy.workloads import Workload

FLAGS = ("-std=c++17", "-Wall", "-Werror", "-pthread")
RUNTIME = """
#pragma once
#include <cstdlib>
#include <cstring>
enum cudaError_t { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaStreamCaptureModeGlobal };
using cudaStream_t = void*; using cudaEvent_t = void*; using cudaGraph_t = void*;
using cudaGraphExec_t = void*;
struct cudaDeviceProp { char name[16]; struct { char bytes[16]; } uuid; };
#define OK(signature) inline cudaError_t signature { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  std::strcpy(p->name, "host"); return cudaSuccess; }
template <typename T> cudaError_t cudaMalloc(T** p, size_t n) {
  *p = static_cast<T*>(std::malloc(n)); return cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, int) {
  std::memcpy(to, from, n); return cudaSuccess; }
inline cudaError_t cudaMemset(void* p, int v, size_t n) {
  std::memset(p, v, n); return cudaSuccess; }
OK(cudaGetLastError()) OK(cudaDeviceSynchronize()) OK(cudaStreamCreate(void**))
OK(cudaEventCreate(void**)) OK(cudaEventQuery(void*))
OK(cudaEventRecord(void*, void*)) OK(cudaEventSynchronize(void*))
OK(cudaStreamBeginCapture(void*, int)) OK(cudaStreamEndCapture(void*, void**))
OK(cudaGraphExecDestroy(void*)) OK(cudaGraphInstantiateWithFlags(void**, void*, int))
OK(cudaGraphDestroy(void*)) OK(cudaGraphLaunch(void*, void*))
inline cudaError_t cudaEventElapsedTime(float* ms, void*, void*) { *ms = 64; return cudaSuccess; }
"""

HALVES = """
#pragma once
#include <cstring>
struct nv_bfloat16 {
  unsigned short bits;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float value) {
    unsigned word; std::memcpy(&word, &value, 4); bits = (word + 0x8000) >> 16; }
  explicit operator float() const {
    unsigned word = bits << 16; float value; std::memcpy(&value, &word, 4); return value; }
};
using half = _Float16;
"""


def build_exported(
    folder: Path,
    workload: Workload,
    kernel: Kernel,
    *,
    runtime: str = RUNTIME,
    header: Callable[[str], str] = str,
) -> Path:
    """The program of a kernel that is a function of the host, called instead of launched.

    The workload is called tiny. ``runtime`` stands for ``cuda_runtime.h``; ``header`` changes the
    header of the workload.
    """
    export_kernels([RankedKernel(workload, 1, kernel)], folder)
    source = folder / "kernels" / "tiny" / "kernel01.launch.cu"
    described = source.with_name("kernel01.workload.cuh")
    described.write_text(header(described.read_text()))
    source.with_suffix(".cpp").write_text(re.sub(r"<<<.*>>>", "", source.read_text()))
    (folder / "cuda_runtime.h").write_text(runtime)
    for name in ("cuda_fp16.h", "cuda_bf16.h"):
        (folder / name).write_text(HALVES)
    (folder / "driver.cu").rename(folder / "driver.cpp")
    define = '-DWORKLOAD_HEADER="kernels/tiny/kernel01.workload.cuh"'
    flags = [*FLAGS, "-include", precompiled(folder), "-rdynamic", "-I.", define]
    sources = ["driver.cpp", "kernels/tiny/kernel01.launch.cpp", "-ldl"]
    subprocess.run(["g++", *flags, *sources], cwd=folder, check=True, timeout=120)
    return folder / "a.out"


def precompiled(folder: Path) -> Path:
    """The standard headers of the driver; to read them takes half of the time of its compilation.

    They are built once for all tests.
    """
    texts = [path.read_text() for path in (folder / "driver.cpp", *folder.glob("*.cuh"))]
    names = sorted(set(re.findall(r"^#include <([a-z_]+)>", "\n".join(texts), re.MULTILINE)))
    text = "".join(f"#include <{name}>\n" for name in names)
    # Hidden from tests of the cache, which is not ours alone.
    cache = Path(os.environ["GPUENERGY_CACHE"], ".headers")
    cache.mkdir(parents=True, exist_ok=True)
    header = cache / f"{hashlib.sha256(text.encode()).hexdigest()}.h"
    made = header.with_name(f"{header.name}.gch")
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=header.parent) as scratch:
            source = Path(scratch, header.name)
            source.write_text(text)
            subprocess.run(["g++", *FLAGS, "-x", "c++-header", source], check=True, timeout=120)
            source.replace(header)
            source.with_name(made.name).replace(made)
    return header


def run_program(
    program: Path, *arguments: str, libraries: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that finds NVML in the folder ``libraries``, if it is there."""
    libraries.mkdir(parents=True, exist_ok=True)
    nvml = libraries / "libnvidia-ml.so.1"
    if not nvml.exists():
        nvml.write_text("not a library")  # hides that of a machine with a GPU
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment, "LD_LIBRARY_PATH": str(libraries)},
    )
