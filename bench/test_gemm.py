"""Matrix products: every contender on the same inputs, verified and measured alike.

pytest bench/test_gemm.py --gemm "MNK=4096" -k "nn and template" --powercap current
"""

from __future__ import annotations

from pytest_gpuenergy.pytest_plugin import test_gemm

__all__ = ["test_gemm"]
