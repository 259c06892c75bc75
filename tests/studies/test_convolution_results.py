"""The study of convolutions makes tables, a plot and records from trials."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import convolution_results
import pytest
from convolution_results import (
    RECORDS,
    lead_table,
    network_table,
    own_kernels,
    own_table,
    plot,
    read_layers,
    summary,
    tables,
    updated,
    write_records,
)
from convolution_sweep import CARD

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import ImplicitParameters, load_records
from pytest_gpuenergy.workloads import OCCURRENCES, Conv2d, network

SIZES = {"case5": (1, 56, 56, 64, 64, 3, 3, 1, 1), "drawn01": (2, 9, 9, 16, 32, 3, 3, 1, 1)}
ABOUT = {"gpu": "NVIDIA H200", "driver": "580", "date": "2026-11-29"}


def rows_of(
    name: str, sizes: tuple[int, ...], us: float, cudnn_us: float, mj: float | None = None
) -> list[dict[str, Any]]:
    """A layer in `tf32` and NHWC: two kernels, and cuDNN, which takes twice as long in NCHW."""
    conv = Conv2d.of(name, *sizes, mode="tf32", layout="nhwc")
    first, second = list(ImplicitParameters.fitting(conv, CARD))[:2]
    energy = {"mj": mj, "watts": 500.0, "watts_of_parts": [490.0, 510.0]} if mj else {}
    kernel = {"name": conv.name, "mode": "tf32", "layout": "nhwc", "template": "implicit"}
    cudnn = {"name": name, "mode": "tf32", "cudnn": True}
    return [
        {**kernel, "numbers": second.numbers, "us": 2 * us},
        {**kernel, "numbers": first.numbers, "us": us, "final_us": us, "first": True, **energy},
        {**cudnn, "layout": "nchw", "final_us": 2 * cudnn_us},
        {
            **cudnn,
            "layout": "nhwc",
            "final_us": cudnn_us,
            **({**energy, "mj": 2 * mj} if mj else {}),
        },
    ]


def stored(path: Path, rows: list[dict[str, Any]], sizes: Any = SIZES, **more: Any) -> Path:
    content = json.dumps({**ABOUT, "layers": sizes, "rows": rows, **more})
    path.write_bytes(gzip.compress(content.encode()))
    return path


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    rows = [
        *rows_of("case5", SIZES["case5"], 4.0, 8.0, mj=2.0),
        *rows_of("drawn01", SIZES["drawn01"], 5.0, 4.0),
    ]
    return stored(tmp_path / "trials.json.gz", [*rows, {"missed": "case7 in float16"}])


def test_layers_are_compared_by_group_with_cudnn_in_both_layouts(trials):
    layers = read_layers([trials])
    assert [layer.name for layer in layers] == ["case5", "drawn01"]
    *_, own, better = summary(layers, "us").splitlines()
    assert own == "| `tf32`, `nhwc` | own | 2.00 (2.00) | 0.80 (0.80) |"
    assert better == own.replace("own", "better")
    *_, own, _ = summary(layers, "mj").splitlines()
    assert own == "| `tf32`, `nhwc` | own | 0.50 (0.50) |  |"


def test_regret_is_that_of_the_estimates_order(trials):
    case, _ = read_layers([trials])
    assert {case.regret(1), case.regret(2)} <= {0.0, 1.0}
    assert case.regret(2) == 0.0


def test_a_later_file_replaces_layers_unless_it_alone_lacks_energy(trials, tmp_path):
    faster = rows_of("drawn01", SIZES["drawn01"], 2.0, 4.0)
    without = rows_of("case5", SIZES["case5"], 3.0, 8.0)
    later = stored(tmp_path / "later.json.gz", [*faster, *without])
    case, drawn = read_layers([trials, later])
    assert drawn.ratio("us", "own") == 2.0
    assert case.ratio("us", "own") == 2.0


def test_records_keep_the_fastest_kernels_of_bundled_layers(trials, tmp_path):
    layers = read_layers([trials])
    assert write_records(layers, tmp_path / "records") == 1
    (path,) = (tmp_path / "records").iterdir()
    file = load_records(path)
    assert (file.workload.name, file.gpu, file.ranks) == ("case5_tf32_nhwc", "NVIDIA H200", (1, 2))
    first = json.loads(file.record(1).recipe)
    assert first["parameters"] == layers[0].kernels[0]["numbers"]
    assert first["time_ms"] == 0.004


def test_records_of_drawn_layers_can_be_asked_for(trials, tmp_path):
    assert write_records(read_layers([trials, REPORT]), tmp_path / "records", drawn=True) == 2


def test_a_network_is_the_weighted_sum_of_its_layers(tmp_path):
    layers = {conv.name: tuple(conv.shape.sizes.values()) for conv in network("resnet")}
    rows = [row for name, sizes in layers.items() for row in rows_of(name, sizes, 1.0, 3.0, 0.5)]
    table = network_table(read_layers([stored(tmp_path / "n.json.gz", rows, layers)]))
    count = sum(OCCURRENCES["resnet50"].values())
    assert count == 53
    *_, own, peer = table.splitlines()
    assert own.startswith(f"| `tf32` | nhwc | template | {count} | {count / 2:.2f} ±")
    assert peer.startswith(f"| `tf32` | nhwc | cuDNN | {3 * count} | {count:.2f} ±")


def test_a_network_without_all_layers_has_no_sum(tmp_path):
    layers = {conv.name: tuple(conv.shape.sizes.values()) for conv in network("resnet")[1:]}
    rows = [row for name, sizes in layers.items() for row in rows_of(name, sizes, 1.0, 3.0, 0.5)]
    table = network_table(read_layers([stored(tmp_path / "n.json.gz", rows, layers)]))
    assert len(table.splitlines()) == 2


def test_kernels_as_exact_as_float32_are_compared_with_the_bundled_ones(trials):
    layers = read_layers([trials])
    for layer in layers:
        layer.conv = layer.conv.varied(mode="3xtf32", layout="nchw")
    table = own_table(layers, RECORDS).splitlines()
    assert table[2].startswith("| case5 | nchw | 12.7 | 4.0 | 3.1")
    assert len([line for line in table if "case" in line or "drawn" in line]) == 1


def test_each_point_of_the_plot_is_a_layer_with_energy(trials):
    values = plot(read_layers([trials]))["data"]["values"]
    kernels = [value["kernel"] for value in values]
    assert kernels == ["template, tf32, nhwc", "cuDNN, tf32, nhwc"]
    assert values[1]["mJ for a GFLOP"] == pytest.approx(2 * values[0]["mJ for a GFLOP"])


def test_an_energy_with_gaps_between_launches_is_left_out(tmp_path):
    rows = rows_of("case5", SIZES["case5"], 4.0, 8.0, mj=2.0)
    for row in rows:
        if "mj" in row:
            row["steady_us"] = (1.05 if row.get("cudnn") else 1.2) * row["final_us"]
    (layer,) = read_layers([stored(tmp_path / "t.json.gz", rows)])
    assert "mj" not in layer.kernels[0]
    assert layer.cudnn["nhwc"]["mj"] == 4.0


def test_an_energy_at_the_limit_of_the_card_is_kept(tmp_path):
    rows = rows_of("case5", SIZES["case5"], 4.0, 8.0, mj=2.0)
    for row in rows:
        if "mj" in row:
            row |= {"steady_us": 1.2 * row["final_us"], "watts": 690.0}
    (layer,) = read_layers([stored(tmp_path / "t.json.gz", rows)])
    assert layer.kernels[0]["mj"] == 2.0


REPORT = RECORDS.parent / "results" / "nvidia-h100-2026-11-28" / "convolutions-case1.json"


def test_a_report_of_the_bench_is_compared_like_trials():
    layers = read_layers([REPORT])
    found = {(layer.conv.mode, layer.conv.layout): layer for layer in layers}
    assert list(found) == [
        *(("3xtf32", "nchw"), ("3xtf32", "nhwc"), ("tf32", "nhwc"), ("float16", "nhwc")),
    ]
    exact, half = found["3xtf32", "nhwc"], found["float16", "nhwc"]
    assert exact.ratio("us", "other") == pytest.approx(100.668 / 31.433, rel=1e-4)
    assert half.ratio("mj", "own") == pytest.approx(8.743 / 9.3032, rel=1e-4)
    assert own_kernels([REPORT]) == {}  # cuDNN's are none of ours


def test_kernels_of_a_report_in_float32_replace_those_of_records(tmp_path):
    stored = json.loads(REPORT.read_text())
    cudnn = stored["measurements"][0]
    cudnn["kernel"]["label"] = "k01"
    path = tmp_path / "own.json"
    path.write_text(json.dumps(stored))
    layers = read_layers([REPORT])
    table = own_table(layers, RECORDS, own_kernels([path])).splitlines()
    assert table[2].startswith("| case1 | nchw | 100.7 | 37.6 | 2.68 | 0.39 |")


def test_a_table_of_a_page_is_replaced_by_the_one_with_its_header():
    page = "text\n\n| a | b |\n| --- | --- |\n| old |\nmore\n| c |\n| kept |\n"
    new = "| a | b |\n| --- | --- |\n| new |\n| newer |"
    found = updated(page, [new, "| not | there |\n| never |"])
    assert found == f"text\n\n{new}\nmore\n| c |\n| kept |\n"


def test_without_energy_there_is_no_plot(tmp_path):
    rows = rows_of("drawn01", SIZES["drawn01"], 5.0, 4.0)
    layers = read_layers([stored(tmp_path / "t.json.gz", rows)])
    with pytest.raises(InputError, match="no energy: measure it with --seconds"):
        plot(layers)


def test_the_command_prints_all_tables(trials, tmp_path, capsys):
    assert convolution_results.main([str(trials), "--records", str(tmp_path / "r")]) == 0
    printed = capsys.readouterr().out
    assert "| case5 | 4.0 | 8.0 | 16.0 | 2.00 | 4.00 | 2 | 4 |" in printed
    assert printed.startswith("1 record files in")


def test_the_command_updates_only_the_summary_tables_of_a_page(trials, tmp_path):
    layers = read_layers([trials])
    lead, *_ = lead_table(layers).splitlines()
    ((_, table),) = tables(layers)
    of_layers, *_ = table.splitlines()
    page = tmp_path / "page.md"
    page.write_text(f"{lead}\n| old |\n\n{of_layers}\n| old |\n")
    assert convolution_results.main([str(trials), "--page", str(page)]) == 0
    assert page.read_text() == f"{lead_table(layers)}\n\n{of_layers}\n| old |\n"


@pytest.mark.parametrize(
    "content",
    [b"{}", gzip.compress(b"[]"), gzip.compress(b'{"rows": 1}')],
    ids=["plain", "list", "number"],  # compressed bytes have the time in them
)
def test_another_file_is_refused(content, tmp_path, capsys):
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    assert convolution_results.main([str(path)]) == 2
    assert "has no trials of convolutions" in capsys.readouterr().err
