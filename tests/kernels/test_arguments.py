"""Arguments that are structs: what can be given, and where the members lie."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.kernels import (
    Argument,
    Kernel,
    Launch,
    StructLayout,
    TensorMap,
    argument_text,
    launch_plan,
    load_kernel,
)
from pytest_gpuenergy.support import InputError, KernelFault, encode
from pytest_gpuenergy.workloads import Scalar

TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "uint16": "unsigned short",
    "float16": "_Float16",
    "bfloat16": "unsigned short",
    "int32": "int",
    "float32": "float",
    "int64": "long long",
    "float64": "double",
}
SCALARS = {name: Scalar(name, name, 1) for name in TYPES}
SOURCE = "__global__ void f() {}"

LEAVES = st.sampled_from([*TYPES, "x"])
ARGUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5).map(tuple), max_leaves=12
)
STRUCTS = st.lists(ARGUMENTS, max_size=6).map(tuple)


def declaration(argument: Argument, name: str) -> str:
    if isinstance(argument, str):
        return f"{TYPES.get(argument, 'const float*')} {name};"
    members = "".join(declaration(one, f"m{k}") for k, one in enumerate(argument))
    return f"struct {{ {members} }} {name};"


def places(argument: Argument, path: str = "s") -> list[str]:
    """Return the C++ expression of each number and pointer, in order."""
    if isinstance(argument, str):
        return [path]
    return [one for k, each in enumerate(argument) for one in places(each, f"{path}.m{k}")]


@pytest.fixture
def compiled_layouts(tmp_path: Path) -> Callable[[list[Argument]], list[list[int]]]:
    """Make compiled_layouts(structs): size, alignment and offsets of each, by the C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")

    def layouts(structs: list[Argument]) -> list[list[int]]:
        prints = []
        for struct in structs:
            offsets = [f"(size_t)((char*)&{place} - (char*)&s)" for place in places(struct)]
            values = ", ".join(["sizeof s", "alignof(decltype(s))", *offsets])
            prints.append(
                f"{{ static {declaration(struct, 's')} for (size_t v : {{{values}}}) "
                'printf("%zu ", v); puts(""); }'
            )
        text = tmp_path / "layouts.cpp"
        text.write_text(
            "#include <cstdio>\n#include <initializer_list>\nint main() {\n"
            + "\n".join(prints)
            + "\n}\n"
        )
        program = tmp_path / "layouts"
        subprocess.run([compiler, "-w", text, "-o", program], check=True, timeout=120)
        printed = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True)
        return [list(map(int, line.split())) for line in printed.stdout.splitlines()]

    return layouts


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(structs=st.lists(STRUCTS, min_size=60, max_size=60))
@pytest.mark.slow
def test_members_lie_where_the_compiler_puts_them(
    compiled_layouts: Callable[[list[Argument]], list[list[int]]], structs: list[Argument]
):
    layouts = [StructLayout.of(struct, SCALARS) for struct in structs]
    assert compiled_layouts(structs) == [
        [one.nbytes, one.alignment, *(offset for offset, _ in one.members)] for one in layouts
    ]


def test_an_array_has_the_layout_of_as_many_members():
    layout = StructLayout.of(("int8", ("float64",) * 3, ("x",) * 2, ()), SCALARS)
    assert layout.members == (
        (0, "int8"), (8, "float64"), (16, "float64"), (24, "float64"), (32, "x"), (40, "x"),
    )  # fmt: skip
    assert (layout.nbytes, layout.alignment) == (56, 8)


def test_a_struct_survives_in_a_launch_plan(tmp_path):
    kernel = load_kernel(
        SOURCE, entry="f", grid=1, block=32, arguments=[["n", ["x", "x"], []], "y"]
    )
    assert kernel.launches[0].arguments == (("n", ("x", "x"), ()), "y")
    (tmp_path / "f.cu").write_text(SOURCE)
    (tmp_path / "f.json").write_bytes(encode(launch_plan(kernel, "f.cu")))
    assert load_kernel(tmp_path / "f.json") == kernel
    assert argument_text(kernel.launches[0].arguments[0]) == "{n, {x, x}, {}}"


def nested(levels: int) -> Any:
    return "x" if levels == 0 else [nested(levels - 1)]


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        (3, "cannot have the argument 3: give the name of a tensor or scalar, or for a struct a"),
        ([None], "cannot have the argument None"),
        ({"n": 1}, "cannot have the argument {'n': 1}"),
        (nested(17), "has more than 16 levels"),
    ],
)
def test_what_is_no_argument_is_refused(argument, why):
    with pytest.raises(InputError, match=f"'f'.* {why}"):
        Launch("f", (1, 1, 1), (1, 1, 1), (argument,))


def test_structs_have_a_depth_that_is_allowed():
    assert Launch("f", (1, 1, 1), (1, 1, 1), (nested(16),)).names == ("x",)


def test_a_member_that_nothing_is_called_is_refused():
    kernel = load_kernel(SOURCE, entry="f", grid=1, block=1, arguments=[["n", ["z"]], "x"])
    kernel.check_arguments(["x", "z"], ["n"])
    with pytest.raises(KernelFault, match=r"takes an argument 'z', .* \(there are x, n\)"):
        kernel.check_arguments(["x"], ["n"])


def test_a_tensor_map_is_no_member():
    tensor_map = TensorMap("a_map", "A", "bfloat16", (640, 512), (1280,), (64, 128), 128)
    launch = Launch("f", (1, 1, 1), (1, 1, 1), (("n", "a_map"),))
    with pytest.raises(InputError, match="A struct of 'f' has the tensor map 'a_map': only"):
        Kernel(SOURCE, (launch,), tensor_maps=(tensor_map,))
