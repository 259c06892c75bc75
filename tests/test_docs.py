"""The documentation's snippets run, and README's commands are the ones that are checked."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuenergy.tuning import dump_records, file_name

ROOT = Path(__file__).parent.parent
FAULTS = "docs/reference/faults.md"


def snippets(page: str, language: str = "python") -> list[str]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return fence.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("where", ["docs/index.md", "mkdocs.yml"])
def test_every_page_is_listed(where):
    """The notes and the API have lists of their own, see below."""
    docs = ROOT / "docs"
    sections = ("tutorial", "how-to", "reference", "explanation")
    pages = {
        f"{section}/{page.name}" for section in sections for page in (docs / section).glob("*.md")
    }
    text = (ROOT / where).read_text(encoding="utf-8")
    listed = set(re.findall(r"[(\s]([a-z-]+/[\w-]+\.md)", text))
    assert pages - listed == set()


@pytest.mark.parametrize("folder", ["notes", "reference/api"])
def test_every_note_and_page_of_the_api_is_listed(folder):
    pages = {page.name for page in (ROOT / "docs" / folder).glob("*.md")} - {"index.md"}
    index = (ROOT / "docs" / folder / "index.md").read_text(encoding="utf-8")
    assert pages - set(re.findall(r"\(([\w-]+\.md)", index)) == set()
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in sorted(pages) if f"{folder}/{page}" not in nav] == []


@pytest.mark.parametrize(
    ("page", "claims"),
    [
        ("README.md", ("limits have been set on the emulated GPU only", "No clock of a real card")),
        ("docs/how-to/power-caps.md", ("on real cards, limits have only been read",)),
        ("docs/how-to/locked-clocks.md", ("no clock of a real card has been locked yet",)),
        (
            "docs/how-to/fleet.md",
            ("Slurm and several hosts have been tried with emulated GPUs only",),
        ),
        ("docs/how-to/ci.md", ("Neither workflow has run on GitHub yet",)),
        ("docs/how-to/ci-own-project.md", ("It has not run on GitHub or on a GPU yet",)),
    ],
)
def test_a_promise_says_what_it_was_tried_with(page, claims):
    """Before the first command or section of the page, not only at its end."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    top = text if page == "README.md" else text.partition(" ## ")[0]
    assert [claim for claim in claims if claim not in top] == []


@pytest.mark.parametrize("number", range(len(snippets("docs/how-to/own-bench.md"))))
def test_own_bench_snippet_runs(pytester, number):
    pytester.makepyfile(test_snippet=snippets("docs/how-to/own-bench.md")[number])
    result = pytester.runpytest("--gpu-device", "emulated", "--powercap", "3")
    outcomes = result.parseoutcomes()
    assert not outcomes.keys() & {"failed", "error", "errors"}
    assert number or outcomes == {"passed": 1}  # the first measures


def test_the_workloads_page_says_what_is_so(pytester):
    pytester.makepyprojecttoml(snippets("docs/how-to/workloads.md", "toml")[0])
    pytester.makepyfile(test_snippet=snippets("docs/how-to/workloads.md")[0])
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.tvm
def test_a_bench_of_tuned_records_runs(pytester, record_file):
    pytester.makepyprojecttoml(snippets("docs/how-to/workloads.md", "toml")[0])
    pytester.makepyfile(test_tuned=snippets("docs/how-to/workloads.md")[1])
    records = replace(record_file, records=record_file.records[:2])
    dump_records(records, pytester.path / "tuned" / file_name(records.workload))
    result = pytester.runpytest("--gpu-device", "emulated", "--powercap", "3", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_tuned.py::test_tuned[[]block4-k01-450W] PASSED *"])


def test_the_budget_on_the_page_about_gates_is_understood(pytester):
    pytester.makepyfile(test_snippet=snippets("docs/how-to/gate.md")[0])
    result = pytester.runpytest("--gpu-device", "emulated", "--powercap", "3")
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_example_of_the_package_description_measures(pytester):
    pytester.makepyfile(test_snippet=snippets("PACKAGE.md")[0])
    pytester.runpytest("--gpu-device", "emulated", "--powercap", "3").assert_outcomes(passed=1)


def test_the_package_description_has_links_that_an_index_can_show():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / project["readme"]).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_fault_on_the_page_about_the_emulated_gpu_is_injected(pytester):
    script = pytester.makepyfile(snippet=snippets("docs/reference/emulated-gpu.md")[-1])
    assert pytester.runpython(script).ret == 0


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/gate.md",
        "docs/how-to/compare-revisions.md",
        "docs/reference/command-line.md",
        "pytest_gpuenergy/commands/ab.py",
    ],
)
def test_documented_comparisons_of_revisions_name_the_bench(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"gpuenergy ab (?:main|v1\.2|\"\$BASE\") \S+(.*)", text)
    assert found
    assert all(words.startswith(" bench") for words in found)


def test_quick_start_has_two_commands_on_their_own():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Quick start")[2]
    commands = re.findall(r"```console\n(.*?)\n```", section.partition("\n## ")[0], re.DOTALL)
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv") for command in commands)
    assert commands[0].endswith("pytest bench -k case1 --powercap 3")
    assert commands[1].endswith("pytest tests -n auto")


def test_every_test_named_on_the_page_of_faults_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / FAULTS).read_text()))
    assert named
    for path in {path for path, _ in named}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {function for own, function in named if own == path} <= functions


def test_every_fault_names_a_test():
    rows = re.findall(r"^\| (?!fault |-)(.*) \|$", (ROOT / FAULTS).read_text(), re.MULTILINE)
    assert rows
    assert [row for row in rows if "`tests/" not in row] == []


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/explanation/architecture.md", "docs/explanation/glossary.md"]
)
def test_modules_and_names_of_rooms_that_a_page_names_exist(page):
    text, package = (ROOT / page).read_text(encoding="utf-8"), ROOT / "pytest_gpuenergy"
    rooms = [path.parent.name for path in package.glob("*/__init__.pyi")]
    folder = rf"(?:{'|'.join(rooms)})/[\w/]*(?:\.py)?"
    paths = re.findall(rf"`({folder}|\w+\.py)`", text)
    assert [p for p in paths if not ((package / p).exists() or (ROOT / p).exists())] == []
    for room, name in re.findall(rf"`({'|'.join(rooms)})\.(\w+)`", text):
        assert hasattr(importlib.import_module(f"pytest_gpuenergy.{room}"), name), (room, name)


def test_relative_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
