"""What of the baseline has the command line left out, and what has vanished otherwise?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from points import MORE
from small_project import INI, LEAN

from pytest_gpuenergy.cli import main

if TYPE_CHECKING:
    from conftest import Project

pytestmark = pytest.mark.slow

STRICT = ("--gpuenergy-compare=base.json", "--gpuenergy-fail=edp:90%", "--gpuenergy-strict")
CAPS = 'powercap = "1,2"'


def kernels(project: Project, *names: str, file: str = "test_scale", after: str = "") -> None:
    """A test of kernels with these labels."""
    project.bench(
        marks=f'@pytest.mark.quick\n@pytest.mark.parametrize("name", {names})',
        arguments="name, powercap, ",
        more=", label=name",
        after=after,
        name=file,
    )


@pytest.fixture
def two_files(project: Project) -> Project:
    """A project of two files, with a baseline of three kernels at two caps."""
    ini(project, CAPS)
    kernels(project, "a", "b")
    kernels(project, "c", file="test_other")
    project.baseline(passed=6)
    return project


def ini(project: Project, *lines: str, addopts: str = "") -> None:
    """Write the ini file anew, with more lines and arguments."""
    text = "\n".join([INI.replace(LEAN, LEAN + addopts), 'markers = ["quick"]', *lines])
    (project.path / "pyproject.toml").write_text(text)


def fail_once(project: Project, name: str) -> None:
    """Have the items of a kernel fail in a run, so that ``--lf`` runs them again."""
    kernels(project, "a", "b", after=f"assert name != {name!r}")
    project.run()
    kernels(project, "a", "b")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "not quick or quick", "-k", "a"),
        ("--ignore", "test_other.py"),
        MORE(("--ignore-glob=*other*",), id="--ignore-glob"),
        ("-o", "powercap=1"),
        ("-o", "testpaths=test_scale.py", "-o", "norecursedirs=x"),
        MORE(("inner/../test_scale.py",), id="a path with dots"),
        ("@arguments",),
        ("--ff", "--nf"),
    ],
    ids=" ".join,
)
def test_what_the_command_line_leaves_out_is_not_missed(two_files, arguments):
    (two_files.path / "arguments").write_text("-k\nb\n")
    (two_files.path / "inner").mkdir()
    assert two_files.run(*arguments, *STRICT).ret == pytest.ExitCode.OK


def test_what_passed_last_time_is_not_missed_with_lf(two_files):
    fail_once(two_files, "a")
    result = two_files.run("--lf", *STRICT)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    (two_files.path / "test_other.py").unlink()
    fail_once(two_files, "a")
    result = two_files.run("--lf", *STRICT)
    result.stdout.fnmatch_lines(["*gate: 2 of 4 missing from this run (scale-c-200W, *"])


@pytest.mark.parametrize(
    ("addopts", "lines", "arguments", "missing"),
    [
        (', "test_scale.py"', (CAPS,), (), "2 of 6"),
        (', "--ignore=test_other.py"', (CAPS,), (), "2 of 6"),
        MORE(', "--ignore-glob=*other*"', (CAPS,), (), "2 of 6"),
        MORE(', "-k", "b"', (CAPS,), ("--deselect", "test_other.py"), "2 of 4"),
        (
            ', "--deselect=test_other.py"',
            (CAPS,),
            ("--deselect", "test_scale.py::test_scale[a-"),
            "2 of 4",
        ),
        (', "--powercap=1"', (CAPS,), (), "3 of 6"),
        MORE("", ('powercap = "1"',), ("-k", "a-"), "1 of 2"),
        ("", ('powercap = "1"',), ("test_scale.py::test_scale",), "2 of 4"),
        ("", (CAPS, 'python_files = "test_scale.py"'), (), "2 of 6"),
    ],
)
def test_what_the_ini_file_leaves_out_is_missed(two_files, addopts, lines, arguments, missing):
    ini(two_files, *lines, addopts=addopts)
    result = two_files.run(*arguments, *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*error: gate: {missing} missing from this run *"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "quick"),
        MORE(("-m", "quick"), id="-m quick"),
        MORE(("./test_scale.py",), id="a path"),
        ("test_scale.py::test_scale",),
        ("--lf",),
        ("-n1", "-p", "xdist", "-k", "quick"),
    ],
    ids=" ".join,
)
def test_a_case_that_would_have_been_selected_is_missed(two_files, arguments):
    kernels(two_files, "a")
    result = two_files.run(*arguments, *STRICT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 2 of * missing from this run (scale-b-*"])


def test_a_gate_of_the_ini_file_misses_all_when_no_energy_item_is_left(two_files):
    ini(two_files, CAPS, 'gpuenergy_compare = "base.json"', "gpuenergy_strict = true")
    for file in ("test_scale.py", "test_other.py"):
        (two_files.path / file).unlink()
    two_files.module("def test_plain(): pass", "test_plain")
    result = two_files.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*error: gate: 6 of 6 missing from this run *"])
    assert two_files.run("test_plain.py").ret == pytest.ExitCode.OK
    assert two_files.run("-k", "plain").ret == pytest.ExitCode.OK


def test_compare_names_what_narrowed_the_run(two_files, capsys, monkeypatch):
    two_files.run("-k", "a-", "--ignore=test_other.py", "--gpuenergy-json", "part.json", ".")
    monkeypatch.chdir(two_files.path)
    capsys.readouterr()
    assert main(["compare", "base.json", "part.json", "--strict"]) == 1
    told = capsys.readouterr().out
    assert "the new run was narrowed by -k a- --ignore=test_other.py .: pytest --gpuenergy-" in told
    assert told.endswith(": FAILED; 4 of 6 missing\n")


def test_a_run_in_a_folder_misses_what_is_in_it(two_files):
    inner = two_files.path / "inner"
    inner.mkdir()
    (two_files.path / "test_other.py").rename(inner / "test_other.py")
    two_files.run("-p", "no:cacheprovider", "--gpuenergy-json", "base.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        patch.syspath_prepend(two_files.path)
        compare = "--gpuenergy-compare=../base.json"
        assert two_files.run(compare, *STRICT[1:]).ret == pytest.ExitCode.OK
