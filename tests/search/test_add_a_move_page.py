"""The pages about adding a move and a runner say what is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuenergy.search import MOVES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-move.md").read_text(encoding="utf-8")
RUNNERS = (ROOT / "docs" / "how-to" / "add-a-runner.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [PAGE, pytest.param(RUNNERS, marks=pytest.mark.slow)], ids=["move", "runner"]
)
def test_the_example_works(pytester, page):
    (snippet,) = (part.partition("```")[0] for part in page.split("```python\n")[1:])
    pytester.makepyfile(test_move=snippet)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize("move", MOVES, ids=lambda move: str(move.name))
def test_a_move_has_its_row(move):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{move.name}` |"))
    _, _, cuda, triton, relieves, _ = (cell.strip() for cell in row.split("|"))
    languages = {language for language, cell in (("cuda", cuda), ("triton", triton)) if cell}
    assert languages == move.languages
    assert set(relieves.split(", ")) == move.relieves


@pytest.mark.parametrize(
    "path",
    [word for word in (PAGE + RUNNERS).split("`") if word.endswith(".py") and "\n" not in word],
)
def test_a_file_that_is_named_exists(path):
    package = ROOT / "pytest_gpuenergy"
    rooms = ("", "search", "search/moves", "search/analysis", "search/source")
    folders = (ROOT, *(package / room for room in rooms))
    assert any((folder / path).is_file() for folder in folders)
