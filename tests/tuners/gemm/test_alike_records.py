"""Which records serve a product that has none of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gemm_products import template_records

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.support import UnavailableError
from pytest_gpuenergy.tuners import TEMPLATE_FORM, WgmmaParameters, best_record
from pytest_gpuenergy.tuning import TEMPLATE, dump_records, file_name
from pytest_gpuenergy.workloads import Gemm

RECORDED = Gemm("recorded", 72, 64, 64, "nn", "bfloat16")


def rank_of(folder: Path, gemm: Gemm, **recorded: Any) -> int | None:
    """The rank that a product has of the only record, which is of another one."""
    product = replace(RECORDED, **recorded)
    path = folder / file_name(product, TEMPLATE_FORM.variant)
    dump_records(template_records(product, WgmmaParameters()), path)
    with EmulatedDevice() as device:
        file, rank = best_record(folder, gemm, device, TEMPLATE)
        assert file.workload == gemm
        return rank


@pytest.mark.parametrize(
    ("recorded", "layout", "mode"),
    [
        ("nn", "nn", "float16"),
        ("nn", "tn", "bfloat16"),
        ("nt", "tt", "float16"),
        ("tn", "nn", "bfloat16"),
    ],
)
def test_records_serve_products_that_are_computed_alike(tmp_path, recorded, layout, mode):
    gemm = Gemm("g", 72, 64, 64, layout, mode)
    assert rank_of(tmp_path, gemm, layout=recorded, lda=0) == 1


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_records_of_a_product_alone_serve_one_with_an_end(tmp_path, layout):
    end: Any = {"bias": True, "activation": "gelu", "residual": True}
    gemm = Gemm("g", 72, 64, 64, layout, "bfloat16", **end)
    assert rank_of(tmp_path, gemm, layout="nn", lda=0) == 1


@pytest.mark.parametrize(
    "gemm",
    [
        Gemm("g", 72, 64, 64, "nt", "bfloat16"),  # A is stored the other way
        Gemm("g", 72, 64, 64, "tn", "tf32"),
        Gemm("g", 72, 64, 64, "tn", "bfloat16", ldb=72),
        Gemm("g", 72, 64, 80, "tn", "bfloat16"),
    ],
    ids=str,
)
def test_records_serve_no_others(tmp_path, gemm):
    with pytest.raises(UnavailableError, match="There are no records"):
        rank_of(tmp_path, gemm)
