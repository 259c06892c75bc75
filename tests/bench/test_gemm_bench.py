"""The bench of matrix products: which items there are, and a run of some."""

from __future__ import annotations

import shutil

import pytest
from bench_folder import INI, ROOT

from pytest_gpuenergy.report import load_report

NAMED = "bench/test_gemm.py"


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    (pytester.path / "bench").mkdir()
    for name in ("conftest.py", NAMED):
        shutil.copyfile(ROOT / name, pytester.path / name)
    (pytester.path / "pyproject.toml").write_text(INI)
    return pytester


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    result = folder.runpytest_inprocess("--collect-only", "-q", "--powercap", "1", *arguments)
    return [line.partition("[")[2].rstrip("]") for line in result.stdout.lines if "::" in line]


def test_both_layouts_run_unless_one_is_chosen(folder: pytest.Pytester) -> None:
    found = ids(folder, NAMED, "--gemm", "MNK=64; M=1 N=2 K=3 layout=nt")
    assert found == [
        "gemm_64x64x64_nn-template-200W",
        "gemm_64x64x64_nt-template-200W",
        "gemm_1x2x3_nt-template-200W",
    ]


def test_a_layout_and_a_contender_are_words_of_the_id(folder: pytest.Pytester) -> None:
    found = ids(folder, NAMED, "--gemm", "MNK=64", "-k", "nn and template")
    assert found == ["gemm_64x64x64_nn-template-200W"]


@pytest.mark.parametrize("arguments", [[NAMED], ["bench", "--network", "gemm"]])
def test_without_sizes_the_default_set_runs(folder: pytest.Pytester, arguments: list[str]) -> None:
    assert len(ids(folder, *arguments)) == 26


def test_quick_takes_the_ends_of_the_default_set(folder: pytest.Pytester) -> None:
    found = ids(folder, NAMED, "--quick")
    assert found == ["gemm_512x256x640_nn-template-200W", "gemm_8192x8192x8192_nt-template-200W"]


@pytest.mark.parametrize("arguments", [[], ["--network", "resnet"], ["-k", "gemm"]])
def test_nobody_runs_them_who_does_not_name_them(
    folder: pytest.Pytester, arguments: list[str]
) -> None:
    assert ids(folder, "bench", *arguments) == []


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ("MNK", "*which is not understood: give sizes such as 'M=1024 N=2048 K=3072'*"),
        ("M=0 N=1 K=1", "*gemm needs M to be an integer of at least 1, not 0*"),
        ("MNK=1e9", "*MNK=1e9 is no size*"),
        ("MNK=64 t=5", "*--gemm of a bench tunes nothing*"),
    ],
)
def test_bad_sizes_are_told_in_one_sentence(folder: pytest.Pytester, sizes: str, told: str) -> None:
    result = folder.runpytest_inprocess(NAMED, "--gemm", sizes)
    result.stdout.fnmatch_lines([told])
    assert "Traceback" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.slow
def test_products_are_verified_and_measured(folder: pytest.Pytester) -> None:
    sizes = "M=33 N=17 K=50; MNK=64 layout=nt lda=65"
    arguments = ["--gemm", sizes, "--powercap", "1", "--gpuenergy-json", "r.json"]
    folder.runpytest_inprocess(NAMED, *arguments).assert_outcomes(passed=3)
    measured = load_report(folder.path / "r.json").measurements
    assert [one.kernel.label for one in measured] == ["template"] * 3
    assert measured[-1].workload.parameters["lda"] == 65
    assert measured[-1].kernel.origin == "template"


@pytest.mark.slow
def test_a_mode_that_no_contender_has_is_skipped(folder: pytest.Pytester) -> None:
    arguments = ["--gemm", "MNK=64 layout=nn mode=float16", "--powercap", "1", "-rs"]
    result = folder.runpytest_inprocess(NAMED, *arguments)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*No template computes *in mode float16*"])
