"""The documentation's snippets run, and README's commands are the ones that are checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(page: str) -> list[str]:
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(snippets("docs/own-bench.md"))))
def test_own_bench_snippet_runs(pytester: pytest.Pytester, number: int) -> None:
    pytester.makepyfile(test_snippet=snippets("docs/own-bench.md")[number])
    result = pytester.runpytest("--gpu-device", "emulated", "--powercap", "3")
    outcomes = result.parseoutcomes()
    assert not outcomes.keys() & {"failed", "error", "errors"}


def test_the_first_snippet_measures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_snippet=snippets("docs/own-bench.md")[0])
    pytester.runpytest("--gpu-device", "emulated", "--powercap", "3").assert_outcomes(passed=1)


def test_quick_start_has_two_commands_on_their_own() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Quick start")[2]
    commands = re.findall(r"```console\n(.*?)\n```", section.partition("\n## ")[0], re.DOTALL)
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv") for command in commands)
    assert commands[0].endswith("pytest bench -k case1 --powercap 3")
    assert commands[1].endswith("pytest tests")


def test_relative_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
