"""Profiles of models with the figures of an H200, for tests that replay them."""

from __future__ import annotations

import shutil
from pathlib import Path

BLOOM = Path(__file__).parents[1] / "bench/profiles/bloom-560m"
PREFILL = "cb8b857eef1a3"
"""The batched product of the prefill in the recording of BLOOM-560M, for tests of one call."""
QWEN = BLOOM.parent / "qwen2-0.5b"
"""Its graphs have masks, which the host does not make."""


def copy_profile(profile: Path, run: Path) -> Path:
    """A copy in ``run``, which tests may change, without what somebody has replayed there."""
    return Path(shutil.copytree(profile, run, ignore=shutil.ignore_patterns("results-emulated")))


def copy_bloom(run: Path) -> Path:
    """A copy of the profile of BLOOM."""
    return copy_profile(BLOOM, run)
