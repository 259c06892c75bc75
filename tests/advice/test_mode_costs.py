"""What workloads cost in each mode, and which modes are accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import expm1
from typing import Any

import pytest
from command_outcomes import ended
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.advice import (
    Acceptance,
    Goal,
    ModeCosts,
    compare_modes,
    has_modes,
    named_after,
)
from pytest_gpuenergy.record import (
    CONV_MODES,
    MODES,
    Correctness,
    Measurement,
    Metric,
    WorkloadInfo,
    split_mode,
)
from pytest_gpuenergy.report import Report, write_json
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d, Gemm, find_workload, product_name

Make = Callable[..., Any]
ALL = Acceptance(MODES)


@pytest.fixture
def layer(at_clock: Make) -> Make:
    """A measurement of a convolution of ResNet in some mode, by our kernel or a library's."""

    def make(
        name: str, time_ms: float, energy_mj: float, label: str = "k01", clock: int | None = None
    ) -> Measurement:
        workload = find_workload(name)
        assert isinstance(workload, Conv2d)
        row: Measurement = at_clock(
            1, 5, clock, workload=name, time_ms=time_ms, energy_mj=energy_mj
        )
        bound = workload.error_bound
        return replace(
            row,
            node_id=row.node_id.replace("k01", label),
            workload=WorkloadInfo(name, dict(workload.parameters), 10**9, 10**6),
            kernel=replace(row.kernel, label=label),
            correctness=Correctness(0.0, 0.0, bound.max_relative, bound.normwise, (0,)),
        )

    return make


@pytest.fixture
def rows(layer: Make) -> list[Measurement]:
    """Two layers in several modes, and cuDNN's in float32 and TF32."""
    return [
        *(layer("resnet03", 1.0, 400.0), layer("resnet06", 1.0, 500.0)),
        *(layer("resnet03_3xtf32", 0.5, 200.0), layer("resnet06_3xtf32", 1.5, 600.0)),
        *(layer("resnet03_tf32", 0.2, 80.0), layer("resnet06_tf32", 0.3, 100.0)),
        *(layer("resnet03_tf32_nhwc", 0.1, 60.0), layer("resnet06_tf32_nhwc", 0.2, 90.0)),
        *(layer("resnet03", 2.0, 700.0, "cudnn"), layer("resnet06", 2.0, 700.0, "cudnn")),
        *(layer("resnet03_nhwc", 3.0, 900.0, "cudnn"), layer("resnet06_nhwc", 3.0, 900.0, "cudnn")),
        *(layer("resnet03_tf32", 0.2, 70.0, "cudnn"), layer("resnet06_tf32", 0.2, 70.0, "cudnn")),
    ]


def compared(report: Report, accepted: Acceptance = ALL, **options: Any) -> ModeCosts:
    return compare_modes(report, accepted, Goal(), **{"weights": {}, **options})


def energies(found: ModeCosts) -> dict[str, float]:
    return {row.key.title: row.setting.cost.energy for row in found.rows if row.setting is not None}


def test_each_mode_has_its_sums(rows, report):
    found = compared(report(*rows))
    assert energies(found) == pytest.approx(
        {
            "float32": 900.0,
            "3xtf32": 700.0,  # with the second layer in float32, whose bound is the same
            "tf32": 180.0,
            "tf32 nhwc": 150.0,
            "cuDNN float32": 1400.0,
            "cuDNN float32 nhwc": 1800.0,
            "cuDNN tf32": 140.0,
        }
    )
    assert found.best is not None
    assert found.best.key.title == "tf32 nhwc"
    assert found.images == 1


def test_kernels_of_modes_that_are_as_exact_are_marked(rows, report):
    found = {row.key.title: row for row in compared(report(*rows)).rows}["3xtf32"]
    assert found.setting is not None
    plan = found.setting.plan
    assert [option.row.kernel.label for option in plan] == ["k01 (3xtf32)", "k01 (float32)"]


def test_the_exact_mode_is_compared_with_the_better_layout_of_cudnn(rows, report):
    found = compared(report(*rows))
    assert found.exact is not None
    assert found.rival is not None
    assert (found.exact.key.title, found.rival.key.title) == ("3xtf32", "cuDNN float32")
    assert found.saving is not None
    change = found.saving[Metric.ENERGY]
    assert expm1(change.value) == pytest.approx(700 / 1400 - 1)
    assert change.interval is not None
    assert change.interval.low < change.value < change.interval.high


@pytest.mark.parametrize(
    ("accepted", "best", "refused"),
    [
        (Acceptance(), "3xtf32", {"tf32", "tf32 nhwc", "cuDNN tf32"}),
        (Acceptance(("float32",)), "float32", {"3xtf32", "tf32", "tf32 nhwc", "cuDNN tf32"}),
        (Acceptance(("float32", "tf32")), "tf32 nhwc", {"3xtf32"}),
        (Acceptance(error=1e-4), "3xtf32", {"tf32", "tf32 nhwc", "cuDNN tf32"}),
        (Acceptance(error=1e-2), "tf32 nhwc", set()),
        (
            Acceptance(("3xtf32", "tf32"), 1e-4),
            "3xtf32",
            {"float32", "tf32", "tf32 nhwc", "cuDNN tf32"},
        ),
    ],
)
def test_only_accepted_modes_are_advised(rows, report, accepted, best, refused):
    found = compared(report(*rows), accepted)
    assert found.best is not None
    assert found.best.key.title == best
    assert refused <= found.refused.keys()
    assert found.rival is not None  # whatever is accepted


def test_a_kernel_with_the_bound_of_tf32_is_no_rival_of_the_exact_mode(rows, report):
    loose = Correctness(0.0, 0.0, 2e-3, 2e-3, (0,))
    extra = [
        replace(m, kernel=replace(m.kernel, label="cudnn-contiguous-tf32"), correctness=loose)
        for m in rows[8:10]
    ]
    extra = [replace(m, time_ms=0.01, edp_mj_ms=7.0) for m in extra]
    found = compared(report(*rows, *extra))
    assert energies(found)["cuDNN float32"] == pytest.approx(1400)
    assert found.rival is not None
    assert found.rival.key.title == "cuDNN float32"


def test_a_mode_that_lacks_a_layer_has_no_sums(rows, report):
    found = compared(report(*(m for m in rows if m.workload.name != "resnet06_tf32_nhwc")))
    row = next(row for row in found.rows if row.key.title == "tf32 nhwc")
    assert (row.setting, row.missing) == (None, ("resnet06",))
    assert "tf32 nhwc lacks resnet06, and has no sums" in list(found.sentences)
    assert found.best is not None
    assert found.best.key.title == "tf32"


def test_a_layer_without_clean_figures_in_any_mode_is_no_reason_to_lack_sums(rows, report):
    noisy = replace(rows[0], validity=("not_steady",))
    found = compared(report(noisy, rows[1], rows[3]))
    assert energies(found) == {"float32": 500.0, "3xtf32": 500.0}


def test_modes_are_compared_at_one_setpoint(layer, report):
    rows = [
        *(layer("resnet03", 1.0, 400.0, clock=clock) for clock in (None, 1200)),
        layer("resnet03_tf32", 0.5, 100.0, clock=1200),
    ]
    found = compared(report(*rows))
    assert found.setpoint == "700W-1200MHz"
    assert energies(found) == {"float32": 400.0, "tf32": 100.0}
    with pytest.raises(InputError, match="--baseline '300W' is no setpoint"):
        compared(report(*rows), baseline="300W")


def test_how_often_a_layer_runs_counts_in_each_mode(rows, report):
    found = compared(report(*rows), weights={"resnet03": 3.0})
    assert energies(found)["tf32"] == pytest.approx(3 * 80 + 100)
    with pytest.raises(InputError, match="--weights names 'resnet03_tf32', of which there is no"):
        compared(report(*rows), weights={"resnet03_tf32": 2.0})


def test_without_an_accepted_mode_nothing_is_advised(rows, report):
    with pytest.raises(InputError, match="No accepted mode was measured, only float32"):
        compared(report(*rows), Acceptance(("bfloat16",)))


def test_several_modes_of_one_workload_are_noticed(rows):
    assert has_modes(rows)
    assert not has_modes(rows[:2])
    assert not has_modes(rows[4:6])
    loose = Correctness(0.0, 0.0, 2e-3, 2e-3, (0,))
    assert has_modes([*rows[:2], replace(rows[0], correctness=loose)])


def test_kernels_of_cudnn_alone_are_advised_like_others(rows, report):
    found = compared(report(*rows[8:]))
    assert energies(found) == {"float32": 1400.0, "float32 nhwc": 1800.0, "tf32": 140.0}
    assert found.rival is None


def test_layers_have_the_figures_of_convolutions_of_the_same_sizes(layer):
    layers = {name: find_workload(name).parameters for name in ("resnet03", "resnet04")}
    case = layer("case5_tf32_nhwc", 1.0, 400.0)
    names = [m.workload.name for m in named_after([case, layer("case6", 1.0, 500.0)], layers)]
    assert names == ["resnet03_tf32_nhwc", "case6"]
    measured = [case, layer("resnet03", 1.0, 400.0)]
    assert named_after(measured, layers) == measured
    both = named_after([case], {**layers, "case5": find_workload("case5").parameters})
    assert [m.workload.name for m in both] == ["case5_tf32_nhwc", "resnet03_tf32_nhwc"]


def test_layers_of_a_network_that_were_not_measured_are_named(written):
    text = ended(0, "advise", written, "--weights", "resnet50").out
    assert "not in the sums: resnet01, resnet02, resnet04, resnet05, resnet07 and 13 more" in text
    assert "resnet06 4 " in " ".join(text.split())


OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(CONV_MODES),
        "layout": st.sampled_from(CONV_LAYOUTS),
        "bias": st.booleans(),
        "relu": st.booleans(),
    }
)


@given(OPTIONS)
def test_the_name_in_every_mode_has_neither_mode_nor_layout(options):
    plain = find_workload("resnet03")
    assert isinstance(plain, Conv2d)
    workload = plain.varied(**options)
    layout = "" if workload.layout == "nchw" else workload.layout
    common = plain.varied(bias=workload.bias, relu=workload.relu).name
    found = split_mode(workload.name, workload.parameters)
    assert found == (common, workload.mode, layout)


@given(st.sampled_from(MODES), st.sampled_from(["nn", "nt"]), st.sampled_from(["normal", "zeros"]))
def test_the_name_of_a_product_in_every_mode_has_none(mode, layout, distribution):
    plain = Gemm("g", 3, 4, 5, layout, distribution=distribution)
    workload = plain.varied(mode=mode)
    assert split_mode(workload.name, workload.parameters) == (product_name(plain), mode, "")


@pytest.fixture
def written(rows: list[Measurement], report: Make, tmp_path: Any) -> str:
    write_json(report(*rows), tmp_path / "modes.json")
    return str(tmp_path / "modes.json")


def test_the_command_compares_modes_and_advises_the_best(written):
    text = ended(0, "advise", written, "--network", "resnet", "--modes", "float32,3xtf32").out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "NVIDIA H200 (emulated), run 20260102T030405-abcdef: least EDP"
    assert "all workloads in each mode, at 700W" in lines
    columns = "mode error bound energy per image time per image energy against float32 time against"
    assert any(line.startswith(columns) for line in lines)
    assert any(line.startswith("3xtf32 (1 of 2 in float32) 1.6e-05 700 mJ ±0.") for line in lines)
    assert any(
        line.startswith(
            "3xtf32, with the error bound of float32, against cuDNN float32: time -62.5 %"
        )
        for line in lines
    )
    assert "best accepted mode: 3xtf32" in lines
    assert any(line.startswith("resnet06 1 k01 (float32)") for line in lines)


def test_a_network_in_one_other_mode_alone_is_advised_by_its_name(layer, report, tmp_path):
    rows = [layer("resnet03_3xtf32_nhwc", 0.5, 200.0), layer("resnet06_3xtf32_nhwc", 1.5, 600.0)]
    path = tmp_path / "one.json"
    write_json(report(*rows), path)
    weights = ["--weights", "resnet03=2,resnet06=1"]
    text = ended(0, "advise", str(path), "--network", "resnet", *weights).out
    assert "best accepted mode: 3xtf32 nhwc" in text
    assert "1.00 J" in text


def test_modes_are_never_added_up(written):
    text = ended(0, "advise", written).out
    assert "best accepted mode: 3xtf32" in text
    assert "not accepted: tf32, tf32 nhwc, cuDNN tf32 (its errors may be larger than" in text
    assert "all 2 workloads together" in text


def test_as_markdown(written):
    text = ended(0, "advise", written, "--accept-error", "1e-2", "--md", "-").out
    assert "**best accepted mode: tf32 nhwc**" in text


def test_json_has_every_mode(written):
    text = ended(0, "advise", written, "--modes", "3xtf32,float32", "--json", "-").out
    modes = json.loads(text)["modes"]
    assert (modes["setpoint"], modes["images"], modes["best"]) == ("700W", 1, "3xtf32")
    assert modes["saving"]["energy"]["change"] == pytest.approx(-0.5)
    split = next(row for row in modes["rows"] if row["mode"] == "3xtf32")
    assert (split["layout"], split["library"]) == ("nchw", None)
    assert split["borrowed"] == ["resnet06"]
    assert split["cost"]["energy_mj"] == pytest.approx(700)
    assert [one["kernel"] for one in split["kernels"]] == ["k01 (3xtf32)", "k01 (float32)"]


def test_if_no_mode_has_all_workloads_the_command_ends_with_1(rows, report, tmp_path):
    some = [m for m in rows if m.workload.name in ("resnet03", "resnet06_tf32")]
    write_json(report(*some), tmp_path / "some.json")
    text = ended(1, "advise", tmp_path / "some.json", "--modes", "float32,tf32").out
    assert "float32 lacks resnet06, and has no sums" in text
    assert "no accepted mode has a clean measurement of every workload" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modes", "fp8"], "--modes 'fp8' is not known: choose from float32, 3xtf32"),
        (["--accept-error", "much"], "--accept-error 'much' is not understood: give the largest"),
        (["--accept-error", "0"], "--accept-error '0' is not understood"),
        (["--accept-error", "1e-9"], "No accepted mode was measured, only float32 (its bound is"),
        (["--weights", "resnet01=2"], "names 'resnet01', of which there is no clean measurement"),
        (["--weights", "resnet50,resnet03=2"], "--weights names 'resnet03' twice"),
    ],
)
def test_what_cannot_be_is_refused(written, words, said):
    assert said in ended(2, "advise", written, *words).err
