"""Measures which lines run, in each Python of ``.ci/run`` that SlipCover is installed for.

Python imports this at its start. SlipCover puts a call into each line of our modules as they are
imported. It is not told to take them out again where lines have run, which takes longer and changes
functions at any moment. Tracing, by which coverage.py measures before Python 3.12, makes all that a
process runs twice as slow; coverage.py only counts and reports here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import CodeType


def lines_of(code: CodeType) -> Iterator[int]:
    """Its lines, also those with only annotations.

    To find those takes half of the time that SlipCover adds to an import, and coverage.py knows
    itself which lines are statements.
    """
    yield from {line for *_, line in code.co_lines() if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from lines_of(constant)


def measure(path: str) -> None:
    """Write the lines that this process has run, when it ends, to a data file beside ``path``."""
    import atexit
    import tomllib
    from pathlib import Path

    import coverage
    import slipcover

    slipcover.__doc__ = "PYTEST_DONT_REWRITE"  # or pytest warns that it is imported already
    root = Path(__file__).resolve().parents[1]
    config = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    slipcover.Slipcover.lines_from_code = staticmethod(lines_of)
    measured = slipcover.Slipcover(d_miss_threshold=2**31 - 1)
    sources = [root / name for name in config["source"]]
    matcher = slipcover.FileMatcher(sources, [str(root / name) for name in config["omit"]])
    slipcover.ImportManager(measured, matcher).__enter__()
    slipcover.wrap_pytest(measured, matcher)
    process = os.getpid()

    def write() -> None:
        if os.getpid() != process:  # it is a fork
            return
        files = measured.get_coverage()["files"]
        if lines := {str(Path(name).resolve()): files[name]["executed_lines"] for name in files}:
            data = coverage.CoverageData(path, suffix=True)
            data.add_lines(lines)
            # What nobody has imported counts too.
            ours = (file for folder in sources for file in folder.rglob("*.py"))
            data.touch_files(str(file) for file in ours if matcher.matches(file))
            data.write()

    atexit.register(write)


if given := os.environ.get("COVERAGE_FILE"):
    from importlib.util import find_spec

    if find_spec("slipcover"):
        measure(given)
