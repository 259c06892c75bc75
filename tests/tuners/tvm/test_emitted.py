"""What TVM writes: plain kernels, whatever a record was that got past the first look at it."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hostile_records import HOSTILE, LAMBDA, WORDS, changed, module_of, stored_with, strings
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.support import FormError, KernelFault
from pytest_gpuenergy.tuners import check_emitted
from pytest_gpuenergy.workloads import CASES, Conv2d

SMALL = Conv2d.of("small", 1, 9, 11, 8, 8, 3, 3, 1, 2)
PROGRAM = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a_ptr);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a_ptr) {
  extern __shared__ __align__(64) uchar buf_dyn_shmem_ptr[];
  alignas(64) float b_ptr[4];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    int2 v_ = make_int2((i)+(1*0), (i)+(1*1));
    b_ptr[i] = (a_ptr[(((int)threadIdx.x) + v_.y)] * 0x1.8p+1f/*3.000000e+00*/);
  }
  __syncthreads();
  *(float2*)(a_ptr + 2) = *(float2*)(b_ptr + 0);
  HERE
}

"""
HEADER = "// TVM's own\n"
STATEMENTS = (
    'system("id");',
    "system(0);",
    "::getenv(b_ptr);",
    "b_ptr[0] = getenv;",
    "b_ptr[0] = ([]{ return 1; }());",
    "b_ptr[0] = [=](int x){ return x; }(1);",
    "b_ptr[0] = [ /* */ ]{ return 1; }();",
    "int (*f)(int) = (int (*)(int))a_ptr; f(1);",
    "((void (*)())a_ptr)();",
    "typedef void f(); ((f*)a_ptr)();",
    "int f(int);",
    'asm volatile("nop");',
    '__asm__("nop");',
    "int asm; asm volatile (0);",
    "#include </etc/passwd>",
    "%:include </etc/passwd>",
    "??=include </etc/passwd>",
    "#pragma GCC poison x",
    "#pragma unroll 4 \\",
    "// } int main() {}",
    "/* } int main() {} */",
    "/*1+(2)*/",
    "[[gnu::constructor]] int x;",
    "__attribute__((constructor)) int x;",
    "static int x = 1;",
    "struct S { int x; };",
    "throw 1;",
    "goto end;",
    "int x = sizeof(int);",
    "int x = 'a';",
    "int x = 1_evil;",
    "int x = b_ptr->x;",
    "int x = b_ptr.data;",
    "int operator0 = operator+;",
    "auto x = 1;",
    "float λ = 1;",
    "$ = 1;",
    "} int main() {",
    "} }",
    "{",
)


@functools.cache
def emitted(source: str) -> tuple[str, str]:
    """TVM's header of a text, and the rest."""
    position = source.index('extern "C"')
    return source[:position], source[position:]


def check(statement: str) -> None:
    source = HEADER + PROGRAM.lstrip().replace("HERE", statement)
    check_emitted(source, [HEADER], ["main_kernel"])


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "b_ptr[0] = max(b_ptr[1], __expf(b_ptr[2]));",
        "float v_; if (((int)threadIdx.x) < 4) { v_ = 0x0p+0f; } else { v_ = 1.5e+00f; }",
        "while (1) { if (!(b_ptr[0] < 1)) { break; } }",
        "uint mask_ptr[1]; mask_ptr[0] = __activemask();",
        "b_ptr[0] = __shfl_down_sync(4294967295u, b_ptr[0], 1, 32);",
        "((volatile float*)b_ptr)[0] = 1.0f;",
        "int64_t __1 = ((int64_t)5000000000);",
    ],
)
def test_arithmetic_is_let_through(statement):
    check(statement)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_anything_else_is_refused(statement):
    with pytest.raises(FormError) as error:
        check(statement)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "int x;",
        "int main() {}",
        'extern "C" __device__ void f() {}',
        'extern "C" __global__ void system(float* a_ptr) {}',
        'extern "C" __global__ void f_kernel(void (*g)()) {}',
        'extern "C" __global__ void f_kernel(float* a_ptr = g) {}',
        'extern "C" __global__ void f_kernel(float* a_ptr) {',
        '__forceinline__ __device__ void tvm_builtin_x() {\n  asm volatile("exit;" :  : );\n}',
    ],
)
def test_nothing_stands_beside_the_kernels(text):
    with pytest.raises(FormError):
        check_emitted(HEADER + PROGRAM.replace("HERE", "").lstrip() + text + "\n", [HEADER], [])
    with pytest.raises(FormError):
        check_emitted(HEADER + text + "\n" + PROGRAM.replace("HERE", "").lstrip(), [HEADER], [])


def test_a_text_with_another_header_is_refused():
    source = "#include <stdio.h>\n" + PROGRAM.lstrip().replace("HERE", "")
    with pytest.raises(FormError, match="does not begin as"):
        check_emitted(source, [HEADER], [])


def test_a_launch_of_another_function_is_refused():
    with pytest.raises(FormError, match="does not define 'system'"):
        check_emitted(HEADER + PROGRAM.lstrip().replace("HERE", ""), [HEADER], ["system"])


@pytest.mark.tvm
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_call_put_anywhere_into_a_real_text_is_refused(store, record_file, data):
    header, rest = emitted(store.kernel(record_file, 1).source)
    position = data.draw(st.integers(0, len(rest.rstrip())))
    call = data.draw(st.sampled_from(['system("id")', "getenv(0)", "::abort()", "([]{}())", "#if"]))
    check_emitted(header + rest, [header], ["main_kernel"])
    with pytest.raises(FormError):
        check_emitted(header + rest[:position] + call + rest[position:], [header], [])


@pytest.mark.tvm
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_of_a_record_becomes_text_of_a_kernel(store, record_file, data):
    content = data.draw(
        st.sampled_from([json.loads(record.recipe) for record in record_file.records])
    )
    place = data.draw(st.sampled_from(list(strings(content))))
    words = st.sampled_from(WORDS)
    inserted = data.draw(
        words | st.sampled_from(HOSTILE) | st.tuples(words, st.text()).map("".join)
    )
    before = data.draw(st.booleans())
    bad = changed(content, place, lambda text: inserted + text if before else text + inserted)
    try:
        kernel = store.lower(CASES["case7"], json.dumps(bad)).result()
    except KernelFault as fault:
        assert str(fault).isprintable()  # noqa: PT017 -- either is right
    else:
        assert inserted not in emitted(kernel.source)[1]


def trace(axis: str = "threadIdx.x", *more: Any, scope: str | None = None) -> Any:
    """One thread per output; with ``scope`` the sums are kept in a cache of that scope."""
    start = [
        ["GetSBlock", [], ["pad_temp", "main"], ["b0"]],
        ["ComputeInline", ["b0"], [], []],
        ["GetSBlock", [], ["conv2d_nchw", "main"], ["b1"]],
    ]
    output = "b1"
    if scope is not None:
        start.append(["CacheWrite", ["b1", []], [0, scope], ["b2"]])
        output = "b2"
    loops = [f"l{k}" for k in range(4 if scope else 7)]
    bound = [
        ["GetLoops", [output], [], loops],
        ["Fuse", loops[:4], [1], ["l7"]],
        ["Split", ["l7", "None", 64], [1, 0], ["l8", "l9"]],
        ["Bind", ["l8"], ["blockIdx.x"], []],
        ["Bind", ["l9"], [axis], []],
    ]
    moved = [["ComputeAt", ["b1", "l9"], [1, -1], []]] if scope else []
    return [[*start, *bound, *moved, *more], []]


@pytest.mark.tvm
def test_a_plain_trace_makes_a_kernel(child):
    assert "threadIdx.x" in child.call("lower_unchecked", SMALL, trace()).source
    scoped = child.call("lower_unchecked", SMALL, trace(scope="local")).source
    assert "conv2d_nchw_local_ptr" in scoped


@pytest.mark.tvm
@pytest.mark.parametrize(
    "bad",
    [
        trace(LAMBDA),
        trace('threadIdx.x + (system("id"), 0)'),
        trace("threadIdx.x /* evil */"),
        trace("threadIdx.x, getenv"),
        trace("threadIdx.x + sizeof(int)"),
        trace(scope="shared int evil; //"),
        trace(scope='local; system("id"); int x'),
        trace(scope="local\n#include </etc/passwd>\n"),
        trace("threadIdx.x", ["Annotate", ["b1", '"int evil;"'], ["pragma_import_c"], []]),
    ],
    ids=lambda bad: json.dumps(bad[0][-1])[:60],
)
def test_what_gets_past_the_first_look_is_refused(child, bad):
    with pytest.raises(
        KernelFault, match="The text that TVM made of it cannot be used, because it"
    ) as fault:
        child.call("lower_unchecked", SMALL, bad)
    assert fault.value.outcome == "compile"
    assert str(fault.value).isprintable()


@pytest.mark.tvm
def test_a_program_that_calls_a_function_is_refused(child):
    assert "a_ptr" in child.call("lower_program", "a", None).source
    with pytest.raises(KernelFault, match="because it calls 'system'"):
        child.call("lower_program", "a", "system")


@pytest.mark.tvm
@pytest.mark.parametrize("name", ['x; system("id"); float y', "__asm__", "λ", "x)", "a, b"])
def test_a_tensor_with_another_name_is_refused(child, name):
    with pytest.raises(KernelFault, match="The text that TVM made of it cannot be used"):
        child.call("lower_program", name, None)


@pytest.mark.tvm
def test_a_stored_workload_that_is_no_plain_program_is_refused(store, database):
    module = module_of(database.workloads[0])
    (call,) = (node for node in module["nodes"] if node["type"] == "ir.Op")
    call["data"] = "tirx.call_pure_extern"
    hostile = type(database)(database.path, (json.dumps(stored_with(module)),), database.records)
    with pytest.raises(KernelFault, match=r"^line 1 of .* because its node \d+ is"):
        store.database_kernel(hostile, hostile.valid[0])
