"""`gpuenergy ab` on a small repository whose kernel differs between revisions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from command_outcomes import ended
from report_fixtures import a_run
from small_project import INI, LINE, SLOWER

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import run_child

pytestmark = pytest.mark.slow

BENCH = '''
import pytest
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = factor * x[i];
}
"""
SCALE = Contract(
    "scale",
    (Tensor("x", (1024,), "float32", "input"), Tensor("y", (1024,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    values=(Scalar("factor", "float32", 2.0),),
)

@pytest.mark.parametrize("block", [64, 128], ids=["b064", "b128"])
def test_scale(block, powercap, load_kernel, energy_benchmark):
    kernel = load_kernel(
        SOURCE, entry="scale", grid=1024 // block, block=block, arguments=("x", "y", "factor")
    )
    energy_benchmark(kernel, workload=SCALE, label=f"b{block:03d}")
'''
WRONG = "  y[i] = 3 * x[i];"


@pytest.fixture
def pytest_here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the pytest of each revision in this process, which has imported what it needs."""

    def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        arguments = command[command.index("-q") :]
        with monkeypatch.context() as patch, redirect_stdout(StringIO()):
            patch.chdir(folder)
            done = pytester.runpytest_inprocess(*arguments)
        return subprocess.CompletedProcess(command, done.ret, done.stdout.str())

    monkeypatch.setattr("pytest_gpuenergy.ab.revisions.run_child", run)


@pytest.fixture(autouse=True)
def repository(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytest_here: None,  # noqa: ARG001 -- it patches how revisions run
) -> Path:
    """A repository with a bench in a folder of it, which is where the command is called."""
    bench = tmp_path / "repository" / "kernels"
    bench.mkdir(parents=True)
    monkeypatch.chdir(bench)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    git("init", "-q", "-b", "main", "..")
    (bench / "pyproject.toml").write_text(INI)
    (bench / "test_scale.py").write_text(BENCH)
    commit("One")
    return bench


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def commit(subject: str) -> None:
    git("add", "-A")
    git("commit", "-qm", subject)


def change(repository: Path, old: str, new: str) -> None:
    path = repository / "test_scale.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    commit("Another")


def ab(*arguments: str) -> int:
    return main(["ab", "HEAD~1", "HEAD", "--powercap", "1", *arguments])


def test_a_slower_revision_is_found(repository, warm_python, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(warm_python))
    monkeypatch.setattr("pytest_gpuenergy.ab.revisions.run_child", run_child)
    change(repository, LINE, SLOWER)
    clock = ("--smclock", "1500MHz")
    assert ab("-k", "b128", *clock, "--fail", "edp:0.5%", "--json", "-") == 1
    document = json.loads(capsys.readouterr().out)
    (found,) = document["judgements"]
    assert (found["kernel"], found["cap"], found["verdict"]) == ("b128", "200W-1500MHz", "WORSE")
    assert found["interval"][1] - found["interval"][0] < 0.02
    assert document["new"]["git_revision"] == git("rev-parse", "HEAD").strip()
    # Nothing is left behind.
    assert git("worktree", "list").count("\n") == 1
    assert git("status", "--porcelain") == ""


def test_an_id_that_a_report_shows_chooses_its_kernel(repository, capsys):
    run = a_run()
    known = Measurement(
        "test_scale.py::test_scale[b128-200W]",
        WorkloadInfo("scale", {}, 1, 1),
        KernelInfo("b128", "0" * 64, "source"),
        "correct",
        "200W",
    )
    RunFolder.create(repository, run).append(known)
    change(repository, LINE, SLOWER)
    assert ab("-k", "scale-b128-200W", "--rounds", "2", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert {found["kernel"] for found in document["judgements"]} == {"b128"}


@pytest.mark.thorough
def test_a_faster_revision_is_better(repository):
    change(repository, LINE, SLOWER)
    words = ["ab", "HEAD", "HEAD~1", "--powercap", "1", "--fail", "edp:0.5%", "--rounds", "4"]
    assert "2 BETTER" in ended(0, *words).out


@pytest.mark.thorough
def test_only_kernels_that_differ_are_measured(repository, capsys):
    change(repository, "import pytest", "import pytest  # and more")
    assert ab() == 0
    captured = capsys.readouterr()
    assert captured.out.count("(the same kernel in both)") == 2
    assert "rounds" not in captured.err


@pytest.mark.parametrize(
    "strict",
    [pytest.param((), marks=pytest.mark.thorough), ("--strict",)],
    ids=["lenient", "strict"],
)
def test_a_push_that_changes_no_kernel_passes_and_says_so(repository, capsys, strict):
    (repository / "README.md").write_text("A page.")
    commit("A page")
    assert ab("--fail", "edp:1%", *strict, "--json", "ab.json", "--md", "ab.md") == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "unchanged, not measured: scale-b064-200W (the same kernel in both)",
        "unchanged, not measured: scale-b128-200W (the same kernel in both)",
        "2 unchanged: passed",
    ]
    document = json.loads((repository / "ab.json").read_text())
    assert document["passed"] is True
    assert document["judgements"] == []
    assert [one["kernel"] for one in document["unchanged"]] == ["b064", "b128"]
    page = (repository / "ab.md").read_text()
    assert page.startswith("# Passed: ")
    assert "\n2 unchanged: passed.\n" in page


def test_what_is_unchanged_stands_beside_the_verdicts(repository, capsys):
    change(repository, "1024 // block, block=block", "1024 // min(block, 64), block=min(block, 64)")
    assert ab("--rounds", "2") == 0
    assert ", 1 unchanged" in capsys.readouterr().out.splitlines()[-1]


def test_a_text_that_differs_in_nothing_that_matters_is_the_same(repository, capsys):
    change(repository, LINE, LINE + "  // twice")
    assert ab("-k", "b128", "--fail", "edp:2%", "--rounds", "3") == 0
    assert "1 SAME" in capsys.readouterr().out


def test_a_kernel_that_is_wrong_now_fails(repository, capsys):
    change(repository, LINE, WRONG)
    assert ab("-k", "b064", "--fail", "edp:5%") == 1
    assert "no longer measured: scale-b064-200W (" in capsys.readouterr().out


def test_items_of_one_revision_only_are_told(repository):
    change(repository, "[64, 128]", "[128, 256]")
    change(repository, '["b064", "b128"]', '["b128", "b256"]')
    out = ended(0, "ab", "HEAD~2", "HEAD", "--powercap", "1").out
    assert "missing from the baseline: scale-b256-200W" in out
    assert "missing from the new run: scale-b064-200W" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ab", "no-such", "HEAD"], "There is no revision 'no-such' in "),
        (["ab", "HEAD", "HEAD", "-k", "nothing"], "has an energy item among the selected tests"),
        (["ab", "HEAD", "HEAD", "bench"], "There is no bench at HEAD ("),
        (["ab", "HEAD", "HEAD", "/bench"], "/bench is the same file in both revisions"),
        (["ab", "HEAD", "HEAD", "test_scale.py::no"], "pytest rejects its arguments"),
        (["ab", "HEAD", "HEAD", "--rounds", "1"], "'1' is not a number from 2 to 1000"),
        (["ab", "HEAD", "HEAD", "--gpu-device", "tpu"], "--gpu-device 'tpu' is not understood"),
        (["ab", "HEAD", "HEAD", "--powercap", ""], "--powercap '' names no power cap"),
        (["ab", "HEAD", "HEAD", "--smclock", ""], "--smclock '' names no clock"),
        (["ab", "HEAD", "HEAD", "--fail", "edp"], "--fail 'edp' is not understood"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(arguments, words):
    assert words in ended(2, *arguments).err


PLAIN = "def test_b128_is_even():\n    assert 128 % 2 == 0\n"
CALLABLE = "def test_callable(energy_benchmark):\n    energy_benchmark(print)\n"


@pytest.mark.parametrize(
    "text",
    [pytest.param(PLAIN, marks=pytest.mark.thorough), f"{PLAIN}    assert 1 == 2\n"],
    ids=["pass", "fail"],
)
def test_tests_without_an_energy_item_are_refused(repository, text):
    (repository / "test_unit.py").write_text(text)
    commit("A unit test")
    (error,) = [
        line
        for line in ended(2, "ab", "HEAD", "HEAD", "test_unit.py", "-k", "b128").err.splitlines()
        if "error" in line
    ]
    assert "Neither HEAD (" in error
    assert error.endswith("as in gpuenergy ab main HEAD bench -k case1.")


@pytest.mark.parametrize(
    "newer",
    ["HEAD", pytest.param("HEAD~1", marks=pytest.mark.thorough)],
    ids=["head only", "base only"],
)
def test_a_bench_that_only_one_revision_has_is_refused(repository, newer):
    git("mv", "test_scale.py", "scale.py")
    (repository / "test_unit.py").write_text(PLAIN)
    commit("No bench")
    git("mv", "scale.py", "test_scale.py")
    commit("A bench")
    older = "HEAD~1" if newer == "HEAD" else "HEAD"
    said = ended(2, "ab", older, newer, "--powercap", "1", "--fail", "edp:1%").err
    head, base = (git("rev-parse", revision)[:12] for revision in ("HEAD", "HEAD~1"))
    assert f"HEAD ({head}) has energy items but HEAD~1 ({base}) has none" in said


def test_energy_items_that_cannot_be_exported_are_refused(repository):
    (repository / "test_scale.py").write_text(CALLABLE)
    commit("A callable")
    assert "None of the energy items at HEAD (" in ended(2, "ab", "HEAD", "HEAD").err


def test_energy_items_that_all_fail_before_their_kernels_are_shown(repository, capsys):
    change(
        repository,
        "    kernel = load_kernel(",
        "    assert block == 'odd'\n    kernel = load_kernel(",
    )
    assert ab() == 1
    said = capsys.readouterr().err
    assert "No kernel could be verified at HEAD (" in said
    assert "assert 64 == 'odd'" in said


def test_a_cap_that_could_be_set_for_no_item_is_an_error(repository):
    (repository / "pyproject.toml").write_text(
        f'{INI}\n[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [100, 200]'
    )
    commit("A table")
    said = ended(1, "ab", "HEAD", "HEAD", "--powercap", "1,2", "--fail", "edp:1%").err
    assert said.count("The power cap 100W could not be set for any item: ") == 1
    assert said.splitlines()[-1].startswith("gpuenergy: error: At HEAD (")


def test_a_cap_that_is_refused_when_it_is_set_is_an_error(repository, capsys, monkeypatch):
    change(repository, LINE, SLOWER)
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps({"power_limit": "no_permission"}))
    assert ab("-k", "b128") == 1
    said = capsys.readouterr().err.splitlines()
    assert (
        "scale-b128-200W: up to 16 rounds" in said[-2]
    )  # both revisions were verified without the cap
    assert said[-1].startswith(
        "gpuenergy: error: The power limit of NVIDIA H200 cannot be set to 200 W ("
    )


def test_a_bench_that_breaks_is_shown(repository, capsys):
    change(repository, "import pytest", "import no_such_module")
    assert ab() == 1
    assert "no_such_module" in capsys.readouterr().err
