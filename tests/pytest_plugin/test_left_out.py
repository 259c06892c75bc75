"""The lines about contenders that were left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_gpuenergy.pytest_plugin import left_out_lines


def report(item: str, reason: str = "", when: str = "call") -> Any:
    node = f"bench/test_gemm.py::test_gemm[{item}-current]"
    return SimpleNamespace(nodeid=node, when=when, longrepr=("path", 1, f"Skipped: {reason}"))


def test_reasons_that_differ_in_names_and_numbers_are_told_once() -> None:
    skipped = [
        report("gemm_8x8x8_nn-tvm", "No records of gemm_8x8x8_nn."),
        report("gemm_8x8x8_nn-cublas", "No nvmath."),
        report("gemm_9x9x9_nn-tvm", "No records of gemm_9x9x9_nn."),
        report("gemm_9x9x9_nn-cublas", "No nvmath."),
        report("gemm_9x9x9_nn_tf32-tvm", "TVM has no schedules in tf32."),
        report("gemm_9x9x9_nn_tf32-template", "The cap cannot be set.", when="setup"),
    ]
    passed = [
        report("gemm_8x8x8_nn-template"),
        report("gemm_1x1x1_nn-tvm"),
        SimpleNamespace(nodeid="test_other.py::test_a", when="call"),
    ]
    assert [*left_out_lines({"passed": passed, "skipped": skipped})] == [
        "tvm in 2 of 4 products: No records of gemm_8x8x8_nn.",
        "tvm in 1 of 4 products: TVM has no schedules in tf32.",
        "cublas in all 2 products: No nvmath.",
    ]
