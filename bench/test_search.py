"""The shipped kernels that a search improves, and the best variants it has found, each an item.

pytest bench/test_search.py --search-out out --powercap current
"""

from __future__ import annotations

from pytest_gpuenergy.pytest_plugin import test_search

__all__ = ["test_search"]
