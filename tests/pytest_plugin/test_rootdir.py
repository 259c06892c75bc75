"""pytest looks for its ini file before it knows our options: their values must not decide which."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_project import BENCH, LINE, PARTS, SLOWER

from pytest_gpuenergy.pytest_plugin import _compat

INI = """
[tool.pytest.ini_options]
gpu_device = "emulated"
gpuenergy_preheat = "0"
gpuenergy_fail = "edp:5%"
powercap = "450W"
pythonpath = ["lib"]
testpaths = ["tests"]
"""
SHOWS = """
import helper

def test_shows(pytestconfig):
    print(f"root={pytestconfig.rootpath.name} ini={pytestconfig.inipath.parent.name}",
          f"caps={pytestconfig.getini('powercap')} -v={pytestconfig.option.verbose}",
          f"cache={pytestconfig.cache.mkdir('x').parents[2].name}")
"""
RIGHT = "*root=proj ini=proj caps=450W -v=0 cache=proj*"


@pytest.fixture(autouse=True)
def only_our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found late, as an entry point is, and without the plugins that are installed besides."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_gpuenergy.plugin")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project beside a folder ``art`` with a file and a folder; it is the working directory."""
    proj = pytester.mkdir("proj")
    for folder in ("lib", "tests"):
        (proj / folder).mkdir()
    (proj / "pyproject.toml").write_text(INI)
    (proj / "lib" / "helper.py").touch()
    (proj / "tests" / "test_shows.py").write_text(SHOWS)
    (pytester.mkdir("art") / "r.json").touch()
    monkeypatch.chdir(proj)
    return proj


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpuenergy-json", "../art/r.json"),
        ("--gpuenergy-csv", "../art"),
        ("--gpuenergy-html", "../art/r.json"),
        ("--gpuenergy-export", "../art"),
        ("tests", "--gpuenergy-json", "../art/r.json"),
        ("--gpuenergy-json", "../art/r.json", "tests"),
        ("--rootdir", ".", "--gpuenergy-json", "../art/r.json"),
        ("-c", "pyproject.toml", "--gpuenergy-json", "../art/r.json"),
        ("--gpuenergy-json", "../art/new.json"),
        ("--gpuenergy-json", "tests/r.json"),
        ("--gpuenergy-json=../art/r.json",),
        ("@../arguments",),
    ],
    ids=" ".join,
)
def test_a_value_after_a_blank_means_the_same_as_after_an_equals_sign(pytester, project, arguments):
    (project.parent / "arguments").write_text("--gpuenergy-json\n../art/r.json\n")
    result = pytester.runpytest_inprocess("-s", *arguments)
    result.stdout.fnmatch_lines(RIGHT)


@pytest.mark.usefixtures("project")
def test_the_environment_may_give_the_option(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-s --gpuenergy-json ../art/r.json")
    pytester.runpytest_inprocess().stdout.fnmatch_lines(RIGHT)


@pytest.mark.usefixtures("project")
def test_another_project_beside_the_value_is_not_taken_for_this_one(pytester):
    Path("../art/pytest.ini").write_text("[pytest]\npowercap = all\npythonpath = nowhere\n")
    result = pytester.runpytest_inprocess("-s", "--gpuenergy-json", "../art/r.json")
    result.stdout.fnmatch_lines(RIGHT)


def test_the_arguments_of_the_ini_file_are_used(pytester, project):
    ini = project / "pyproject.toml"
    ini.write_text(INI + 'addopts = ["-s", "-v", "-p", "pytest_gpuenergy.plugin"]\n')
    result = pytester.runpytest_inprocess("--gpuenergy-json", "../art/r.json")
    result.stdout.fnmatch_lines("*caps=450W -v=1 cache=proj*")


def test_an_ini_file_may_name_a_path_that_exists(pytester, project):
    with (project / "pyproject.toml").open("a") as file:
        file.write('addopts = ["-s", "--gpuenergy-json", "../art/r.json"]\n')
    pytester.runpytest_inprocess().stdout.fnmatch_lines(RIGHT)


@pytest.mark.parametrize("addopts", ["-p no:cacheprovider", "-o powercap=325W", "-p absent"])
def test_a_run_that_cannot_be_mended_is_refused(pytester, project, addopts):
    with (project / "pyproject.toml").open("a") as file:
        file.write(f'addopts = "{addopts}"\n')
    result = pytester.runpytest_inprocess("--gpuenergy-json", "../art/r.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        "ERROR: pytest took ../art/r.json for a path of tests, and so used no ini file instead of "
        "*/proj/pyproject.toml: write --gpuenergy-json=../art/r.json"
    )


@pytest.mark.usefixtures("project")
def test_arguments_of_another_project_refuse_the_run(pytester):
    Path("../art/pytest.ini").write_text("[pytest]\naddopts = -q\n")
    result = pytester.runpytest_inprocess("--gpuenergy-compare", "../art/r.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*used */art/pytest.ini instead of */proj/pyproject.toml: write *")


def test_an_option_of_the_root_conftest_refuses_the_run(pytester, project):
    products = "pytest_gpuenergy.pytest_plugin.benches.products"
    (project / "conftest.py").write_text(f"pytest_plugins = {products!r}")
    (project.parent / "pytest.ini").touch()
    arguments = ("--collect-only", "tests", "--records")
    result = pytester.runpytest_inprocess(*arguments, "../art")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: pytest took ../art for a path of tests*--records=../art")
    assert pytester.runpytest_inprocess(*arguments[:-1], "--records=../art").ret == 0


def test_another_plugins_option_is_left_to_it(pytester, project):
    """Its values mislead pytest as before, whatever ours are."""
    (project / "other.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--other')\n"
        "def pytest_report_header(config): return f'ini={config.inipath}'\n"
    )
    pytester.syspathinsert(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_PLUGINS", "pytest_gpuenergy.plugin,other")
        result = pytester.runpytest_inprocess(
            "--collect-only", "--other", "../art/r.json", "--gpu-device", "emulated"
        )
    result.stdout.fnmatch_lines("ini=None")


@pytest.mark.slow
@pytest.mark.usefixtures("machine_apart")
def test_a_baseline_outside_the_project_is_judged_by_its_limits(pytester, project):
    (project / "tests" / "parts.py").write_text(PARTS)
    (project / "tests" / "test_scale.py").write_text(BENCH)
    run = pytester.runpytest_inprocess
    run("tests/test_scale.py", "--gpuenergy-json", "../art/base.json").assert_outcomes(passed=1)
    (project / "tests" / "parts.py").write_text(PARTS.replace(LINE, SLOWER))
    result = pytester.runpytest_subprocess("--gpuenergy-compare", "../art/base.json")
    result.assert_outcomes(failed=1, passed=1)
    assert len([*project.glob(".gpuenergy/runs/*")]) == 2


def test_what_is_mended_is_there(pytestconfig):
    """In this version of pytest: without it, a run is refused instead."""
    assert [name for name in _compat.MENDED if not hasattr(pytestconfig, name)] == []
