"""CUDA text to machine code with the real NVRTC, which needs no GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.devices import Binary, NvrtcCompiler, NvrtcCompilers, sass_listing
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault, Worker, WorkerDiedError, WorkerTimeoutError

pytest.importorskip("cupy", reason="compiling needs CuPy", exc_type=ImportError)

COPY = """
extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


def kernel(source: str = COPY, *entries: str) -> Kernel:
    launches = (Launch(entry, (1, 1, 1), (32, 1, 1), ("x", "y")) for entry in entries or ("copy",))
    return Kernel(source, tuple(launches))


@pytest.fixture(scope="module")
def compiler() -> NvrtcCompiler:
    return NvrtcCompiler()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[NvrtcCompilers]:
    pool = NvrtcCompilers("sm_90", tmp_path, processes=1)
    yield pool
    pool.close()


def faulty(compiler: NvrtcCompiler, source: str, *entries: str) -> str:
    with pytest.raises(KernelFault) as raised:
        compiler.compile(source, entries, "sm_90")
    assert raised.value.outcome == "compile"
    return str(raised.value)


def test_machine_code_is_an_elf_with_the_entry(compiler):
    code, symbols = compiler.compile(COPY, ["copy"], "sm_90")
    assert code.startswith(b"\x7fELF")
    assert symbols == {"copy": "copy"}
    assert b".text.copy" in code


@pytest.mark.parametrize("header", ["<strings.h>", '"graphics.c"', "<scibuf/image.h>"])
def test_a_header_that_only_host_code_needs_may_be_missing(compiler, header):
    host = "void image() { bcopy(0, 0, 0); copy<<<1, 1>>>(0, 0); }"
    code, _ = compiler.compile(f"#include {header}\n{COPY}\n{host}", ["copy"], "sm_90")
    assert b".text.copy" in code


def test_a_header_that_a_kernel_needs_is_named(compiler):
    text = '#include "gone.h"\n#include <own/sizes.h>\n' + COPY.replace("threadIdx.x]", "GONE]")
    assert 'cannot open source file "gone.h"' in faulty(compiler, text, "copy")


def test_an_instance_of_a_template_has_its_symbol(compiler):
    source = "template <typename T> __global__ void f(T* x) { *x = 1; }"
    code, symbols = compiler.compile(source, ["f<float>", "f<int>"], "sm_90")
    assert len(set(symbols.values())) == 2
    assert all(symbol.encode() in code for symbol in symbols.values())


def test_ptx_has_the_entry(pool):
    assert ".visible .entry copy(" in pool.ptx(kernel())


def test_ptx_of_text_that_does_not_compile_is_a_fault(pool):
    with pytest.raises(KernelFault):
        pool.ptx(kernel("nonsense"))


def test_machine_code_is_listed_where_nvdisasm_is(pool, tmp_path):
    listing = sass_listing(pool.submit(kernel()).result().path)
    if shutil.which("nvdisasm") is None:
        assert listing is None
    else:
        assert listing is not None
        assert "LDG" in listing
    assert sass_listing(tmp_path / "nothing") is None


def test_functions_without_a_mark_run_on_the_device(compiler):
    source = "constexpr int two() { return 2; }\n" + COPY.replace("x[threadIdx.x]", "two()")
    assert compiler.compile(source, ["copy"], "sm_90")[0]


@pytest.mark.parametrize("header", ["cuda_fp16.h", "cuda/std/cstdint", "cub/cub.cuh"])
def test_the_toolkits_headers_are_found(compiler, header):
    assert compiler.compile(f"#include <{header}>\n{COPY}", ["copy"], "sm_90")[0]


SMALL = """
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
#ifdef CCCL_VERSION
#error "these are the toolkit's headers"
#endif
namespace c = cuda::std;
static_assert(sizeof(c::int64_t) == 8 && sizeof(c::uint16_t) == 2);
static_assert(c::is_same_v<c::conditional<true, int, float>::type, int>);
static_assert(c::is_integral<const bool>::value && !c::is_integral<float>::value);
static_assert(c::is_floating_point<double>::value && !c::is_floating_point<int>::value);
static_assert(c::is_signed<float>::value && !c::is_signed<unsigned char>::value);
static_assert(c::is_unsigned<bool>::value && !c::is_unsigned<float>::value);
static_assert(c::is_same_v<c::enable_if<true, long>::type, long>);
"""


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("", "INFINITY"),
        ("", "NAN"),
        ("<math.h>", "M_PI"),
        ("<cfloat>", "FLT_MAX"),
        ("<climits>", "INT_MAX"),
        ("<stdint.h>", "(uint32_t)3"),
        ("<limits>", "std::numeric_limits<float>::infinity()"),
        ("<cmath>", "std::exp(y[1])"),
        ("<algorithm>", "std::max(y[1], 2.f)"),
    ],
)
def test_what_nvcc_declares_from_the_hosts_headers_is_declared(compiler, header, value):
    include = f"#include {header}\n" if header else ""
    text = f'{include}extern "C" __global__ void k(float* y) {{ y[0] = {value}; }}'
    assert compiler.compile(text, ["k"], "sm_90")[1] == {"k": "k"}


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("#include <thrust/complex.h>\n", "thrust::abs(thrust::complex<float>(y[1], 2.f) * y[2])"),
        ("", "(float)(((__int128)y[1] << 70) >> 70)"),
    ],
)
def test_complex_numbers_of_thrust_and_integers_of_128_bits_are_there(compiler, before, value):
    text = f'{before}extern "C" __global__ void k(float* y) {{ y[0] = {value}; }}'
    assert compiler.compile(text, ["k"], "sm_90")[1] == {"k": "k"}


def test_small_headers_stand_in_for_those_of_tvms_text(compiler):
    assert compiler.compile(SMALL + COPY, ["copy"], "sm_90")[0]


@pytest.mark.parametrize(
    "more",
    [
        "#include <cuda/std/type_traits>\nstatic_assert(cuda::std::is_const_v<const int>);",
        "#include <cuda/std/cstdint>\n#include <cuda/std/array>\ncuda::std::array<int, 2>* a;",
    ],
)
def test_the_toolkits_headers_serve_where_the_small_ones_do_not(compiler, more):
    assert compiler.compile(more + COPY, ["copy"], "sm_90")[0]


def test_an_error_has_the_line_and_what_is_wrong(compiler):
    message = faulty(compiler, COPY.replace("= x[", "= nonsense["), "copy")
    assert message.startswith("NVRTC: kernel.cu(2): error: ")
    assert '"nonsense" is undefined' in message


def test_an_entry_that_is_not_there_is_an_error(compiler):
    assert "other" in faulty(compiler, COPY, "other")


def test_the_compiler_goes_on_after_an_error(compiler):
    faulty(compiler, "nonsense", "copy")
    assert compiler.compile(COPY, ["copy"], "sm_90")[0]


def test_the_version_is_two_numbers(compiler):
    major, minor = compiler.version().split(".")
    assert int(major) >= 12
    assert int(minor) >= 0


def test_a_pool_compiles_in_another_process(pool, tmp_path):
    binary = pool.submit(kernel()).result(timeout=60)
    assert binary.path.parent == tmp_path
    assert binary.path.read_bytes().startswith(b"\x7fELF")
    assert binary.symbols == {"copy": "copy"}


def test_a_fault_comes_out_of_the_future(pool):
    with pytest.raises(KernelFault, match="nonsense"):
        pool.submit(kernel(COPY.replace("= x[", "= nonsense["))).result(timeout=60)


class Answers:
    """Stands in for the child processes: has answers, and records calls."""

    def __init__(self, *compiled: object) -> None:
        self.compiled = list(compiled)
        self.calls: list[tuple[Any, ...]] = []

    def call(self, method: str, *arguments: Any, **_: Any) -> object:
        if method == "version":
            return "13.0"
        self.calls.append(arguments)
        answer = self.compiled.pop(0) if self.compiled else (b"code", {"copy": "copy"})
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(Worker, "call", lambda _, *args, **options: answers.call(*args, **options))
    return answers


def compiled(pool: NvrtcCompilers, of: Kernel) -> Binary:
    return pool.submit(of).result(timeout=60)


def test_a_kernel_is_compiled_once(pool, answers):
    assert pool.submit(kernel()) is pool.submit(kernel())
    compiled(pool, kernel())
    assert answers.calls == [(COPY, ["copy"], "sm_90")]


def test_an_entry_launched_twice_is_named_once(pool, answers):
    compiled(pool, kernel(COPY, "copy", "other", "copy"))
    assert answers.calls == [(COPY, ["copy", "other"], "sm_90")]


def test_what_was_compiled_is_remembered_on_disk(tmp_path, answers):
    for _ in range(2):
        pool = NvrtcCompilers("sm_90", tmp_path, processes=1)
        binary = compiled(pool, kernel())
        pool.close()
    assert (binary.path.read_bytes(), binary.symbols) == (b"code", {"copy": "copy"})
    assert len(answers.calls) == 1


def test_another_text_is_another_binary(pool, answers):
    paths = {compiled(pool, kernel(text)).path for text in (COPY, COPY + "// changed")}
    assert len(paths) == len(answers.calls) == 2


def test_another_architecture_is_another_binary(tmp_path, answers):
    paths = set()
    for architecture in ("sm_80", "sm_90"):
        pool = NvrtcCompilers(architecture, tmp_path, processes=1)
        paths.add(compiled(pool, kernel()).path)
        pool.close()
    assert len(paths) == len(answers.calls) == 2


@pytest.mark.parametrize("text", ["", "{", "\0", "[]", "3", "null", '{"other": "other"}'])
def test_a_torn_entry_is_made_again(tmp_path, answers, text):
    pool = NvrtcCompilers("sm_90", tmp_path, processes=1)
    compiled(pool, kernel()).path.with_suffix(".json").write_text(text)
    pool.close()
    again = NvrtcCompilers("sm_90", tmp_path, processes=1)
    assert compiled(again, kernel()).symbols == {"copy": "copy"}
    again.close()
    assert len(answers.calls) == 2


def test_an_entry_without_its_code_is_made_again(tmp_path, answers):
    for _ in range(2):
        pool = NvrtcCompilers("sm_90", tmp_path, processes=1)
        path = compiled(pool, kernel()).path
        assert path.exists()
        path.unlink()
        pool.close()
    assert len(answers.calls) == 2


@pytest.mark.parametrize(
    "deaths",
    [[WorkerDiedError("it died"), WorkerDiedError("it died")], [WorkerTimeoutError("it died")]],
    ids=["twice", "of waiting"],
)
def test_a_compiler_that_dies_is_the_kernels_fault(pool, answers, deaths):
    answers.compiled += deaths
    with pytest.raises(KernelFault, match="it died") as raised:
        compiled(pool, kernel())
    assert raised.value.outcome == "compile"


def test_a_compiler_that_dies_once_is_replaced(pool, answers):
    answers.compiled.append(WorkerDiedError("it died"))
    assert compiled(pool, kernel()).path.read_bytes() == b"code"


def test_no_draft_is_left_in_the_cache(pool, answers, tmp_path):
    path = compiled(pool, kernel()).path
    assert answers.calls
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, f"{path.stem}.json"}
    assert json.loads(path.with_suffix(".json").read_text()) == {"copy": "copy"}


def test_a_pool_may_be_closed_twice_and_compiles_no_more(pool):
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(kernel())
