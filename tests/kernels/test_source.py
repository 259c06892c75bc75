"""load_kernel: files, text and launch plans, and what is said of bad ones."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.kernels import (
    Kernel,
    Launch,
    Origin,
    RecordedFigures,
    launch_plan,
    load_kernel,
    read_plan,
)
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import Tensor

SAXPY = """extern "C" __global__ void saxpy(float* y, const float* x, float a) {
  y[blockIdx.x * blockDim.x + threadIdx.x] += a * x[blockIdx.x * blockDim.x + threadIdx.x];
}
"""
LAUNCH: dict[str, Any] = {"entry": "saxpy", "grid": 1, "block": 1, "arguments": ["y", "x", "a"]}


def write_plan(folder: Path, kernel: Kernel, **changes: object) -> Path:
    (folder / "kernel01.cu").write_text(kernel.source)
    path = folder / "kernel01.json"
    path.write_text(json.dumps({**launch_plan(kernel, "kernel01.cu"), **changes}))
    return path


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(
        SAXPY,
        (Launch("saxpy", (4, 2, 1), (64, 1, 1), ("y", "x", "a"), 128),),
        workspaces=(Tensor("buffer", (16, 2), "float32", "workspace"),),
        origin=Origin("tuner", 3, {"trials": 64}),
        recorded=(RecordedFigures("NVIDIA H200", 700.0, 0.5, 400.0, 200.0),),
    )


@pytest.mark.parametrize("suffix", [".cu", ".txt"])
def test_a_source_file_becomes_a_kernel(tmp_path, suffix):
    path = tmp_path / f"saxpy{suffix}"
    path.write_text(SAXPY)
    launch: dict[str, Any] = {**LAUNCH, "grid": (4, 2), "block": 64, "shared_bytes": 512}
    kernel = load_kernel(path, **launch)
    assert kernel.source == SAXPY
    assert kernel.launches == (Launch("saxpy", (4, 2, 1), (64, 1, 1), ("y", "x", "a"), 512),)
    assert kernel.origin.details["path"] == str(path)
    assert kernel == load_kernel(SAXPY, **launch) == load_kernel(str(path), **launch)


def test_a_plan_gives_back_the_kernel_it_was_written_from(tmp_path, kernel):
    again = load_kernel(write_plan(tmp_path, kernel))
    assert again == kernel
    assert (again.origin, again.recorded) == (kernel.origin, kernel.recorded)


@pytest.mark.slow
@given(
    grid=st.tuples(*[st.integers(1, 1 << 16)] * 3),
    block=st.tuples(*[st.integers(1, 1024)] * 3),
    shared=st.integers(0, 1 << 17),
    names=st.lists(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), min_size=1, max_size=5),
)
def test_any_launch_survives_its_plan(tmp_path_factory, grid, block, shared, names):
    kernel = Kernel(SAXPY, (Launch("saxpy", grid, block, tuple(names), shared),))
    assert read_plan(write_plan(tmp_path_factory.mktemp("plan"), kernel)) == kernel


def test_the_fields_of_a_plan_cannot_be_given_twice(tmp_path, kernel):
    with pytest.raises(InputError, match="already gives 'grid'"):
        load_kernel(write_plan(tmp_path, kernel), grid=3)


BOUNDED = 'extern "C" __global__ void __launch_bounds__(256) conv(float* a) { a[0] = 1; }'
REFUSED: list[tuple[str, dict[str, object], str]] = [
    *((SAXPY, {missing: None}, f"needs '{missing}'") for missing in LAUNCH),
    (SAXPY, {"entry": "axpy"}, "no function 'axpy': it has saxpy"),
    (BOUNDED, {"entry": "other"}, "it has conv"),
    (SAXPY, {"grid": (1, 2, 3, 4)}, "one to three sizes"),
    (SAXPY, {"grid": 0}, "three positive integers"),
    (SAXPY, {"block": (1.5, 1, 1)}, "three positive integers"),
    (SAXPY, {"arguments": "y"}, "must be a list of names"),
    (SAXPY, {"shared_bytes": -1}, "number of bytes"),
    *(
        (SAXPY, {"define": macros}, "'define' ")
        for macros in ({"1N": 4}, {"N=4": True}, {"N": None}, {"N": "1\n2"})
    ),
]


@pytest.mark.parametrize(("source", "changes", "message"), REFUSED)
def test_a_kernel_that_cannot_be_launched_is_refused(source, changes, message):
    with pytest.raises(InputError, match=message):
        load_kernel(source, **{**LAUNCH, **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (Path(), "is not a file"),
        (b"", "empty"),
        (b"\x7fELF\x00\x01", "binary"),
        (b"\xff\xfe\xfd", "binary"),
        (b" " * ((16 << 20) + 1), "larger than 16 MiB"),
    ],
    ids=["missing", "folder", "empty", "ELF", "UTF-16", "large"],
)
def test_a_bad_source_file_is_refused(tmp_path, content, message):
    path = tmp_path / "kernel.cu"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(InputError, match=message):
        load_kernel(path, **LAUNCH)


def test_headers_are_looked_for_in_the_folders_given(tmp_path):
    for folder, text in (("own", "#define OWN 1\n"), ("common", '#include "b.h"\n#define A 2\n')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.h").write_text(text)
    (tmp_path / "common" / "b.h").write_text("#define B 3\n")
    (tmp_path / "common" / "helper_cuda.h").write_text("#define HOST 1\n")
    path = tmp_path / "own" / "f.cu"
    path.write_text(f'#include "a.h"\n#include <a.h>\n#include <helper_cuda.h>\n{SAXPY}')
    source = load_kernel(path, include=["common"], folder=tmp_path, **LAUNCH).source
    for kept in ("#define OWN 1", "#define A 2", "#define B 3", "#include <helper_cuda.h>"):
        assert source.count(kept) == 1
    assert '"a.h"' not in source
    assert "<a.h>" not in source
    with pytest.raises(InputError, match="gone of 'include' is not there"):
        load_kernel(path, include=[tmp_path / "gone"], **LAUNCH)


@pytest.mark.parametrize("guard", ["#pragma once\n", "#ifndef G\n#define G\n"])
def test_a_header_is_read_where_its_condition_holds(tmp_path, guard):
    end = "#endif\n" if "G" in guard else ""
    texts = {
        "common.h": f"{guard}#define FACTOR 2\nint once;\n{end}",
        "theirs.h": f'{guard.replace("G", "T")}#include "common.h"\n{end}',
        "ours.h": f'{guard.replace("G", "O")}#include "common.h"\n#include "theirs.h"\n{end}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "f.cu"
    either = '#ifdef THEIRS\n#include "theirs.h"\n#else\n#include "ours.h"\n#endif\n'
    path.write_text(f'{either}#include "common.h"\nint seen = FACTOR;\n{SAXPY}')
    for define in ({}, {"THEIRS": True}):
        source = load_kernel(path, define=define, **LAUNCH).source
        command = ["g++", "-E", "-P", "-x", "c++", "-D__global__=", "-"]
        text = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
        assert text.stdout.count("int once") == 1
        assert "int seen = 2" in text.stdout


def test_macros_are_defined_before_the_text():
    given = {"N": 4, "FAST": True, "MUL(a, b)": "((a) * (b))"}
    kernel = load_kernel(SAXPY, define=given, **LAUNCH)
    assert kernel.source == (f"#define N 4\n#define FAST\n#define MUL(a, b) ((a) * (b))\n{SAXPY}")


def test_ends_of_lines_and_comments_may_be_those_of_windows(tmp_path):
    path = tmp_path / "f.cu"
    path.write_bytes(b"// \xa9 and \xb5s\r\n" + SAXPY.replace("\n", "\r\n").encode())
    kernel = load_kernel(path, **LAUNCH)
    assert kernel.source == f"// \N{COPYRIGHT SIGN} and \N{MICRO SIGN}s\n{SAXPY}"


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("auto grid = cg::this_grid(); grid.sync();", True),
        ("cg::grid_group g{cg::this_grid()}; cg::sync(g);", True),
        ("cooperative_groups::this_grid().sync();", True),
        ("cg::grid_group g = cg::this_grid(); auto b = cg::this_thread_block(); b.sync();", False),
        ("y[cg::this_grid().thread_rank()] = 1; __syncthreads();", False),
    ],
)
def test_a_barrier_of_the_grid_is_seen(text, needs):
    kernel = Kernel(text, (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),))
    assert kernel.has_grid_barrier == needs


def test_an_entry_may_be_an_instance_of_a_template_in_a_namespace():
    source = "namespace n { template <int k> __global__ void f(float* a) { a[k] = 1; } }"
    kernel = load_kernel(source, entry="n::f<4>", grid=1, block=1, arguments=["a"])
    assert kernel.launches[0].entry == "n::f<4>"


@pytest.mark.parametrize(
    "entry", ["saxpy", "n::f<4>", "fill<short, 7>", "f <A<sizeof(float)>, -1>", "f<>"]
)
def test_functions_and_instances_of_templates_are_entries(entry):
    assert Launch(entry, (1, 1, 1), (1, 1, 1), ()).entry == entry


@pytest.mark.parametrize(
    "entry",
    [
        "saxpy>::entry(0, 0), (system(0)",
        "saxpy<4>, other<5>",
        "saxpy<4>::x",
        "saxpy<(>)",
        "saxpy<[]{}()>",
        'saxpy<"x">',
        "saxpy<4",
        "saxpy;",
        "::saxpy",
        "saxpy\n",
        "saxpy<4\n>",
        "saxpy // x",
        "",
    ],
)
def test_an_entry_that_is_other_text_is_refused(tmp_path, kernel, entry):
    launch = {**asdict(kernel.launches[0]), "entry": entry}
    with pytest.raises(
        InputError, match=r"^In the launch plan .* not the name of a function: give a"
    ):
        read_plan(write_plan(tmp_path, kernel, launches=[launch]))


@pytest.mark.parametrize("name", ["../secret.cu", "/etc/passwd", "sub/kernel.cu", "..", ""])
def test_a_plan_cannot_name_a_file_outside_its_folder(tmp_path, kernel, name):
    with pytest.raises(InputError, match="own folder"):
        read_plan(write_plan(tmp_path, kernel, source=name))


def test_a_plan_cannot_reach_outside_through_a_link(tmp_path, kernel):
    outside = tmp_path / "outside.cu"
    outside.write_text(kernel.source)
    inside = tmp_path / "inside"
    inside.mkdir()
    plan = write_plan(inside, kernel)
    (inside / "kernel01.cu").unlink()
    (inside / "kernel01.cu").symlink_to(outside)
    with pytest.raises(InputError, match="own folder"):
        read_plan(plan)


def test_a_truncated_plan_is_refused(tmp_path, kernel):
    plan = write_plan(tmp_path, kernel)
    plan.write_text(plan.read_text()[:-40])
    with pytest.raises(InputError, match="not complete JSON"):
        read_plan(plan)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": 99}, "schema_version is 99"),
        ({"launches": []}, "at least one launch"),
        ({"launches": 7}, "launches is an integer instead of a list"),
        ({"launches": [{"entry": "saxpy"}]}, r"launches\[0\].grid is missing"),
        ({"language": "opencl"}, "language is 'opencl'"),
        (
            {"workspaces": [{"name": "w", "shape": [0], "dtype": "float32", "role": "workspace"}]},
            r"workspaces\[0\].shape has a size that is less than 1",
        ),
        (
            {"workspaces": [{"name": "w", "shape": [1], "dtype": "float31", "role": "workspace"}]},
            "unknown type 'float31'",
        ),
        (
            {"workspaces": [{"name": "w", "shape": [1], "dtype": "f4,O", "role": "workspace"}]},
            "unknown type 'f4,O'",
        ),
        ({"origin": {"kind": 3, "details": {}}}, "origin.kind is an integer"),
        ({"origin": {"kind": "x", "details": {"a": []}}}, "a value of origin.details is a list"),
        (
            {"recorded": [{"gpu": "x", "power_limit_w": -1}]},
            r"power_limit_w is not greater",
        ),
        ({"sha256": "0"}, "written for a different"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path, kernel, changes, said):
    with pytest.raises(InputError, match=said):
        read_plan(write_plan(tmp_path, kernel, **changes))


def test_a_plan_for_another_text_is_refused(tmp_path, kernel):
    plan = write_plan(tmp_path, kernel)
    (tmp_path / "kernel01.cu").write_text(kernel.source + "// edited\n")
    with pytest.raises(InputError, match="written for a different"):
        read_plan(plan)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_plan_file_whatever_is_met_with_a_traceback(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    with pytest.raises(InputError):
        read_plan(path)


def test_half_a_character_in_the_text_is_refused():
    with pytest.raises(InputError, match="half of a surrogate pair at position 3"):
        load_kernel("// \ud800\n" + SAXPY, **{**LAUNCH, "grid": 4, "block": 64})


@pytest.mark.parametrize(
    "size", [1.5, None, "8", True, {8}, -1, 0, (8, 1.0), np.True_, np.float32(8)]
)
def test_a_size_that_is_no_positive_integer_is_refused(size):
    with pytest.raises(InputError):
        load_kernel(SAXPY, **{**LAUNCH, "grid": size})


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        (np.int64(4), np.uint32(64)),
        (np.array([4, 1, 1]), [np.int16(64)]),
        ([4], (64, np.int64(1))),
    ],
)
def test_sizes_of_a_launch_are_ints_whatever_they_were_given_as(grid, block):
    kernel = load_kernel(SAXPY, **{**LAUNCH, "grid": grid, "block": block})
    plain = load_kernel(SAXPY, **{**LAUNCH, "grid": 4, "block": 64})
    assert kernel == plain
    assert kernel.digest == plain.digest
