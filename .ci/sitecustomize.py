"""Measures which lines run, in each Python of ``.ci/run`` that SlipCover is installed for.

Python imports this at its start. SlipCover puts a call into each line of our modules as they are
imported. It is not told to take them out again where lines have run, which takes longer and changes
functions at any moment. coverage.py traces before Python 3.12, which makes all that a process runs
twice as slow.
"""

from __future__ import annotations

import os


def measure(folder: str) -> None:
    """Write the coverage of this process into ``folder`` when it ends."""
    import atexit
    import json
    from pathlib import Path

    import slipcover
    from slipcover.config import read_config

    slipcover.__doc__ = "PYTEST_DONT_REWRITE"  # or pytest warns that it is imported already
    root = Path(__file__).resolve().parents[1]
    config = read_config(root / "pyproject.toml")
    sources, omitted = ([str(root / path) for path in config[key]] for key in ("source", "omit"))
    coverage = slipcover.Slipcover(d_miss_threshold=2**31 - 1)
    matcher = slipcover.FileMatcher(sources, omitted)
    slipcover.ImportManager(coverage, matcher).__enter__()
    slipcover.wrap_pytest(coverage, matcher)
    process = os.getpid()

    def write() -> None:
        if os.getpid() == process:  # and not a fork
            Path(folder, f"{process}.json").write_text(json.dumps(coverage.get_coverage()))

    atexit.register(write)


if given := os.environ.get("COVERAGE_FOLDER"):
    from importlib.util import find_spec

    if find_spec("slipcover"):
        measure(given)
