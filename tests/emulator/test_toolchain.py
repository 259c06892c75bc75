"""Compiling CUDA text for the host: the language, its limits, the compilers, and their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from outcomes import raises
from points import MORE
from processes import has_ended

from pytest_gpuenergy.emulator import HostRunner, KernelText, Toolchain, find_compiler
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault

pytestmark = pytest.mark.slow


def test_the_language_of_kernels_is_understood(run):
    source = r"""
    #include <cuda_runtime.h>
    #include <cstdint>
    #define TILE 4
    __constant__ float weights[2] = {2.0f, 0.25f};
    template <int N> __device__ __forceinline__ float scaled(float v) { return v * N; }
    struct __align__(8) Pair { float a, b; };
    // a comment with __shared__ and asm("trap;") and a ' quote
    __global__ void k(const float* __restrict__ in, float* __restrict__ out) {
      const char* text = "__shared__ asm { }";
      float4 v = *(const float4*)in;
      alignas(16) float local[TILE];
    #pragma unroll
      for (int i = 0; i < TILE; ++i) local[i] = scaled<3>(__ldg(in + i));
      Pair p = {local[1], fmaf(v.y, v.z, v.w)};
      out[0] = p.a; out[1] = p.b; out[2] = weights[0] * weights[1]; out[3] = max(v.x, 1.0f);
      out[4] = __int_as_float(__float_as_int(v.z)); out[5] = rsqrtf(4.0f);
      out[6] = __fdividef(1.0f, 4.0f); out[7] = min(3, 1'000) + warpSize + text[0] * 0;
      out[8] = make_float2(1.0f, 6.0f).y; out[9] = __expf(0.0f) + __powf(2.0f, 3.0f);
      dim3 d(2, 3); out[10] = d.x + d.y + d.z; out[11] = __popc(255u) + __clz(1);
    }"""
    out = run(source, {"x": np.arange(4, dtype=np.float32)}, {"y": (12, "float32")})
    expected = [3, 5, 0.5, 1, 2, 0.5, 0.25, 35, 6, 9, 6, 39]
    np.testing.assert_array_equal(out["y"], np.float32(expected))


EMPTY = Kernel("__global__ void k() {}", (Launch("k", (1, 1, 1), (1, 1, 1), ()),))


@pytest.mark.parametrize("method", ["prepare", "compile"])
def test_what_was_interrupted_is_built_at_the_next_call(runner, host_cache, monkeypatch, method):
    host = HostRunner(host_cache)
    text = f"__global__ void k() {{ int a = {ord(method[0])}; }}"  # not built yet
    kernel = Kernel(text, EMPTY.launches)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Toolchain, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            host.compile(kernel)
    assert host.compile(kernel) == runner.compile(kernel)


def test_what_runs_and_checks_of_several_launches_share_is_compiled_once(
    runner, built, monkeypatch
):
    text = "__global__ void k(float* y) { y[threadIdx.x] += 0.625f; }"  # not built yet
    kernel, arenas = built(text, {}, {"y": (4, "float32")}, block=4)
    twice = replace(kernel, launches=kernel.launches * 2)
    compiled, compile_text = [], Toolchain._compile_text

    def noted(tools, folder, variant, text):
        compiled.append(variant)
        return compile_text(tools, folder, variant, text)

    monkeypatch.setattr(Toolchain, "_compile_text", noted)
    runner.run(twice, arenas, {}, timeout_s=20.0)
    assert compiled == ["plain"]
    runner.check_races(twice, arenas, {}, timeout_s=20.0)
    assert compiled == ["plain", "checked"]


def test_nothing_of_it_is_kept_once_the_runner_is_closed(tmp_path, give_toolchain, built):
    text = "__global__ void k(float* y) { y[threadIdx.x] += 0.375f; }"  # not built yet
    kernel, _ = built(text, {}, {"y": (4, "float32")}, block=4)
    twice = replace(kernel, launches=kernel.launches * 2)
    cache = tmp_path / "cache"
    give_toolchain(cache)
    host = HostRunner(cache)
    host.compile(twice)
    assert len([*cache.glob(".build-*")]) == 1
    host.close()
    late = HostRunner(cache)
    late.close()
    with pytest.raises(DeviceError, match="was closed before the kernel was compiled"):
        late.compile(replace(twice, source=f"{text} // again"))
    assert not [*cache.glob(".build-*")]


NAMESPACES = """
namespace a {
namespace b {
__global__ void __launch_bounds__(8) k(int* y) {
  __shared__ int s[8];
  s[threadIdx.x] = 7;
  y[threadIdx.x] = s[threadIdx.x];
}
}  // namespace b
template <class T, int N> __global__ void many(T* y) { b::k(y); }
}  // namespace a
"""
DECLARED = """
extern "C" __global__ void k(int* y);
extern "C" __global__ void k(int* y) { y[threadIdx.x] = 7; }
"""
IN_A_BLOCK = """
extern "C" {
__device__ int seven();
__global__ void k(int* y) { y[threadIdx.x] = seven(); }
__device__ int seven() { return 7; }
}
"""
UNUSED_PTX = """
__device__ void unused() { asm volatile("mma.sync.aligned;" : : : "memory"); }
__global__ void k(int* y) {
  asm volatile("cp.async.commit_group;" : : );
  __asm__ __volatile__("cp.async.wait_group 0;" ::: "memory");
  y[threadIdx.x] = 7;
}
"""
MORE_OF_THE_LIBRARY = """
#include <cuda/std/functional>
__global__ void k(int* y) {
  cuda::std::function<int(int)> next = [](int v) { return v + 1; };
  y[threadIdx.x] = next(6);
}
"""
TEMPLATE = "template <typename T, int N> __global__ void k(T* y) { y[threadIdx.x] = N; }"
BOUNDS = (
    "template <int N> __global__ void __launch_bounds__(N + 1) k(int* y) { y[threadIdx.x] = N; }"
)
MACRO = "#define KERNEL extern __global__ void\nKERNEL k(int* y) { y[threadIdx.x] = 7; }"


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        (TEMPLATE, "k<int, 7>"),
        MORE(BOUNDS, "k<7>"),
        MORE(NAMESPACES, "a::b::k"),
        (NAMESPACES, "a::many<int, 4>"),
        (DECLARED, "k"),
        (IN_A_BLOCK, "k"),
        (MACRO, "k"),
        (UNUSED_PTX, "k"),
        (MORE_OF_THE_LIBRARY, "k"),
    ],
    ids=lambda word: word if len(word) < 20 else "",
)
def test_templates_namespaces_linkage_and_macros_are_no_obstacle(run, source, entry):
    out = run(source, outputs={"y": (8, "int32")}, entry=entry, block=8)
    np.testing.assert_array_equal(out["y"], np.full(8, 7))


NOT_EMULATED = "cannot run on the emulated GPU:"


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ("__global__ void k() {\n  int x = ;\n}", r"^line 2: expected"),
        ('__global__ void k() {\n asm volatile("cp.async.ca.shared.global [%0];" :: "r"(1)); }',
         f"^line 2: {NOT_EMULATED} inline PTX 'cp.async.ca"),
        ('#define STOP asm("brkpt;")\n__global__ void k() { STOP; }',
         "line 1: .*inline PTX 'brkpt'"),
        ("__global__ void other() {}", "the launch does not fit the text: .*k"),
        ("__global__ void k() {}\n__global__ void k(int n) {}",
         "the launch does not fit the text: k is no kernel of it, or one of several"),
        ("__global__ void k() { threadIdx.x = 1; }", "line 1"),
        ("__device__ void k() {}", "launch does not fit the text: k is not a __global__ function"),
        ("__global__ void k() { extern __shared__ int one; }", "array without bounds"),
        ("__global__ void k() {\n __nv_bswap(1); }", f"line 2: {NOT_EMULATED} __nv_bswap$"),
        ("__global__ void k() {\n int y = __shfl(1, 2); }", f"line 2: {NOT_EMULATED} __shfl$"),
        ("__global__ void k() {\n int y = 1; y = __hadd2(y, y); }",
         f"line 2: {NOT_EMULATED} __hadd2$"),
        *((f"#include <{header}>\n__global__ void k() {{ declared_there(); }}",
           f"line 1: {NOT_EMULATED} #include <{header}>")
          for header in ("cuda/ptx", "cuda_fp4.h", "cuda/std/atomic")),
    ],
)  # fmt: skip
def test_text_that_cannot_be_compiled_is_a_compile_fault(run, source, pattern):
    with raises("compile", pattern):
        run(source)


def test_text_that_cannot_be_linked_is_a_compile_fault(run):
    source = "extern int nowhere(); } } int nowhere(); namespace cuda_device { namespace {"
    with raises("compile", r"undefined reference to .*nowhere"):
        run(
            f"{source} __global__ void k(int* y) {{ y[0] = ::nowhere(); }}",
            outputs={"y": (1, "int32")},
        )


def test_compiled_programs_are_found_again(runner):
    program = runner.compile(EMPTY)
    made = program.stat().st_mtime_ns
    other = HostRunner(program.parent)
    assert other.compile(EMPTY) == program
    assert program.stat().st_mtime_ns == made
    other.close()


ROWS = """
__global__ void k(unsigned* y) {
  __shared__ __align__(16) unsigned short s[64];
  for (int i = threadIdx.x; i < 64; i += 32) s[i] = i;
  __syncthreads();
  unsigned row = (unsigned)__cvta_generic_to_shared(s + 8 * (threadIdx.x & 7));
  asm volatile("%s.sync.aligned.m8n8.x1.shared.b16 {%%0}, [%%1];"
               : "=r"(y[threadIdx.x]) : "r"(row));
}
"""


PAIRS = np.arange(64, dtype=np.uint32).reshape(32, 2)
MATRIX_ROWS = PAIRS[:, 0] | PAIRS[:, 1] << 16


def test_what_only_matrices_need_is_compiled_with_the_first_kernel_that_has_some(
    built, tmp_path, give_toolchain, monkeypatch
):
    give_toolchain(tmp_path)
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.toolchain.MATRIX_FLAGS", ())  # a third
    for part in tmp_path.glob("host-*/matrices.o"):
        part.unlink()
    runner = HostRunner(tmp_path)
    runner.compile(EMPTY)
    assert not list(tmp_path.glob("host-*/matrices.o"))
    kernel, arenas = built(ROWS % "ldmatrix", outputs={"y": (32, "uint32")}, block=32)
    runner.run(kernel, arenas, {}, timeout_s=60.0)
    assert list(tmp_path.glob("host-*/matrices.o"))
    np.testing.assert_array_equal(arenas["y"].value(), MATRIX_ROWS)
    runner.close()


def test_a_text_that_does_not_show_that_it_has_matrices_is_linked_with_what_they_need(
    built, runner
):
    kernel, arenas = built(ROWS % 'ldmat" "rix', outputs={"y": (32, "uint32")}, block=32)
    runner.run(kernel, arenas, {}, timeout_s=60.0)
    np.testing.assert_array_equal(arenas["y"].value(), MATRIX_ROWS)


def test_faults_of_prepared_kernels_surface_when_they_are_compiled(runner):
    good, bad = (
        Kernel(f"__global__ void k() {{ {body} }}", EMPTY.launches)
        for body in ("int a = 1;", "return 1;")
    )
    runner.prepare([good, bad, good])
    assert runner.compile(good).is_file()
    with raises("compile", "line 1: return-statement with a value"):
        runner.compile(bad)


@pytest.fixture
def script(tmp_path):
    """Make script(text): the path of a compiler that is a shell script."""

    def write(text: str) -> str:
        path = tmp_path / "fake-g++"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_the_compiler_named_by_cxx_comes_first(monkeypatch, script):
    monkeypatch.setenv("CXX", script(""))
    assert find_compiler() == script("")


@pytest.mark.parametrize("cxx", ["", "no-such-compiler"])
def test_a_missing_compiler_is_one_sentence(monkeypatch, tmp_path, cxx):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"^The emulated GPU .*C\+\+ compiler[^.]*\.$"):
        find_compiler()


TOO_OLD = (
    '[ "$1" = --version ] && echo fake 1 && exit 0\necho "kernel.h:1:1: error: too old" >&2; exit 1'
)
DELETES_ITSELF = "rm $0; echo fake 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 1", r"/fake-g\+\+ is not a working C\+\+ compiler"),
        (TOO_OLD, r"fake-g\+\+ cannot build .* \(too old\): set \$CXX"),
        (DELETES_ITSELF, r"cannot be started \((not found|No such file.*)\)"),
    ],
)
def test_a_compiler_that_does_not_work_is_a_device_error(tmp_path, script, text, message):
    with pytest.raises(DeviceError, match=message):
        HostRunner(tmp_path / "cache", compiler=script(text)).compile(EMPTY)
    assert not list((tmp_path / "cache").glob("*host-*"))


KERNEL = Kernel(
    'extern "C" __global__ void f(float* y) { y[0] = 1; }',
    (Launch("f", (1, 1, 1), (1, 1, 1), ("y",)),),
)
PATIENCE_S = 60.0
# Builds the shared runtime as empty files; for a kernel it starts a process that does not return.
DRIVER = """
for output; do :; done
case "$*" in *kernel-*.cpp*) ;; --version) exec echo g++ 1;; *) exec touch "$output";; esac
sleep 1000 &
echo $! > {folder}/started.draft
mv {folder}/started.draft {folder}/started
wait
"""
COMPILES = """
import sys
from pathlib import Path
from pytest_gpuenergy.emulator import HostRunner
sys.path[:0] = sys.argv[3:]
from test_toolchain import KERNEL
HostRunner(Path(sys.argv[1]), compiler=sys.argv[2]).compile(KERNEL)
"""


@pytest.fixture
def driver(script, tmp_path):
    return script(DRIVER.format(folder=tmp_path))


def started(folder: Path) -> int:
    """Wait for the process that the driver starts, and return its number."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if (folder / "started").exists():
            return int((folder / "started").read_text())
        os.sched_yield()
    raise AssertionError("nothing was started")


@pytest.mark.parametrize("number", [signal.SIGKILL, MORE(signal.SIGINT)])
def test_it_ends_with_the_process_that_compiles(tmp_path, driver, number):
    words = [str(tmp_path / "cache"), driver, *sys.path]
    with subprocess.Popen(
        [sys.executable, "-c", COMPILES, *words], stderr=subprocess.DEVNULL
    ) as process:
        other = started(tmp_path)
        process.send_signal(number)
    assert has_ended(other)


def test_it_ends_when_its_time_is_up(tmp_path, driver, monkeypatch):
    (cache := tmp_path / "cache").mkdir()
    runner = HostRunner(cache, compiler=driver)
    Toolchain.prepare(cache, driver, jobs=1)
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.compiler.TIMEOUT_S", 0.3)
    with raises("compile", "did not finish within 0.3 s"):
        runner.compile(KERNEL)
    assert has_ended(started(tmp_path))


def test_text_that_takes_all_memory_to_compile_is_a_fault(host_cache, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.compiler.MEMORY_BYTES", 1 << 28)
    doubled = "".join(f"#define A{n} A{n - 1} A{n - 1}\n" for n in range(1, 25))
    much = f"#define A0 1,\n{doubled}__device__ int much[] = {{A24}};\n"
    used = KERNEL.source.replace("{", "{ if (!much[0]) return;", 1)
    with raises("compile") as caught:
        HostRunner(host_cache).compile(Kernel(much + used, KERNEL.launches))
    assert "memory" in str(caught.value)


TEXT = KernelText('extern "C" __global__ void f(float* y) { y[0] = 1.0f; }', ["f"])


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    (tmp_path / "host").mkdir()
    return Toolchain("g++", "g++ 12", "key", tmp_path / "host")


def says(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler fail with these words."""
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=f"kernel.cpp:1:1: {words}\n")
    monkeypatch.setattr(
        "pytest_gpuenergy.emulator.host.toolchain.run_compiler", lambda *_, **__: failed
    )


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_named(tools, tmp_path, monkeypatch, words):
    says(f"fatal error: error writing to /x.s: {words}", monkeypatch)
    with pytest.raises(DeviceError, match=rf"^{tmp_path} cannot be written \({words}\): free some"):
        tools.compile(TEXT, ["plain"], tmp_path / "program")
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_an_error_of_the_kernel_is_the_kernels(tools, tmp_path, monkeypatch):
    says("error: 'no_such' was not declared", monkeypatch)
    with pytest.raises(KernelFault, match="no_such"):
        tools.compile(TEXT, ["plain"], tmp_path / "program")
