"""The bench of improved kernels: which items there are, and a run of some."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_folder import ROOT, bench_folder, ids as ids_of
from kernel_specs import SCALE, SOURCE, launch_with, spec_with, write
from msgspec import convert
from search_folders import write_search

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report import load_report
from pytest_gpuenergy.search import KernelSpec, read_control

NAMED = "bench/test_search.py"
EMULATED = ("--gpu-device", "emulated:h200", "--powercap", "5")
TRITON = """
import triton

@triton.jit
def scale(x, y, by, n, ITEMS):
    pass
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the bench and two specs: ``scale``, and ``scale_triton``."""
    bench_folder(pytester, NAMED)
    specs = pytester.path / "bench/search/kernels"
    specs.mkdir(parents=True)
    write(specs)
    launch = {"grid": ["ceil_div(N, ITEMS)"], "constants": {"ITEMS": 256}}
    fields = {"name": "scale_triton", "language": "triton", "source": TRITON, "launch": launch}
    write(specs, spec_with(**fields))
    return pytester


@pytest.fixture
def searched(folder: pytest.Pytester) -> Path:
    """Results of a search of ``scale`` that has kept a variant."""
    keep(folder.path / "out", launch=launch_with(block=[64], constants={"ITEMS": 2}))
    return folder.path / "out"


def keep(out: Path, **fields: Any) -> None:
    """Make a variant of ``scale`` the best of a search."""
    state = {name: SCALE[name] for name in ("language", "source", "launch")} | fields
    place = out / "kernels/_scale/best"
    place.mkdir(parents=True, exist_ok=True)
    common = {"spec": "../spec.json", "objective": "edp", "seed": 0, "powercap": "current"}
    control = {"schema_version": 1, "state": state, "gpus": "emulated:h200", **common}
    (place / "control.json").write_text(json.dumps(control))


def searched_and_measured(page: Path) -> set[str]:
    """The states of a search that a page shows with measurements of them."""
    data = json.loads(page.read_text().partition('id="report-data">')[2].partition("</script>")[0])
    (search,) = data["searches"]
    states = {one["id"] for one in search["states"]}
    return states & set(data["rows"]["columns"]["variant"]["words"])


def ids(folder: pytest.Pytester, *arguments: str) -> list[str]:
    return ids_of(folder, *EMULATED, *arguments)


def test_without_results_there_are_the_baselines(folder):
    assert ids(folder, NAMED) == ["scale-baseline-700W", "scale_triton-baseline-700W"]


def test_all_shipped_specs_have_an_item(folder):
    specs = folder.path / "bench/search/kernels"
    shutil.rmtree(specs)
    shutil.copytree(ROOT / "bench/search/kernels", specs)
    names = sorted(path.stem for path in specs.glob("*.json"))
    assert ids(folder, NAMED) == [f"{name}-baseline-700W" for name in names]


def test_the_best_variant_of_a_search_is_an_item_too(folder, searched):
    found = ids(folder, NAMED, "--search-out", str(searched))
    assert found == ["scale-baseline-700W", "scale-best-700W", "scale_triton-baseline-700W"]


def test_nobody_runs_them_who_does_not_name_them(folder, searched):
    assert ids(folder, "bench") == []
    assert len(ids(folder, "bench", "--search-out", str(searched))) == 3


def test_a_baseline_that_remained_the_best_is_one_item(folder, searched):
    keep(searched)
    assert len(ids(folder, NAMED, "--search-out", str(searched))) == 2


@pytest.mark.slow
def test_both_are_measured_as_one_workload(folder, searched):
    spec = convert(SCALE, KernelSpec)
    best = read_control(searched / "kernels/_scale/best/control.json").state
    write_search(searched, spec.baseline.id, best.id)
    written = ("--gpuenergy-json", "report.json", "--gpuenergy-html", "page.html")
    result = folder.runpytest_inprocess(
        NAMED, "--search-out", str(searched), *EMULATED, *written, "-rs"
    )
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*the emulated one runs CUDA text only*"])
    found = {
        (one.workload.name, one.kernel.label): one
        for one in load_report(folder.path / "report.json").measurements
    }
    assert found.keys() == {("scale-N4000", "baseline"), ("scale-N4000", "best")}
    before, after = found.values()
    assert before.energy_mj is not None
    assert after.energy_mj is not None
    assert after.kernel.digest != before.kernel.digest
    assert searched_and_measured(folder.path / "page.html") == {spec.baseline.id, best.id}
    (run,) = (folder.path / ".gpuenergy/runs").iterdir()
    assert main(["report", str(run), str(searched), "--html", "later.html"]) == 0
    assert searched_and_measured(folder.path / "later.html") == {spec.baseline.id, best.id}
    assert main(["report", str(run), str(searched), "--md", "-"]) == 2


@pytest.mark.slow
def test_a_gate_compares_them_with_an_earlier_run(folder):
    words = (NAMED, *EMULATED, "-k", "scale-baseline")
    folder.runpytest_inprocess(*words, "--gpuenergy-json", "before.json").assert_outcomes(passed=1)
    slower = spec_with(launch=launch_with(constants={"ITEMS": 1024}))
    write(folder.path / "bench/search/kernels", slower)
    gate = ("--gpuenergy-compare", "before.json", "--gpuenergy-fail", "edp:5%")
    folder.runpytest_inprocess(*words, *gate).assert_outcomes(failed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"source": SOURCE.replace("by * x", "by + x")}, "*elements of y*are wrong*"),
        ({"launch": launch_with(grid=["N - 4000"])}, "*must be three positive integers*"),
    ],
)
def test_a_variant_that_is_wrong_fails(folder, searched, fields, words):
    keep(searched, **fields)
    result = folder.runpytest_inprocess(NAMED, "--search-out", "out", *EMULATED, "-k", "scale-")
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == 1
    result.stdout.fnmatch_lines([words])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "--search-out out has no results of a search: gpuenergy optimize"),
        ("{}", "The control file * cannot be used, because its schema_version is None"),
    ],
)
def test_results_that_cannot_be_used_are_told_in_one_sentence(folder, content, sentence):
    if content is not None:
        (place := folder.path / "out/kernels/_scale/best").mkdir(parents=True)
        (place / "control.json").write_text(content)
    result = folder.runpytest_inprocess(NAMED, *EMULATED, "--search-out", "out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{sentence}*"])


def test_a_variant_in_another_language_is_told(folder, searched):
    keep(searched, language="triton", source=TRITON)
    result = folder.runpytest_inprocess(NAMED, *EMULATED, "--search-out", "out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: * is of a kernel in triton: name results of this spec."])
