"""Contenders in convolutions: which items there are, and a run of some."""

from __future__ import annotations

import shutil
from typing import Any, cast

import pytest
from bench_folder import ROOT, bench_folder, ids as ids_of

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.report import load_report
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuners import CONTENDERS, ContenderSetup
from pytest_gpuenergy.workloads import CASES, Conv2d

NAMED = "bench/test_conv2d.py"
SMALL = "tiny=1,8,8,4,4,3,3,1,1"
EVERYONE = ("template", "tvm", "cudnn")


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    return bench_folder(pytester, NAMED)


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    return ids_of(folder, "--powercap", "1", *arguments)


def test_all_contend_in_the_seven_cases_by_default(folder):
    found = ids(folder, NAMED, "--contenders")
    assert found == [f"{case}-{name}-200W" for case in CASES for name in EVERYONE]


def test_modes_layouts_and_shapes_are_workloads_of_contenders(folder):
    variants = ("--mode", "tf32,float16", "--layout", "nhwc")
    found = ids(folder, NAMED, "--contenders", "cudnn", "--case", "case2", *variants)
    assert found == ["case2_tf32_nhwc-cudnn-200W", "case2_float16_nhwc-cudnn-200W"]
    shape = "1,8,8,4,4,3,3,1,1 mode=bfloat16 bias=1"
    found = ids(folder, NAMED, "--contenders=cudnn,template", "--shape", shape)
    name = "conv_1x8x8_4x4_3x3_s1_p1_bfloat16_bias"
    assert found == [f"{name}-cudnn-200W", f"{name}-template-200W"]


def test_networks_are_workloads_of_contenders(folder):
    found = ids(folder, NAMED, "--contenders", "cudnn", "--network", "yolo", "--quick")
    assert found == ["yolo00-cudnn-200W", "yolo19-cudnn-200W"]


@pytest.mark.parametrize("name", ["case2-cudnn-200W", "resnet05_tf32_nhwc-template-200W"])
def test_an_id_in_a_report_can_be_run_without_the_option(folder, name):
    assert ids(folder, f"{NAMED}::test_conv2d_contenders[{name}]") == [name]
    assert ids(folder, NAMED, "-k", f"test_conv2d_contenders[{name}]") == [name]


@pytest.mark.slow
def test_ids_of_bundled_kernels_and_contenders_can_be_run_together(folder):
    names = [
        f"{NAMED}::test_conv2d[case1-k01-200W]",
        f"{NAMED}::test_conv2d_contenders[case1-tvm-200W]",
    ]
    shutil.copytree(ROOT / "bench" / "records", folder.path / "bench" / "records")
    assert ids(folder, *names) == ["case1-k01-200W", "case1-tvm-200W"]


@pytest.mark.parametrize("arguments", [[], ["-k", "case1"], ["bench", "-k", "cudnn or template"]])
def test_nobody_contends_who_is_not_asked(folder, arguments):
    (folder.path / "bench" / "records").mkdir()
    result = folder.runpytest_inprocess("--collect-only", "-q", "--powercap", "1", *arguments)
    assert "test_conv2d_contenders" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--contenders", "cublas"], "--contenders 'cublas' names no contender in convolutions: *"),
        (["--contenders", "tvm,mkl"], "--contenders 'mkl' names no contender: choose from temp*"),
        (["--contenders", "--case", "case8"], "*There is no workload 'case8'*"),
        (["--contenders", "--shape", "gemm:MNK=8"], "No convolution is named: matrix products*"),
        (["--contenders", "--records", "none"], "*none: there is no such folder*"),
    ],
)
def test_what_cannot_be_compared_is_told(folder, arguments, told):
    result = folder.runpytest_inprocess(NAMED, "--powercap", "1", *arguments)
    result.stderr.fnmatch_lines([f"ERROR: {told}"])
    assert "Traceback" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_contender_of_products_only_takes_no_part_and_is_told(folder):
    arguments = ["--contenders", "triton,cudnn", "--case", "case2", "--powercap", "1"]
    result = folder.runpytest_inprocess(NAMED, "--collect-only", *arguments)
    told = "bench: the contender triton takes no part, since it computes matrix products only"
    assert result.stdout.str().count("takes no part") == 1
    result.stdout.fnmatch_lines([told])


def test_products_have_the_contenders_that_are_named(pytester):
    folder = bench_folder(pytester, "bench/test_gemm.py")
    found = ids(folder, "bench/test_gemm.py", "--gemm", "MNK=8 layout=nn", "--contenders", "cublas")
    assert found == ["gemm_8x8x8_nn-cublas-200W"]


def test_those_without_a_kernel_are_told(folder):
    shapes = ["--shape", SMALL, "--shape", "other=1,8,8,4,4,3,3,1,1 layout=nhwc"]
    arguments = ["--contenders", "tvm,cudnn", *shapes, "--powercap", "1"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(
        [
            "*= contenders left out =*",
            "tvm in 1 of 2 convolutions: There are no records for tiny in *make them with*",
            "tvm in 1 of 2 convolutions: other cannot be tuned with TVM*",
            "cudnn in all 2 convolutions: cudnn.convolution needs a real GPU: the emulated one*",
        ]
    )


@pytest.mark.slow
def test_contenders_stand_side_by_side(folder, monkeypatch):
    template = CONTENDERS["template"]

    def fake(conv: Conv2d, setup: ContenderSetup) -> AnyKernel:
        if conv.name == "other":
            raise UnavailableError("It has none.")
        return template(conv, setup)

    monkeypatch.setitem(cast("dict[str, Any]", CONTENDERS), "cudnn", fake)
    arguments = [
        "--contenders",
        "template,cudnn",
        "--shape",
        SMALL,
        "--shape",
        "other=1,9,9,2,2,1,1,1,0",
    ]
    outputs = ["--gpuenergy-json", "r.json", "--powercap", "1"]
    result = folder.runpytest_inprocess(NAMED, *arguments, *outputs)
    result.assert_outcomes(passed=3, skipped=1)
    measured = load_report(folder.path / "r.json").measurements
    assert {(one.kernel.label, one.kernel.origin) for one in measured} == {
        ("template", "template"),
        ("cudnn", "template"),
    }
    result.stdout.fnmatch_lines(
        [
            "*= contenders side by side =*",
            "conv2d in mode float32, layout nchw, at 200W (emulated)",
            "  workload  contender  time * energy * time / cudnn * energy / cudnn",
            "  tiny      template * 1.00 ±* % * 1.00 ±* %",
            "  tiny      cudnn * 1 * 1",
            "  other     template * µs * mJ*",
        ]
    )
