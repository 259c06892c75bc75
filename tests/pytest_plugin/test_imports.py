"""Nothing heavy is imported before an item needs it, and our options conflict with no other."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from small_project import BENCH, QUICK

DEVICE = "pytest_gpuenergy.emulator.emulated_device"
HEAVY = "{'tvm', 'tvm_ffi', 'cupy', 'torch', 'triton', 'matplotlib'}"


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


PLAIN = "def test_plain():\n    pass\n"
ENTRY = {
    "pytest_gpuenergy",
    "pytest_gpuenergy.plugin",
    "pytest_gpuenergy.pytest_plugin",
    "pytest_gpuenergy.pytest_plugin._compat",
    "pytest_gpuenergy.pytest_plugin.declared_options",
    "pytest_gpuenergy.pytest_plugin.distribute",
    "pytest_gpuenergy.pytest_plugin.distribute.link",
}


@pytest.fixture
def foreign(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with one test that does not use the installed plugin."""
    pytester.makepyfile(PLAIN)
    monkeypatch.setenv("PYTEST_ADDOPTS", QUICK)
    return pytester


@pytest.mark.slow
def test_a_foreign_project_loads_the_entry_and_no_package_of_ours(foreign):
    packages = "{'numpy', 'msgspec', 'pynvml', 'rich', 'vl_convert', 'pyarrow'}"
    found = _python(
        f"import sys, pytest; code = pytest.main([{str(foreign.path)!r}, '-p', 'no:benchmark']);"
        "ours = {m for m in sys.modules if m.startswith('pytest_gpuenergy')};"
        f"print(int(code), *sorted(ours | ({packages} | {HEAVY}) & set(sys.modules)))"
    )
    assert found.split() == ["0", *sorted(ENTRY)]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-v",), ("-n", "1")])
def test_a_foreign_project_sees_no_line_of_ours(foreign, arguments):
    result = foreign.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=1)
    # Apart from pytest's own line of installed plugins.
    ours = [x for x in result.outlines if "gpuenergy" in x and not x.startswith("plugins:")]
    assert not ours
    assert not (foreign.path / ".gpuenergy").exists()


@pytest.mark.parametrize("own", [None, 123])
def test_garbage_is_looked_for_as_before_once_conftest_files_are_imported(pytester, own):
    before = gc.get_threshold()
    chosen = (own, *before[1:]) if own else before
    pytester.makeconftest(
        f"import gc\nwithin = gc.get_threshold()\ngc.set_threshold(*{chosen})\n"
        if own
        else "import gc\nwithin = gc.get_threshold()\n"
    )
    pytester.makepyfile(
        "import conftest, gc\ndef test_thresholds():\n"
        f"    assert conftest.within[0] > {before[0]}\n    assert gc.get_threshold() == {chosen}\n"
    )
    try:
        pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    finally:
        gc.set_threshold(*before)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "opened"), [(BENCH, True), (PLAIN, False)])
def test_collecting_imports_nothing_heavy_and_opens_a_device_only_for_our_items(
    project, text, opened
):
    project.module(text)
    found = _python(
        f"import sys, pytest; code = pytest.main(['--collect-only', {str(project.path)!r}]);"
        f"print(int(code), sorted(({HEAVY} | {{{DEVICE!r}}}) & set(sys.modules)))"
    )
    assert found == f"0 {[DEVICE] if opened else []}"


@pytest.mark.parametrize("option", ["--kernels", "--quick", "--records", "--timeout"])
def test_options_of_another_project_do_not_clash(project, option):
    project.pytester.makeconftest(
        f"""
        def pytest_addoption(parser):
            parser.addoption("{option}", action="store_true")
        """
    )
    project.module(
        f"""
        def test_option(request):
            assert request.config.getoption("{option}")
        """
    )
    project.run(option).assert_outcomes(passed=1)


def test_fixtures_of_our_names_can_be_overridden(project):
    project.pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def gpu():
            return "mine"
        """
    )
    project.module("def test_own(gpu):\n    assert gpu == 'mine'\n")
    result = project.run()
    result.assert_outcomes(passed=1)
    assert not project.runs


OWN_FIXTURES = """
import pytest

@pytest.fixture
def gpu():
    return "mine"

@pytest.fixture
def powercap():
    return "mine"
"""


def test_a_powercap_of_the_projects_own_is_not_parametrized(project):
    project.pytester.makeconftest(OWN_FIXTURES)
    project.module("def test_own(powercap):\n    assert powercap == 'mine'\n")
    project.run("--powercap", "all").assert_outcomes(passed=1)
    assert not project.runs


def test_beside_fixtures_of_our_names_a_kernel_is_measured(project):
    project.pytester.makeconftest(OWN_FIXTURES)
    project.module(
        """
        from parts import LAUNCH, SCALE, SOURCE

        def test_scale(gpu, powercap, load_kernel, energy_benchmark):
            assert (gpu, powercap) == ("mine", "mine")
            energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
        """
    )
    project.run().assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    assert measurement.cap == "current"


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("arguments", [(), pytest.param(("-n", "1"), marks=pytest.mark.thorough)])
def test_items_are_measured_where_no_option_is_set(project, arguments):
    (project.path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    result = project.run_as_users_do(*arguments)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*gpuenergy*", "*EMULATED*", "*report: *"])
    assert len(project.report().measurements) == 5
