"""Products that nobody tuned for: how they are drawn and chosen, and the tables of their times."""

from __future__ import annotations

import gzip
import json

import pytest
import untuned_products as products
import untuned_tables as tables

from pytest_gpuenergy.tuners import TEMPLATE_FORM, Costs, FittedCosts, fitted, rank_kernels
from pytest_gpuenergy.workloads import LAYOUTS, Gemm


def test_a_seed_draws_the_same_products_of_models_and_odd_sizes():
    drawn = products.drawn(40, 7)
    assert drawn == products.drawn(40, 7) != products.drawn(40, 8)
    assert len({gemm.signature for _, gemm in drawn}) == 40
    assert {gemm.layout for _, gemm in drawn} == set(LAYOUTS)
    assert {source for source, _ in drawn} > {"odd", "any"}
    assert all(gemm.flops <= products.MAX_FLOPS for _, gemm in drawn)
    odd = [gemm for source, gemm in drawn if source == "odd"]
    assert all(size % 2 for gemm in odd for size in (gemm.M, gemm.N, gemm.K))


def test_the_first_choice_comes_first_then_other_templates_and_tiles():
    picks = products.chosen(Gemm("g", 1000, 1400, 515, "tn", "float32"), 3)
    assert next(rank for rank, *_ in picks) == 0
    turned = [json.loads(recipe)["parameters"]["turned"] for _, _, recipe, _ in picks]
    assert len(picks) == 4
    assert set(turned) == {0, 1}
    assert all(kernel.launches for *_, kernel in picks)


def test_the_first_choice_of_another_estimate_comes_second():
    gemm = Gemm("g", 40, 200, 300, "tn", "bfloat16")
    other = FittedCosts(dict.fromkeys(fitted().costs, Costs(loaded_bytes_per_cycle=4.0)), {})
    (_, _, first, _), (_, _, second, _) = products.chosen(gemm, 1, against=other)
    best = TEMPLATE_FORM.recipe(rank_kernels(gemm, products.HOPPER, other)[0])
    assert second == best != first


def line(k, mode, time_ms, **more):
    workload = {"kind": "gemm", "M": 64, "N": 64, "K": k, "layout": "tn", "mode": mode}
    return {"source": "odd", "gpu": "GPU", "workload": workload, "time_ms": time_ms, **more}


def ours(k, mode, time_ms, rank=0, **more):
    return line(k, mode, time_ms, rank=rank, template="wgmma", parameters={}, **more)


LINES = [
    ours(65, "bfloat16", 8.0),
    ours(65, "bfloat16", 2.0, energy_mj=4.0),
    ours(65, "bfloat16", 1.0, rank=1),
    line(65, "bfloat16", 6.0, contender="cublas"),
    line(65, "bfloat16", 6.0, contender="cublas", energy_mj=5.0),
    ours(65, "3xtf32", 1.0),
    line(65, "float32", 3.0, contender="cublas"),
    ours(72, "bfloat16", 2.0),
    line(72, "bfloat16", 1.0, contender="cublas"),
    ours(72, "bfloat16", None, rank=2),
]


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "lines.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, LINES)).encode()))
    return path


def test_tables_compare_the_first_choice_with_the_library(stored, capsys):
    assert tables.main([str(stored), "--worst", "1"]) == 0
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in capsys.readouterr().out.splitlines()
        if "|" in row
    ]
    assert rows[2:] == [
        [*("3xtf32", "1", "3.000", "3.00", "", "3.000 (1)"), *("3.000", "", "64x64x65 tn 3.00")],
        [
            *("bfloat16", "2", "0.612", "0.53", "0.500 (1)", "0.750 (1)"),
            *("1.732", "0.800 (1, speed 3.000)", "64x64x72 tn 0.50"),
        ],
    ]


def test_products_that_were_named_have_a_table_of_their_own(tmp_path, capsys):
    batch = {"workload": {**ours(64, "bfloat16", 1)["workload"], "B": 2}, "source": "also"}
    lines = [
        *(ours(72, "bfloat16", 2.0), line(72, "bfloat16", 1.0, contender="cublas")),
        {**ours(64, "bfloat16", 2.0, energy_mj=400.0), **batch},
        {**line(64, "bfloat16", 4.0, contender="cublas", energy_mj=500.0), **batch},
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert tables.main([str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    cells = [cell.strip() for cell in last.split("|")[1:-1]]
    assert cells == [
        *("gemm_b2_64x64x64_tn_bfloat16", "2e+03 µs", "4e+03 µs", "2.00", "0.80", "200, 125")
    ]


def test_the_plot_has_the_first_choice_and_the_library():
    values = tables.plot(LINES)["data"]["values"]
    of_k = {v["contender"]: v["TFLOP/s"] for v in values if (v["K"], v["mode"]) == (65, "bfloat16")}
    flops = 2 * 64 * 64 * 65
    assert of_k == {
        "template": flops / 2e9,
        "cuBLASLt": pytest.approx(flops / 6e9),
    }


@pytest.mark.parametrize("content", ["{}", "[]", "x"])
def test_what_is_no_kernel_is_refused_in_a_sentence(tmp_path, capsys, content):
    path = tmp_path / "lines.jsonl"
    path.write_text(content)
    assert tables.main([str(path)]) == 2
    assert "Line 1 of" in capsys.readouterr().err
