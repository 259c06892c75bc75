"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import AnchorCheck, Estimate, Interval, Measurement

pytestmark = pytest.mark.browser
Make = Callable[..., Any]
KERNELS, CAPS, CHARTS = 4, (1, 3, 5), 3
SVG = "figure svg[role=img]"


@pytest.fixture
def sweep(measured: Make) -> list[Measurement]:
    """Two workloads, four kernels, three caps; k02 is flagged."""
    return [
        measured(
            rank,
            cap,
            workload=workload,
            time_ms=rank * (1 + 0.5 / cap),
            energy_mj=100.0 / rank + 10.0 * cap,
            energy_mj_ci95=Interval(90.0, 120.0),
            validity=("temperature_drift",) if rank == 2 else (),
        )
        for workload in ("case1", "case2")
        for rank in range(1, KERNELS + 1)
        for cap in CAPS
    ]


def test_all_charts_are_drawn_and_nobody_complains(show, report, sweep):
    page = show(report(*sweep))
    assert page.complaints == []
    assert len(page.find(f".workload {SVG}")) == 2 * CHARTS
    for kind in ("front", "edp", "explorer"):
        assert page.points(kind) == len(sweep)
    assert len(page.find("#legend ul")) == 1
    assert page.find("figure .legend") == []


def test_nothing_is_fetched(show, report, sweep):
    page = show(report(*sweep))
    assert page.run("return performance.getEntriesByType('resource').length") == 0


def test_every_chart_of_an_emulated_gpu_says_so(show, report, sweep):
    page = show(report(*sweep))
    titles = [title.text for title in page.find("figcaption")]
    assert len(titles) >= 2 * (CHARTS + 1)
    assert all(title.endswith("(emulated)") for title in titles)
    labels = [chart.get_attribute("aria-label") for chart in page.find(SVG)]
    assert all("(emulated)" in label for label in labels)
    assert [badge.text for badge in page.find("h1 .badge")] == ["emulated"]


def test_no_chart_of_a_real_gpu_says_emulated(show, report, sweep):
    page = show(report(*sweep, emulated=False))
    assert "emulated" not in page.run("return document.body.innerText")


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("workload", "case2", KERNELS * len(CAPS)),
        ("cap", "450W", 2 * KERNELS),
        ("show", "flagged", 2 * len(CAPS)),
        ("show", "failed", 0),
    ],
)
def test_a_filter_narrows_table_and_charts(show, report, sweep, name, text, left):
    page = show(report(*sweep))
    page.choose(name, text)
    assert len(page.column("kernel")) == left
    assert page.points("front") == left
    assert page.complaints == []


def test_words_are_searched_for(show, report, sweep):
    page = show(report(*sweep))
    page.find("#filters [name=search]")[0].send_keys("CASE1 k03")
    assert page.column("workload") == ["case1"] * len(CAPS)
    assert page.column("kernel") == ["k03"] * len(CAPS)


def test_a_column_sorts_by_number_up_and_down(show, report, measured, failed):
    energies = (9.0, 100.0, 20.0)
    page = show(
        report(*(measured(k, energy_mj=e) for k, e in enumerate(energies, start=1)), failed(4))
    )
    (head,) = (head for head in page.find("#measurements th") if head.text == "energy (mJ)")
    head.find_element("tag name", "button").click()
    assert page.column("kernel") == ["k01", "k03", "k02", "k04"]
    assert head.get_attribute("aria-sort") == "ascending"
    head.find_element("tag name", "button").click()
    assert page.column("kernel") == ["k02", "k03", "k01", "k04"]


def test_any_figure_can_be_put_on_an_axis_by_any_column(show, report, sweep):
    blocks = [
        replace(one, kernel=replace(one.kernel, details={"block": 64 * (one.kernel.rank or 0)}))
        for one in sweep
    ]
    page = show(report(*blocks))
    page.choose("figure", "power (W)")
    page.choose("by", "kernel details.block")
    titles = [title.text for title in page.find(".explorer figcaption")]
    assert titles[0] == "case1: power (W) by kernel details.block (emulated)"
    assert page.points("explorer") == len(sweep)
    axes = [text.text for text in page.find(".explorer svg .axis")]
    assert axes[:2] == ["kernel details.block", "power (W)"]


def test_the_best_cap_of_each_workload_is_told(show, report, sweep):
    page = show(report(*sweep))
    best = min(sweep[: KERNELS * len(CAPS)], key=lambda m: m.edp_mj_ms or 0.0)
    assert page.column("power cap", "#best") == [best.cap, best.cap]
    assert all("beyond noise" in sure for sure in page.column("how sure", "#best"))


def test_failures_and_flags_are_told(show, report, measured, failed):
    page = show(report(measured(1, validity=("host_gaps",)), failed(2)))
    assert page.column("outcome") == ["correct", "correctness: 1 of 4 elements of output is wrong."]
    assert page.column("flag", "#validity") == ["host_gaps"]
    assert page.points("front") == 1
    assert page.complaints == []


def test_differences_to_a_baseline_show_both_intervals(show, report, measured):
    now = measured(1, energy_mj=110.0, energy_mj_ci95=Interval(109.0, 111.0))
    before = measured(1, energy_mj=100.0, energy_mj_ci95=Interval(98.0, 102.0))
    page = show(report(now), report(before, run_id="the-baseline"))
    assert page.column("baseline", "#differences") == ["0.5", "100 [98, 102]", "50"]
    assert page.column("now", "#differences") == ["0.5", "110 [109, 111]", "55"]
    assert page.column("change (%)", "#differences") == ["0.00", "+10.00", "+10.00"]
    assert "the-baseline" in page.find("#differences")[0].text


def test_without_a_baseline_there_is_no_comparison(show, report, measured):
    assert not show(report(measured(1))).find("#comparison")[0].is_displayed()


HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=1</script>",
    "<svg/onload=window.pwned=1>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "';window.pwned=1;//",
    "__proto__",
    "datum['x']);window.pwned=1",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_shown(show, report, measured, failed, name):
    bad = measured(1, workload=name, validity=(name,), cap_binding=True)
    kernel = replace(bad.kernel, label=name, origin=name, details={"band": name})
    bad = replace(bad, kernel=kernel, cap=name, cache=name)
    broken = failed(2, error=name, node_id=name)
    page = show(
        report(bad, broken, measured(3), gpu_name=name, run_id=name, software={name: name}),
        report(bad, measured(3), gpu_name=name),
    )
    _hover(page, ".front svg .mark")
    page.choose("workload", f"{name}, {name}")
    assert page.complaints == []
    assert page.run("return window.pwned ?? null") is None
    assert page.find("body img, body script:not(body > script)") == []
    assert page.column("kernel") == [name]
    assert page.find("h1")[0].text.startswith(name)
    assert page.points("front") == 1


def _hover(page: Any, selector: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(page.browser).move_to_element(page.find(selector)[0]).perform()
    page.wait("return !document.querySelector('#tip').hidden")


@pytest.mark.parametrize(
    "figures",
    [
        {"time_ms": 1e300, "energy_mj": 1.0},
        {"time_ms": 1e-300, "energy_mj": 1e-300},
        {"time_ms": 1.0, "energy_mj": 0.0, "power_w": 0.0, "gflops_per_w": 0.0},
        {"time_ms": 1.0, "energy_mj": -5.0},
        {"time_ms": 1.7e308, "energy_mj": 1.7e308, "edp_mj_ms": 1.7e308},
    ],
    ids=str,
)
def test_strange_numbers_do_no_harm(show, report, measured, figures):
    page = show(report(replace(measured(1), **figures), measured(2)))
    assert page.complaints == []
    assert len(page.column("kernel")) == 2


def test_a_run_without_measurements_says_so(show, report):
    page = show(report())
    assert page.complaints == []
    assert "Nothing was measured." in page.find("#best")[0].text


def test_a_run_that_only_failed_shows_why(show, report, failed):
    page = show(report(failed(1), failed(2)))
    assert page.complaints == []
    assert len(page.column("kernel")) == 2
    assert page.points("front") == 0


def test_checks_for_drift_are_shown_where_there_are_any(show, report, sweep):
    plain = report(*sweep)
    assert not show(plain).find("#drift")[0].is_displayed()
    ratio = Estimate(1.0512, 1.049, 1.0534)
    good = AnchorCheck("a", "case1", "k01", "450W", "good", "t0", "t1", temperature_c=51)
    bad = replace(good, verdict="drift", started="t2", time=ratio, items=("b", "c"))
    page = show(replace(plain, anchors=(good, bad)))
    assert page.complaints == []
    assert page.column("verdict", "#drift") == ["good", "drift"]
    assert page.column("time (%)", "#drift") == ["", "+5.12 [4.9, 5.34]"]
    assert page.column("items covered", "#drift") == ["0", "2"]
