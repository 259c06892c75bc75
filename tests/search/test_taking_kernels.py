"""A kernel is taken out of a CUDA file with what it needs, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cuda_programs import FILES, PROGRAM, taken
from hypothesis import given, strategies as st
from move_checks import check, spec_of
from msgspec.structs import replace

from pytest_gpuenergy.support import FormError

KERNEL = "__global__ void kernel(float* y) {{ y[threadIdx.x] = {}; }}\n"


def body_of(text: str, entry: str = "kernel", **constants: Any) -> str:
    """The statements of a kernel that is taken out of a text, in one line."""
    source = taken(entry, text, constants).source
    return " ".join(
        source[source.index("__global__") :].partition("{")[2].rpartition("}")[0].split()
    )


class TestWhatIsTaken:
    def test_a_template_becomes_a_function(self):
        found = taken("scale<float, Mode::PLAIN>")
        assert found.entry == "scale"
        assert "const float* __restrict__ x, float* y, int* count, float by, int n" in found.source
        assert "template" not in found.source

    def test_macros_stand_there_as_what_they_mean(self):
        source = taken("scale<float, Mode::PLAIN>").source
        assert "FOR_EACH" not in source
        assert "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;" in source

    def test_a_branch_that_a_template_argument_decides_is_gone(self):
        assert "square" not in taken("scale<float, Mode::PLAIN>").source.partition("{")[2]
        squared = taken("scale<float, Mode::SQUARED>").source
        assert "value = square(value);" in squared
        assert "if (" not in squared
        assert "__device__ T square(T value) { return value * value; }" in squared

    def test_a_default_of_a_template_parameter_is_used(self):
        assert "value * 1 + WAYS" in taken("scale<float, Mode::PLAIN>").source
        assert "value * 8 + WAYS" in taken("scale<float, Mode::PLAIN, 8>").source

    def test_a_negative_argument_stays_apart_from_signs(self):
        text = "template <int N> __global__ void kernel(float* y) { y[0] = 3 -N; }"
        assert body_of(text, "kernel<-1>") == "y[0] = 3 -(-1);"

    def test_constants_come_along_and_the_host_does_not(self):
        source = taken("scale<float, Mode::PLAIN>").source
        assert "constexpr int WAYS = 2 * 2;" in source
        for name in ("main", "report", "CHECK", "result", "Pair", "other", "cstdio", "fp16"):
            assert name not in source.partition("\n")[2]

    def test_a_call_of_a_function_that_passes_its_parameters_on_is_one_of_the_other(self):
        source = taken("scale<float, Mode::PLAIN>").source
        assert "atomicAdd(count, 1);" in source[source.index("__global__") :]

    def test_what_is_passed_on_is_converted_as_before(self):
        text = PROGRAM.replace("add_to(count, 1);", "add_to(count, value);")
        source = taken("scale<float, Mode::PLAIN>", {**FILES, "src/main.cu": text}).source
        assert "atomicAdd(count, (int)(value));" in source

    def test_comments_stay_in_functions(self):
        assert "// scaled" in taken("scale<float, Mode::PLAIN>").source

    def test_a_constant_of_the_launch_keeps_its_name(self):
        source = taken("scale<float, Mode::PLAIN>", constants={"WAYS": 4}).source
        assert "constexpr" not in source
        assert "value * 1 + WAYS" in source

    def test_another_kernel_of_the_same_file_can_be_taken(self):
        found = taken("other")
        assert "y[threadIdx.x] = 3.5f;" in found.source
        assert list(map(str, found.files)) == ["src/main.cu", "src/helpers.h"]

    def test_types_with_names_of_their_own_are_spelled_out(self):
        text = "typedef float real;\nusing whole = unsigned int;\n"
        text += "__global__ void kernel(real* y, whole n) { real v = (real)n; y[0] = v; }"
        assert body_of(text) == "float v = (float)n; y[0] = v;"

    def test_a_header_for_kernels_is_included_if_it_is_needed(self):
        text = "#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n#include <vector>\n"
        text += "__global__ void kernel(half* y) { y[0] = y[1]; }"
        assert re.findall("#include.*", taken("kernel", text).source) == ["#include <cuda_fp16.h>"]

    def test_names_in_namespaces_stay_there(self):
        text = """
        namespace outer { namespace { constexpr int N = 3; }
        namespace inner { __global__ void kernel(float* y) { y[0] = N; } } }
        """
        found = taken("kernel", text)
        assert found.entry == "outer::inner::kernel"
        assert "namespace outer {\nconstexpr int N = 3;\n}" in found.source.replace("; }", ";\n}")
        assert taken("inner::kernel", text).entry == found.entry

    @pytest.mark.parametrize("braces", [("", ""), ("{ int other;", "}")])
    def test_linkage_stays_if_it_is_of_the_kernel(self, braces):
        text = (
            f'extern "C" {braces[0]} __global__ void kernel(float* y) {{ y[0] = 1; }} {braces[1]}'
        )
        assert ('extern "C" __global__' in taken("kernel", text).source) == (braces[0] == "")

    def test_what_is_declared_elsewhere_is_left_out(self):
        text = "__global__ void kernel(float*);\nvoid helper(float*);\nint count(int&);\n"
        text += "using namespace other;\nusing namespace std;\n" + KERNEL.format("1")
        source = taken("kernel", text).source
        assert source.splitlines()[1:] == [
            "using namespace other;",
            "__global__ void kernel(float* y) { y[threadIdx.x] = 1; }",
        ]

    def test_a_prototype_comes_before_a_function_that_is_used_earlier(self):
        text = "__device__ float f(float);\n" + KERNEL.format("f(1)")
        source = taken("kernel", text + "__device__ float f(float v) { return v; }").source
        assert source.index("f(float);") < source.index("__global__") < source.index("return v")

    def test_what_std_and_cuda_both_have_loses_std(self):
        assert body_of(KERNEL.format("std::max(1.0f, std::sqrt(y[0]))")) == (
            "y[threadIdx.x] = max(1.0f, sqrt(y[0]));"
        )

    def test_limits_and_whole_numbers_of_c_need_no_header(self):
        text = "__global__ void kernel(float* y) { y[(int64_t)0] = FLT_MAX; }"
        assert body_of(text) == "y[(long long)0] = 3.402823466e+38f;"


class TestWhatIsDecided:
    @pytest.mark.parametrize(
        ("statement", "left"),
        [
            ("if (FLAG) y[0] = 1; else y[0] = 2;", "y[0] = 2;"),
            ("if (!FLAG) y[0] = 1;", "y[0] = 1;"),
            ("if (FLAG) y[0] = 1;", ";"),
            ("if (FLAG != true) { y[0] = 1; }", "if (false != true) { y[0] = 1; }"),
            ("if constexpr (N == 4) { y[0] = 1; } else { y[0] = 2; }", "{ y[0] = 1; }"),
            ("if (N != 4u) y[0] = 1;", ";"),
            ("if (N == N2) y[0] = 1;", "if (4 == N2) y[0] = 1;"),
            ("if (One::A == Two::A) y[0] = 1;", "if (One::A == Two::A) y[0] = 1;"),
            ("if (N == 4) if (!FLAG) y[0] = N; else y[0] = 5;", "y[0] = 4;"),
            ("if (N) y[0] = 1;", "if (4) y[0] = 1;"),
        ],
    )
    def test_it_is_that_which_arguments_alone_decide(self, statement, left):
        text = f"template <bool FLAG, int N> __global__ void kernel(float* y) {{ {statement} }}"
        assert body_of(text, "kernel<false, 4>") == left

    @pytest.mark.parametrize(
        "function",
        [
            "int put(int* p, int v) { return atomicAdd(p, v); }",
            "void put(int* p, int v) { atomicAdd(p + 1, v); }",
            "void put(int* p, int v) { atomicAdd(p, v); atomicAdd(p, v); }",
            "void put(int* p, int v = 1) { atomicAdd(p, v); }",
            "void put(int* p, Value v) { atomicAdd(p, v); }",
            "void put(int* p, int v) { p[0] = v; }",
        ],
    )
    def test_a_function_that_does_more_than_pass_on_is_called(self, function):
        text = f"struct Value {{ int n; }};\n__device__ {function}\n"
        text += "__global__ void kernel(int* y) { put(y, 3); }"
        assert body_of(text) == "put(y, 3);"


class TestBarriers:
    HEAD = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"

    @pytest.mark.parametrize("wait", ["cg::sync(block);", "block.sync();"])
    def test_those_of_a_block_need_no_group(self, wait):
        text = f"{self.HEAD}__global__ void kernel(float* y) {{"
        text += f"cg::thread_block block = cg::this_thread_block(); y[0] = 1; {wait} y[1] = 2; }}"
        assert body_of(text) == "y[0] = 1; __syncthreads(); y[1] = 2;"
        assert "cooperative_groups" not in taken("kernel", text).source

    @pytest.mark.parametrize(
        "use",
        [
            "auto tile = cg::tiled_partition<32>(block); block.sync();",
            "y[0] = block.thread_rank(); cg::sync(block);",
            "f(block);",
            "block.sync(1);",
            "other.sync(block);",
        ],
    )
    def test_groups_that_do_more_stay(self, use):
        text = f"{self.HEAD}__global__ void kernel(float* y) {{"
        text += f"cg::thread_block block = cg::this_thread_block(); {use} }}"
        assert body_of(text) == f"cg::thread_block block = cg::this_thread_block(); {use}"


class TestMacros:
    @pytest.mark.parametrize(
        ("defined", "used", "meant"),
        [
            ("#define A 3", "A", "3"),
            ("#define A (B + 1)\n#define B 2", "A", "(2 + 1)"),
            ("#define F(a, b) ((a) * (b))", "F(1 + 2, F(3, 4))", "((1 + 2) * (((3) * (4))))"),
            ("#define F(a) a\n#define G F", "G(7)", "F(7)"),
            ("#define F() 5", "F()", "5"),
            ("#define F(...) max(__VA_ARGS__)", "F(1, f(2, 3))", "max(1, f(2, 3))"),
            ("#define F(a, ...) g(a __VA_ARGS__)", "F(1)", "g(1 )"),
            ("#define CAT(a, b) a ## b", "CAT(y[0].x, 2)", "y[0].x2"),
            ("#define WORD(a) f(#a)", "WORD(a + b)", 'f("a + b")'),
            ("#define A A + 1", "A", "A + 1"),
            ("#define A 1\n#undef A", "A", "A"),
            ("#define A 1\n#undef A\n#define A 2", "A", "2"),
            ("#define F(a) a", "F", "F"),
            ("#define F(a, b) a", "F(1)", "F(1)"),
            ("#define F(a) \\\n  (a + \\\n   1)", "F(2)", "(2 + 1)"),
            ("#define A 1  // one", "A", "1"),
            ("#define A 1", "\"A\" + 'A'", "\"A\" + 'A'"),
        ],
    )
    def test_they_mean_what_the_standard_says(self, defined, used, meant):
        found = body_of(f"{defined}\n{KERNEL.format(used)}")
        assert found == f"y[threadIdx.x] = {meant};"

    def test_one_in_a_pragma_is_replaced(self):
        text = "#define N 4\n__global__ void kernel(float* y) {\n#pragma unroll N\n"
        assert "#pragma unroll 4" in taken("kernel", text + "for (;;) y[0] = 1; }").source

    @pytest.mark.slow
    def test_those_that_contain_each_other_many_times_come_to_an_end(self):
        text = "#define A0 1\n"
        text += "".join(f"#define A{k} (A{k - 1} + A{k - 1})\n" for k in range(1, 30))
        assert "= A29" not in body_of(text + KERNEL.format("A29"))


class TestConditions:
    @pytest.mark.parametrize(
        ("condition", "truth"),
        [
            ("#if 1", True),
            ("#if 0", False),
            ("#if UNKNOWN", False),
            ("#if defined(A)", True),
            ("#if defined A && !defined(B)", True),
            ("#if A > 2 && A * 2 == 6", True),
            ("#if (A << 2) % 5 != 2 || 0x10 == 020", True),
            ("#if A ? 0 : 1", False),
            ("#if -A < 0 && ~0 == -1 && +A", True),
            ("#ifdef A", True),
            ("#ifndef A", False),
            ("#ifdef __CUDACC__", True),
            ("#ifdef __HIPCC__", False),
            ("#if GIVEN == 5", True),
        ],
    )
    def test_they_are_decided(self, condition, truth):
        text = f"#define A 3\n{condition}\n#define V 1\n#else\n#define V 2\n#endif\n"
        found = body_of(text + KERNEL.format("V"), GIVEN=5)
        assert found == f"y[threadIdx.x] = {1 if truth else 2};"

    def test_the_first_true_part_counts(self):
        text = "#if 0\n#define V 1\n#elif 1\n#define V 2\n#elif 1\n#define V 3\n#else\nx\n#endif\n"
        assert body_of(text + KERNEL.format("V")) == "y[threadIdx.x] = 2;"

    def test_those_in_parts_that_are_not_there_do_not_count(self):
        text = "#if 0\n#if 1\n#define V 1\n#else\n#define V 2\n#endif\n#endif\n"
        assert body_of(text + KERNEL.format("V")) == "y[threadIdx.x] = V;"

    def test_what_only_the_compiler_knows_stays_in_the_kernel(self):
        text = "__global__ void kernel(float* y) {\n#if 0\n#elif __CUDA_ARCH__ >= 800\n"
        found = body_of(f"{text}y[0] = 1;\n#else\ny[0] = 2;\n#endif\n}}")
        assert found == "#if __CUDA_ARCH__ >= 800 y[0] = 1; #else y[0] = 2; #endif"

    @pytest.mark.parametrize("text", ["(1", "1 +", "1 / 0", "1 2", "?", "A ? 1", "'a'", "defined"])
    def test_what_is_not_understood_is_left_to_the_compiler(self, text):
        text = f"#if {text}\n#define V 1\n#endif\n" + KERNEL.format("V")
        with pytest.raises(FormError, match="the macro V, whose definition only the compiler"):
            body_of(text)

    @given(
        st.recursive(
            st.integers(0, 99).map(str),
            lambda inner: st.one_of(
                st.tuples(inner, st.sampled_from(["+", "-", "*", "<", ">", "==", "!="]), inner).map(
                    lambda parts: f"({' '.join(parts)})"
                ),
                inner.map(lambda part: f"-{part}" if not part.startswith("-") else part),
            ),
        )
    )
    def test_arithmetic_is_that_of_whole_numbers(self, text):
        definitions = f"#if {text}\n#define V 1\n#else\n#define V 0\n#endif\n"
        assert (
            body_of(definitions + KERNEL.format("V"))
            == f"y[threadIdx.x] = {int(bool(eval(text)))};"
        )


class TestIncludes:
    def test_a_file_is_read_where_it_is_included(self):
        files = {
            "src/main.cu": '#include "../lib/a.h"\n' + KERNEL.format("A"),
            "lib/a.h": '#include "b.h"\n#define A B',
            "lib/b.h": "#define B 4",
        }
        found = taken("kernel", files)
        assert "= 4;" in found.source
        assert list(map(str, found.files)) == ["src/main.cu", "lib/a.h", "lib/b.h"]

    @pytest.mark.parametrize("guard", ["#pragma once\n{}", "#ifndef G\n#define G\n{}\n#endif"])
    def test_a_file_is_read_once_if_it_says_so(self, guard):
        twice = '#include "a.h"\n#include "a.h"\n' + KERNEL.format("f()")
        a = guard.format("__device__ float f() { return 1; }")
        assert taken("kernel", {"src/main.cu": twice, "src/a.h": a}).source.count("return 1") == 1

    def test_a_file_that_includes_itself_comes_to_an_end(self):
        files = {
            "src/main.cu": '#include "a.h"\n' + KERNEL.format("1"),
            "src/a.h": '#include "a.h"',
        }
        assert taken("kernel", files).entry == "kernel"

    def test_none_outside_of_the_tree_is_read(self):
        files = {"src/main.cu": '#include "../../a.h"\n' + KERNEL.format("1"), "../a.h": "#error"}
        assert list(map(str, taken("kernel", files).files)) == ["src/main.cu"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("entry", "text", "why"),
        [
            ("scal", PROGRAM, r"src/main.cu has no kernel 'scal' \(its kernels: other, scale\)"),
            ("scale", PROGRAM, "is a template: give an argument for each of T, MODE, STEP"),
            ("other<int>", PROGRAM, "has 1 template arguments, and the kernel 0"),
            ("kernel", "int main() {}", r"\(its kernels: none\)"),
            ("kernel", KERNEL.format("1") * 2, "has 2 kernels that are called 'kernel'"),
            ("kernel", KERNEL.format("f()") + "int f() { return 1; }", "f, which is a function of"),
            ("kernel", "__constant__ float c[9];\n" + KERNEL.format("c[1]"), "the variable c"),
            ("kernel", "__device__ int n;\n" + KERNEL.format("n"), "program around it fills"),
            ("kernel", "int n = 4;\n" + KERNEL.format("n"), "the variable n"),
            ("kernel", KERNEL.format("std::accumulate(y, y)"), "std::accumulate, of a library"),
            ("kernel", KERNEL.format("cub::Sum()(1, 2)"), "cub::Sum, of a library"),
            (
                "kernel",
                "#if CUDA_VERSION > 1\n#define N 4\n#endif\n" + KERNEL.format("N"),
                "the macro N, whose definition only the compiler can decide",
            ),
            (
                "kernel",
                "#if CUDA_VERSION > 1\nconst int N = 4;\n#endif\n" + KERNEL.format("N"),
                "N, which is there under a condition that only the compiler can decide",
            ),
            (
                "kernel",
                "#ifdef __CUDA_ARCH__\n" + KERNEL.format("1") + "#endif",
                "a condition around it that only the compiler can decide",
            ),
            ("kernel<1>", "template <int... N>\n" + KERNEL.format("1"), "cannot be given"),
            ("kernel", "__global__ void kernel(float* y) { y[0] = ((; }", "not understood"),
        ],
    )
    def test_what_cannot_be_taken_along_is_named(self, entry, text, why):
        with pytest.raises(FormError, match=why):
            taken(entry, text)

    def test_includes_that_are_missing_are_named_beside_it(self):
        with pytest.raises(FormError, match=r"includes that are not there: lost.h"):
            taken("kernel", '#include "lost.h"\n' + KERNEL.format("cub::f()"))

    def test_a_local_variable_may_have_the_name_of_one_of_the_file(self):
        text = "int n;\n__global__ void kernel(float* y) { int n = 4; y[0] = n; }"
        assert body_of(text) == "int n = 4; y[0] = n;"


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from(
            [
                *("#if A", "#else", "#endif", "#elif B", "#define A 1", "#define F(x) x + A"),
                *(
                    "#undef A",
                    "F(",
                    ")",
                    "A",
                    ",",
                    "#ifdef A",
                    '#include "main.cu"',
                    "/*",
                    "*/",
                    '"',
                ),
            ]
        ),
        max_size=30,
    )
)
def test_any_text_has_an_end(parts):
    try:
        found = taken("kernel", {"src/main.cu": "\n".join([*parts, KERNEL.format("A")])})
    except FormError:
        return
    assert found.entry == "kernel"


@pytest.mark.slow
def test_what_is_taken_computes_what_the_program_does():
    found = taken("scale<float, Mode::SQUARED, 3>")
    spec = spec_of(
        found.source,
        ["x[N]", "> y[N]", "> count[1]"],
        scalars=["by", "n"],
        grid=("ceil_div(N, 64)",),
        sizes=({"N": 200, "BY": 3}, {"N": 33, "BY": 3}),
        dtypes={"count": "int32"},
        entry=found.entry,
    )
    by, n = spec.scalars
    spec = replace(spec, scalars=(replace(by, dtype="float32"), n))
    check(
        spec.baseline,
        spec,
        lambda v: {"y": (v["x"] * 3) ** 2 * 3 + 4, "count": [len(v["x"])]},
        zeroed="count",
    )
