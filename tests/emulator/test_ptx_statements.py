"""asm statements: their places, operands and macros, and which of them are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import translate
from pytest_gpuenergy.support import KernelFault

PLACES = {
    "a function": (
        "__device__ int f(int a) {"
        ' int r; asm("add.s32 %0, %1, 1;" : "=r"(r) : "r"(a)); return r; }',
        "y[t] = f(t);",
    ),
    "a template": (
        "template <class T, int n> __device__ T f(T a) {"
        ' asm volatile("add.s32 %0, %0, %1;" : "+r"(a) : "n"(n)); return a; }',
        "y[t] = f<int, 1>(t);",
    ),
    "a macro": (
        '#define INCREMENT(to, from) asm volatile("add.s32 %0, %1, 1;" : "=r"(to) : "r"(from))',
        "int r; INCREMENT(r, t); y[t] = r;",
    ),
    "a macro of several lines": (
        '#define INCREMENT(to, from)  \\\n  asm volatile("add.s32 %0, "  \\\n "%1, 1;\\n"  \\\n'
        '    : "=r"(to) \\\n : "r"(from))\n#define OTHER 1',
        "int r; INCREMENT(r, t); y[t] = r * OTHER;",
    ),
    "a branch": ("", 'int r = t + 1; if (t < 0) asm("mov.s32 %0, 7;" : "=r"(r)); else y[t] = r;'),
    "a loop without braces": (
        "",
        'int r = t - 1; for (int i = 0; i < 2; ++i) asm("add.s32 %0, %0, 1;" : "+r"(r)); y[t] = r;',
    ),
    "a lambda": (
        "",
        'auto f = [&](int& r) { asm("add.s32 %0, %1, 1;" : "=r"(r) : "r"(t)); };'
        " f(*(int*)(y + t));",
    ),
}
WRITTEN = {
    "__asm__ __volatile__": '__asm__ __volatile__("add.s32 %0, %1, 1;" : "=r"(r) : "r"(t) : );',
    "a raw string": 'asm volatile(R"(add.s32 %0, %1, 1;  // one: more\n)" : "=r"(r) : "r"(t));',
    "adjacent strings": 'asm volatile("add" ".s32 %0,"\n /* : */ " %1, 1;\\n\\t"'
    ' : "=r"(r) : "r"(t));',
    "a macro's keyword": 'ASSEMBLY("add.s32 %0, %1, 1;" : "=r"(r) : "r"(t));',
    "a macro's string": 'asm volatile("add" TYPE " %0, %1, 1;" : "=r"(r) : "r"(t));',
    "a macro's argument": 'asm volatile("add" KIND(s32) " %0, %1, 1;" : "=r"(r) : "r"(t));',
    "a macro's operands": 'asm("add.s32 %0, %1, 1;" : SUM : TERM);',
    "a macro that is defined twice": 'asm volatile("add" EITHER " %0, %1, 1;" : SUM : TERM);',
    "branches": 'asm("{ .reg .pred p; mov.b32 %0, 0; more: setp.gt.s32 p, %0, %1; @p bra.uni end;'
    ' add.s32 %0, %0, 1; bra more; end: }" : "+r"(r) : TERM);',
    "clobbers": 'asm volatile("add.s32 %0, %1, 1;" : "=r"(r) : "r"(t) : "memory");',
    "commas and templates": 'asm("add.s32 %0, %1, %2;" : "=r"(r) : "r"(two<1, 2>(t, 0)), "n"(1));',
    "a conditional": 'asm("add.s32 %0, %1, %2;" : "=r"(r) : "r"(t ? t : 0), "r"(t < 0 ? 2 : 1));',
    "an element": 'int e[2]; asm("add.s32 %0, %1, 1;" : "=r"(e[1]) : "r"(t)); r = e[1];',
    "a vector's element": 'int2 e; asm("add.s32 %0, %1, 1;" : "=r"(e.y) : "r"(t)); r = e.y;',
    "a float as bits": 'float f = __int_as_float(t);'
    ' asm("{.reg .s32 i; mov.b32 i, %1; add.s32 %0, i, 1;}" : "=r"(r) : "f"(f));',
    "a pointer": 'const void* p = (void*)(size_t)t; unsigned long long w;'
    ' asm("add.u64 %0, %1, 1;" : "=l"(w) : "l"(p)); r = (int)w;',
    "16 bits": 'unsigned short h = t, g; asm("add.u16 %0, %1, 1;" : "=h"(g) : "h"(h)); r = g;',
    "a double": 'double d; asm("add.f64 %0, %1, 1.0;" : "=d"(d) : "d"((double)t)); r = (int)d;',
    "several instructions": 'asm("{ .reg .b32 a, b; mov.b32 a, %1; add.s32 b, a, 1;\\n'
    ' mov.b32 %0, b; }" : "=r"(r) : "r"(t));',
    "special registers": 'asm("{ .reg .u32 a; mov.u32 a, %%laneid; add.u32 %0, a, 1; }"'
    ' : "=r"(r));',
    "no instruction": 'r = t + 1; asm volatile("" : "+r"(r) :: "memory");'
    ' asm volatile("" ::: "memory");',
    "conditional strings": 'asm("add.s32 %0, "\n#if defined(TYPE)\n"%1, 1;"\n#else\n'
    '"%1, 2;"\n#endif\n'
    ' : "=r"(r) : "r"(t));',
}  # fmt: skip
HELPERS = """
#define TYPE ".s32"
#define ASSEMBLY asm volatile
#define KIND(name) "." #name
#define SUM "=r"(r)
#define TERM "r"(t)
#if defined(__CUDA_ARCH__)
#define EITHER ".s32"  // the other one is for the host
#else
#define EITHER ".f32"
#endif
template <int a, int b> __device__ int two(int x, int y) { return x + y; }
"""


@pytest.fixture
def increments(run):
    """Make increments(before, body), which tells whether each thread t gets t + 1."""

    def go(before, body):
        source = f"{before}\n__global__ void k(int* y) {{ int t = threadIdx.x;\n{body}\n}}"
        got = run(source, outputs={"y": (32, "int32")}, block=32)["y"]
        return got.tolist() == list(range(1, 33))

    return go


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_statement_may_stand_in(increments, place):
    assert increments(*PLACES[place])


@pytest.mark.slow
def test_a_statement_may_be_written_in_many_ways(run):
    forms = "".join(
        f"{{ int* y = all + {32 * k}; int r;\n{form}\ny[t] = r; }}\n"
        for k, form in enumerate(WRITTEN.values())
    )
    source = f"{HELPERS}\n__global__ void k(int* all) {{ int t = threadIdx.x;\n{forms} }}"
    got = run(source, outputs={"y": ((len(WRITTEN), 32), "int32")}, block=32)["y"]
    assert [form for form, y in zip(WRITTEN, got, strict=True) if any(y != range(1, 33))] == []


COMPLETES = ".mbarrier::complete_tx::bytes"
REFUSED = [
    ("wgmma.wait_group.sync.aligned %0;", "inline PTX 'wgmma.wait_group.sync.aligned %0'"),
    ("mbarrier.arrive.noComplete.shared.b64 _, [%0], 1;", "inline PTX 'mbarrier.arrive.noCompl"),
    ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%0], 16;", "cp.reduce"),
    ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%0}], [%0];", "tensor.2d"),
    *(
        (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col{COMPLETES} {operands};",
            "im2col",
        )
        for rank, operands in (
            (2, "[%0], [%0, {%0, %0}], [%0], {}"),  # no dimension of an image
            (4, "[%0], [%0, {%0, %0, %0, %0}], [%0]"),  # no offsets
            (4, "[%0], [%0, {%0, %0, %0, %0}], [%0], {1}"),
            (4, "[%0], [%0, {%0, %0, %0, %0}], [%0], {%0, 1}"),  # an offset of 32 bits
            (4, "[%0], [%0, {%0, %0, %0}], [%0], {1, 1}"),
        )
    ),
    ("cp.async.mbarrier.arrive.noinc.shared::cluster.b64 [%0];", "noinc.shared::cluster"),
    (
        "{ .reg .pred p; setp.ne.b32 p, %0, 0; wgmma.mma_async.sync.aligned.m64n4k16.f32.f16.f16"
        " {%0, %0}, %0, %0, p, 1, 1, 0, 0; }",
        "m64n4k16",
    ),
    ("tcgen05.wait::ld.sync.aligned;", "inline PTX 'tcgen05.wait::ld.sync.aligned'"),
    ("mov.u32 %0, 1; brkpt;", "inline PTX 'brkpt'"),
    ("LOOP: bra END;", "asm with a branch to END, which it does not have"),
    ("A: { A: bra A; }", "asm with two labels of the same name"),
    ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0}, {%0}, {%0}, {%0};", "m8n8k4.row"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%0}, {%0}, {%0};", "m16n8k8"),
    ("add.rz.f32 %0, %0, %0;", "inline PTX 'add.rz.f32 %0, %0, %0'"),
    ("add.s32 %0, %3, 1;", "asm without an operand 3"),
    ("add.s32 %0, a, 1;", "asm with the unknown register a"),
    ("add.s32 %1, %0, 1;", "asm that sets its input %1"),
    ("{ .reg .f32 f; add.s32 f, %0, 1; }", "asm with f, which is f32 or f64, as an integer"),
    ("{ .reg .f32 f; cvt.rna.tf32.f32 f, f; }", "asm with f, which is f32 or f64, as an integer"),
    ("{ .reg .pred p; add.s32 %0, p, 1; }", "asm with p, a predicate, as s32"),
    ("{ .reg .u64 w; add.u64 w, w, %0; }", "asm with %0, a register of 32 bits, as u64"),
    ("{ add.s32 %0, %0, 1;", "asm with a brace that nothing closes"),
    ("ld.global.u32 %0, [%1];", "asm with an address of 32 bits"),
]


@pytest.mark.parametrize(("ptx", "reason"), REFUSED)
def test_what_cannot_run_is_refused_by_its_instruction(ptx, reason):
    source = f'__global__ void k(int a) {{ asm("{ptx}" : "+r"(a) : "r"(1)); }}'
    refused = re.findall(
        r'error\("cannot run on the emulated GPU: (.*?)"\)', translate(source, ["k"])
    )
    assert [reason in one for one in refused] == [True]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ('asm("mov.b32 %0, 1;" : "=m"(a));', "constraint '=m'"),
        ('asm("mov.b32 %0, 1;" : "r"(a));', "constraint 'r'"),
        ('asm goto("mov.b32 %0, 1;" : "=r"(a));', "asm goto"),
        ('asm(UNKNOWN " %0, 1;" : "=r"(a));', "asm whose text comes from UNKNOWN"),
        ('asm("mov.b32 %[a], 1;" : [a] "=r"(a));', "asm with the constraint ''"),
    ],
)
def test_statements_that_nvcc_does_not_take_are_refused(statement, reason):
    text = translate(f"__global__ void k(int a) {{ {statement} }}", ["k"])
    assert reason in text


@pytest.mark.slow
def test_an_operand_of_another_size_than_its_constraint_is_refused(run):
    source = '__global__ void k(long long* y) { asm("mov.b32 %0, 1;" : "=r"(y[0])); }'
    with pytest.raises(KernelFault, match=r"line 1: .*size that its constraint says"):
        run(source, outputs={"y": (1, "int64")})


@pytest.mark.slow
@pytest.mark.parametrize("called", [False, True])
def test_what_is_refused_in_a_macro_may_stand_there_unused(run, called):
    source = (
        '#define ARRIVE asm volatile("mbarrier.pending_count.b64 _, %0;" :: "l"(0ll))\n'
        f"__global__ void k(int* y) {{ y[0] = 1; {'ARRIVE;' if called else ''} }}"
    )
    if called:
        with pytest.raises(KernelFault, match=r"inline PTX 'mbarrier.pending_count.b64 _, %0'"):
            run(source, outputs={"y": (1, "int32")})
    else:
        assert run(source, outputs={"y": (1, "int32")})["y"] == [1]


def _lines_in(text):
    return text.count("\n")


statements = st.sampled_from(
    [
        'asm volatile("cp.async.wait_all;\\n"\n ::: "memory");',
        'asm("mov.u32 %0,\\n"\n  " 1;" : "=r"(x[0]\n));',
        '#define A(x) asm("mov.u32 %0, 1;" \\\n : "=r"(x))\n',
        'asm("mov"\n#if X\n".u32"\n#else\n".b32"\n#endif\n" %0, 1;" : "=r"(x));',
        "x = 1;\n",
    ]
)


@given(st.lists(statements, max_size=6))
def test_lines_keep_their_numbers_around_statements(parts):
    source = "__device__ void f() {\n" + "\n".join(parts) + "\n int last; }"
    translated = translate(source, ["k"])
    body = translated.split('#line 1 "kernel.cu"\n')[1]
    shift = re.findall(r'#line (\d+) "kernel.cu"\n', body)
    if shift:  # the last one says where its line is
        body = "\n" * (int(shift[-1]) - 1) + body.rsplit('"kernel.cu"\n', 1)[1]
    before = body[: body.index("int last")]
    assert _lines_in(before) == _lines_in(source[: source.index("int last")])


PTX_WORDS = """
    add.s32 mov.b32 mov.b64 ld.shared.v2.f32 st.global.b32 cvt.rn.f16x2.f32 setp.eq.s32 selp.b32
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 shfl shfl.sync.up.b32 atom.add.u32
    cp.async.ca.shared.global cp.async.wait_group ldmatrix.sync.aligned.m8n8.x1.shared.b16
    @p @! .reg .pred .b32 a<2> %0 %1 %2 %9 %%laneid % ? ?x p a0 _ 1 0x 0f0 - [%2] [%2+4] [ ] { } ,
    | ; : \\n // /* */ !
"""
ptx_words = st.sampled_from(PTX_WORDS.split())


@given(st.lists(ptx_words, max_size=14), st.sampled_from(["", " "]))
def test_any_instructions_are_translated_or_refused(words, between):
    text = between.join(words)
    source = f'void f(int a) {{ asm("{text}" : "=r"(a) : "f"(1.f), "l"(0ll)); }}'
    assert "asm(" not in translate(source, ["k"])


# As in the header of TVM's kernels in half precision: no string, but a long row of words.
FUNCTION = """#define UNARY(NAME, OTHER) \\
static inline __device__ __host__ half NAME(half x) {   \\
  return __float2half(OTHER(__half2float(x)));          \\
}
"""
WORDS = f"#define WORDS {'word ' * 50}+ 1\n"
COMMENTED = '#define TYPE ".f32"  // one of two\n'
STRING = '#define WAIT(n) "cp.async.wait_group " #n ";"\n'


def test_a_macro_of_many_words_that_is_no_string_is_passed_over():
    text = "__global__ void k() { asm volatile(WAIT(3)); asm volatile(WORDS); }"
    translated = translate(FUNCTION + WORDS + STRING + text, ["k"])
    assert "cuhost_finish_copies((size_t)0x3ull)" in translated
    assert "asm whose text comes from WORDS" in translated


def test_a_macro_with_several_definitions_is_a_choice():
    macros = COMMENTED + '#define TYPE ".s32" /* the other */\n'
    add = 'asm("add" TYPE " %0, %0, %0;" : "+r"(a));'
    translated = translate(f"{macros}__global__ void k() {{ int a; {add} }}", ["k"])
    for string, kind in (('".f32"', "f32"), ('".s32"', "s32")):
        assert f"cuhost_same(TYPE, {string})" in translated
        assert f"ptx_add<::cuhost::cuhost_{kind}>" in translated
