"""Nothing heavy is imported before an item needs it, and nobody else's options are in the way."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Project

HEAVY = "{'tvm', 'tvm_ffi', 'cupy', 'torch', 'triton', 'matplotlib'}"


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    found = _python(
        f"import sys, pytest_gpuenergy.plugin; print(sorted({HEAVY} & set(sys.modules)))"
    )
    assert found == "[]"


def test_collecting_imports_nothing_heavy(project: Project) -> None:
    found = _python(
        f"import sys, pytest; code = pytest.main(['--collect-only', {str(project.path)!r}]);"
        f"print(int(code), sorted({HEAVY} & set(sys.modules)))"
    )
    assert found == "0 []"


def test_a_run_without_our_items_opens_no_device(project: Project) -> None:
    project.module("def test_plain():\n    pass\n")
    found = _python(
        f"import sys, pytest; code = pytest.main([{str(project.path)!r}]);"
        "print(int(code), [name for name in sys.modules if name.endswith('.emulated.device')])"
    )
    assert found == "0 []"


@pytest.mark.parametrize("option", ["--kernels", "--quick", "--records", "--timeout"])
def test_options_of_another_project_do_not_clash(project: Project, option: str) -> None:
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


def test_fixtures_of_our_names_can_be_overridden(project: Project) -> None:
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
