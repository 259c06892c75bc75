"""The tables of contenders side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, Measurement, Window
from pytest_gpuenergy.report import side_by_side
from pytest_gpuenergy.workloads import Conv2d, Gemm, Workload


@pytest.fixture
def contends(measured: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A contender's measurement of a workload."""

    def make(label: str, workload: Workload, time_ms: float, energy_mj: float) -> Measurement:
        made = measured(None, None, workload=workload.name, time_ms=time_ms, energy_mj=energy_mj)
        return replace(
            made,
            workload=replace(made.workload, parameters={**workload.parameters}),
            kernel=replace(made.kernel, label=label),
        )

    return make


def conv(name: str, size: int = 8, **options: Any) -> Conv2d:
    return Conv2d.of(name, 1, size, size, 4, 4, 3, 3, 1, 1).varied(**options)


def table(*rows: Measurement, width: int | None = None) -> list[list[str]]:
    lines = side_by_side(rows, emulated=False, width=width)
    return [line.replace(" ms", "ms").replace(" mJ", "mJ").split() for line in lines]


def test_each_is_compared_with_the_library(contends):
    one, other = conv("one"), conv("other", 9)
    rows = [
        contends("template", one, 2.0, 8.0),
        contends("cudnn", one, 1.0, 16.0),
        contends("template", other, 2.0, 2.0),
        contends("cudnn", other, 4.0, 1.0),
    ]
    title, head, *body = table(*rows)
    assert " ".join(title) == "conv2d in mode float32, layout nchw, at current"
    assert head[-6:] == ["time", "/", "cudnn", "energy", "/", "cudnn"]
    assert body == [
        ["one", "template", "2.00ms", "8.00mJ", "2.00", "0.50"],
        ["one", "cudnn", "1.00ms", "16.0mJ", "1", "1"],
        ["other", "template", "2.00ms", "2.00mJ", "0.50", "2.00"],
        ["other", "cudnn", "4.00ms", "1.00mJ", "1", "1"],
        ["geometric", "mean", "of", "2", "template", "1.00", "1.00"],
    ]


def test_ratios_have_the_intervals_of_both_figures(contends):
    def known(label: str, time_ms: float, relative: float) -> Measurement:
        ends = Interval(time_ms * (1 - relative), time_ms * (1 + relative))
        made = contends(label, conv("one"), time_ms, 1.0)
        return replace(made, time_ms_ci95=ends, trials=(Window(1.0, 200.0, 2000, 1.0),) * 5)

    wide, narrow = (
        table(known("cudnn", 1.0, 0.001), known("template", 2.0, relative))[-1][4:7]
        for relative in (0.2, 0.002)
    )
    assert [wide[0], narrow[0]] == ["2.00", "2.00"]
    assert float(wide[1].removeprefix("±")) > 10 * float(narrow[1].removeprefix("±")) > 0


def test_modes_and_layouts_never_share_a_table(contends):
    rows = [
        contends(label, conv("one", mode=mode, layout=layout), 1.0, 1.0)
        for mode in ("float16", "tf32")
        for layout in ("nchw", "nhwc")
        for label in ("cudnn", "template")
    ]
    titles = [" ".join(line) for line in table(*rows) if line[0] == "conv2d"]
    assert titles == [
        f"conv2d in mode {mode}, layout {layout}, at current"
        for mode in ("float16", "tf32")
        for layout in ("nchw", "nhwc")
    ]


def test_the_rival_of_3xtf32_is_that_of_float32(contends):
    rows = [
        contends("cudnn", conv("one"), 3.0, 4.0),
        contends("cudnn", conv("other", 9), 9.0, 9.0),
        contends("template", conv("one", mode="3xtf32"), 1.0, 1.0),
    ]
    lines = table(*rows)
    assert ["one_3xtf32", "template", "1.00ms", "1.00mJ", "0.33", "0.25"] in lines
    assert ["one_3xtf32", "cudnn", "in", "float32", "3.00ms", "4.00mJ", "1", "1"] in lines
    assert not any("other_3xtf32" in line for line in lines)


def test_without_a_library_the_first_is_the_measure(contends):
    product = Gemm("g", 8, 8, 8)
    lines = table(contends("triton", product, 1.0, 1.0), contends("tvm", product, 2.0, 3.0))
    assert ["g", "tvm", "2.00ms", "3.00mJ", "2.00", "3.00"] in lines


def test_a_contender_alone_has_no_table(contends, failed):
    alone = contends("template", conv("one"), 1.0, 1.0)
    assert table(alone, failed()) == []


def test_what_the_rival_has_not_computed_is_compared_with_nothing(contends):
    rows = [
        contends("cudnn", conv("one"), 1.0, 1.0),
        contends("template", conv("one"), 1.0, 1.0),
        contends("template", conv("other", 9), 1.0, 1.0),
    ]
    assert table(*rows)[-1] == ["other", "template", "1.00ms", "1.00mJ"]


def test_no_line_is_wider_than_the_terminal(contends):
    one = conv("one")
    rows = [contends("template", one, 1.0, 1.0), contends("cudnn", one, 1.0, 1.0)]
    assert all(len(line) <= 40 for line in side_by_side(rows, emulated=True, width=40))
