"""A language model's calls and whole steps, each an item.

pytest bench/test_replay.py --model bloom-560m --powercap current
"""

from __future__ import annotations

from pytest_gpuenergy.pytest_plugin import test_replay

__all__ = ["test_replay"]
