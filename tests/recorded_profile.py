"""The profile of BLOOM-560M with the figures of an H200, for tests that replay it."""

from __future__ import annotations

import shutil
from pathlib import Path

BLOOM = Path(__file__).parents[1] / "bench/profiles/bloom-560m"


def copy_bloom(run: Path) -> Path:
    """A copy in ``run``, which tests may change."""
    return Path(shutil.copytree(BLOOM, run))
