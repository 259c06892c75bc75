"""Using the page: shared addresses, the keyboard, a phone, the dark, paper, verdicts and trends."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, Measurement

pytestmark = pytest.mark.browser
Make = Callable[..., Any]
CAPS = (1, 3, 5)
PHONE = 400


@pytest.fixture
def sweep(measured: Make) -> list[Measurement]:
    """Three kernels of two workloads under three caps, with intervals."""
    found = []
    for workload in ("case1", "case2"):
        for rank in (1, 2, 3):
            for cap in CAPS:
                energy = 100.0 + 10 * rank + cap
                found.append(
                    measured(
                        rank,
                        cap,
                        workload=workload,
                        time_ms=rank / 10,
                        energy_mj=energy,
                        energy_mj_ci95=Interval(energy - 1, energy + 1),
                    )
                )
    return found


def fragment(page: Any) -> str:
    return str(page.run("return location.hash"))


def test_what_is_chosen_is_in_the_address(show, report, sweep):
    page = show(report(*sweep))
    assert fragment(page) == ""
    page.choose("workload", "case2")
    page.choose("cap", "450W")
    page.find("#filters [name=search]")[0].send_keys("k02")
    page.choose("figure", "energy (mJ)")
    assert fragment(page) == "#workload=case2&cap=450W&figure=energy_mj&search=k02"


def test_an_address_restores_what_was_chosen(show, report, sweep):
    page = show(report(*sweep), address="#workload=case2&cap=450W&figure=energy_mj&search=k02")
    assert page.column("workload") == ["case2"]
    assert page.column("kernel") == ["k02"]
    assert page.points("front") == 1
    assert "energy (mJ)" in page.find(".workload:not([hidden]) .explorer figcaption")[0].text
    assert page.find("#filters [name=search]")[0].get_attribute("value") == "k02"
    page.find("#filters button")[0].click()
    assert (fragment(page), len(page.column("kernel"))) == ("", len(sweep))


HOSTILE = (
    "#workload=__proto__&cap=constructor&show=toString&figure=__proto__&by=constructor",
    "#workload=<img src=x onerror=window.pwned=1>&search=<script>window.pwned=1</script>",
    "#" + quote("workload='];window.pwned=1;//") + "=%FF%00&search=%E0%A4%A",
    "#figure=.__proto__&by=.constructor&show=pareto&show=failed",
    "#javascript:window.pwned=1",
    "#" + "a=b&" * 2000,
)


@pytest.mark.parametrize("address", HOSTILE)
def test_a_hostile_address_does_no_harm(show, report, sweep, address):
    page = show(report(*sweep), address=address)
    assert page.complaints == []
    assert page.run("return window.pwned ?? null") is None
    assert page.find("body img") == []
    assert page.run("return document.body.dataset.ready") == "yes"
    assert page.find("#filters [name=figure]")[0].get_attribute("value") == "edp_mj_ms"


def test_following_an_address_on_the_open_page_filters(show, report, sweep):
    page = show(report(*sweep))
    page.run("location.hash = '#cap=200W'")
    page.wait("return document.querySelectorAll('#measurements tbody tr').length === 6")


def test_a_chart_is_stepped_through_with_the_keyboard(show, report, sweep):
    page = show(report(*sweep))
    page.run("document.querySelector('.front svg').focus()")
    page.press("ARROW_RIGHT")
    first = page.find("#said")[0].get_attribute("textContent")
    assert "k01 of case1" in first
    assert "energy (mJ) 115 ± 1" in first
    page.press("ARROW_RIGHT", 2)
    assert page.find("#said")[0].get_attribute("textContent") != first
    page.press("HOME")
    assert page.find("#said")[0].get_attribute("textContent") == first
    page.press("ESCAPE")
    assert not page.find("#tip")[0].is_displayed()


def test_tables_are_sorted_with_the_keyboard(show, report, sweep):
    page = show(report(*sweep))
    page.run("document.querySelector('#measurements thead th:nth-child(5) button').focus()")
    page.press("ENTER")
    heads = page.find("#measurements thead th[aria-sort=ascending]")
    assert [head.text for head in heads] == ["energy (mJ) ▲"] or heads[0].text == "energy (mJ)"
    energies = [float(text.split()[0]) for text in page.column("energy (mJ)")]
    assert energies == sorted(energies)
    focused = page.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert focused == "solid"


def test_everything_to_operate_has_a_name(show, report, sweep):
    page = show(report(*sweep), report(*sweep))
    nameless = page.run(
        """return [...document.querySelectorAll(
             'svg[tabindex], [role=region], table[role=table], table.shades')]
             .filter((one) => !one.getAttribute('aria-label'))
             .concat([...document.querySelectorAll('button, summary, a')]
               .filter((one) => !one.textContent.trim()))
             .concat([...document.querySelectorAll('select, input')]
               .filter((one) => !one.closest('label')?.textContent.trim()))
             .map((one) => one.outerHTML.slice(0, 100))"""
    )
    assert nameless == []
    assert page.run(
        "return [...document.querySelectorAll('thead th')].every((one) => one.scope === 'col')"
    )


@pytest.mark.parametrize("width", [PHONE, 700, 1280])
def test_nothing_scrolls_sideways(show, report, sweep, width):
    long = replace(sweep[0], node_id="x" * 300, validity=("temperature_drift",) * 3, cap="c" * 60)
    page = show(report(*sweep[1:], long, host="h" * 200), report(*sweep))
    page.resize(width)
    assert page.run("return document.documentElement.scrollWidth") <= width
    if width == PHONE:
        wider = page.run(
            """return [...document.querySelectorAll('.scroll')]
                 .filter((one) => one.scrollWidth > one.clientWidth + 1)
                 .map((one) => one.getAttribute('aria-label'))"""
        )
        assert wider == []


def test_charts_fit_a_phone(show, report, sweep):
    page = show(report(*sweep))
    page.resize(PHONE)
    page.wait(
        "return [...document.querySelectorAll('figure svg[tabindex]')]"
        ".every((one) => one.viewBox.baseVal.width < arguments[0])",
        PHONE,
    )


def test_the_dark_style_has_light_words_on_dark_paper(show, report, sweep):
    page = show(report(*sweep))
    luminance = """const style = getComputedStyle(document.body);
        const light = (what) => style[what].match(/\\d+/g).reduce((sum, one) =>
            sum + Number(one), 0);
        return [light('color'), light('backgroundColor')]"""
    page.resize(1280, dark=True)
    ink, paper = page.run(luminance)
    assert ink > 600 > 150 > paper
    page.resize(1280)
    ink, paper = page.run(luminance)
    assert ink < 150 < 600 < paper


def test_paper_has_all_charts_and_no_controls(show, report, measured):
    page = show(report(*(measured(1, workload=f"case{n}") for n in range(30))))
    assert page.find(".chart:not([data-drawn])") != []
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    printed = page.browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert page.find(".chart:not([data-drawn])") == []
    assert not page.find("#filters")[0].is_displayed()


def test_noise_is_no_cliff(show, report, measured):
    rows = [measured(k, energy_mj=100.0 + k / 10) for k in range(1, 6)]  # 0.4 % apart
    page = show(report(*rows))
    heights = page.run(
        """const at = [...document.querySelectorAll('.explorer .mark')]
             .map((one) => one.getBoundingClientRect().top);
           return [Math.max(...at) - Math.min(...at),
             document.querySelector('.explorer svg').getBoundingClientRect().height]"""
    )
    assert 0 < heights[0] < 0.03 * heights[1]


def test_every_chart_has_intervals(show, report, sweep):
    page = show(report(*sweep))
    for kind in ("front", "edp", "explorer"):
        page.choose("figure", "energy (mJ)")
        assert page.find(f".{kind} svg .whisker"), kind
    assert "±" in page.find(".heat td")[0].text


def test_the_heat_map_has_every_kernel_and_cap(show, report, sweep):
    page = show(report(*sweep))
    page.choose("workload", "case1")
    (table,) = [one for one in page.find("table.shades") if one.is_displayed()]
    assert [head.text for head in table.find_elements("css selector", "thead th")] == [
        "kernel",
        *("200W", "450W", "700W"),
    ]
    cells = [cell.text for cell in table.find_elements("css selector", "td")]
    assert len(cells) == 3 * len(CAPS)
    assert cells[0] == "best"
    assert all(cell.startswith("+") for cell in cells[1:])


VERDICTS: dict[str, Any] = {
    "why": None,
    "passed": False,
    "enforced": True,
    "summary": "1 WORSE, 1 SAME; intervals extend by -1.0 % and +0.5 % (median): FAILED",
    "doubts": [],
    "unmatched": [],
}


def verdict(kernel: str, change: float, word: str, **more: Any) -> dict[str, Any]:
    return {
        "workload": "case1",
        "kernel": kernel,
        "cap": "450W",
        "cache": "hot",
        "metric": "edp",
        "label": f"case1-{kernel}-450W",
        "verdict": word,
        "limit": 0.05,
        "change": change,
        "interval": [change - 0.01, change + 0.01],
        "reasons": [],
        "fails": word == "WORSE",
        **more,
    }


def test_the_worst_verdict_is_on_the_first_screen(show, report, measured):
    judged = [verdict("k02", 0.2, "WORSE"), verdict("k01", 0.001, "SAME")]
    page = show(
        report(measured(1), measured(2)),
        report(measured(1), measured(2)),
        verdicts={**VERDICTS, "judgements": judged},
    )
    headline = page.find("#verdicts .headline")[0]
    assert headline.text.startswith(
        "failed case1-k02-450W EDP +20.0 % [+19.0 %, +21.0 %] WORSE is the worst."
    )
    assert headline.location["y"] < page.find("#best")[0].location["y"]
    assert page.column("verdict", "#judgements") == ["WORSE", "SAME"]
    assert "WORSE" in page.column("verdict", "#differences")
    bars = page.find("#judgements svg.bar")
    assert bars[0].get_attribute("aria-label") == "case1-k02-450W edp +20.0 % [+19.0 %, +21.0 %]"
    assert page.complaints == []


def test_a_small_change_has_a_small_bar(show, report, measured):
    small = verdict("k01", 0.004, "SAME", interval=[0.003, 0.005])
    page = show(
        report(measured(1)), report(measured(1)), verdicts={**VERDICTS, "judgements": [small]}
    )
    drawn = page.run(
        """const bar = document.querySelector('svg.bar');
           const [, at] = bar.querySelector('.value').getAttribute('d').match(/M([\\d.]+)/);
           return Number(at)"""
    )
    assert 100 < drawn < 105  # of 100 to 200


def test_without_verdicts_the_reason_is_told(show, report, measured):
    page = show(
        report(measured(1)),
        report(measured(1)),
        verdicts={"why": "They are of different GPUs.", "judgements": []},
    )
    assert "There are no verdicts: They are of different GPUs." in page.find("#verdicts")[0].text
    assert page.column("baseline", "#differences") != []


def trend(values: list[float | None], **more: Any) -> dict[str, Any]:
    count = len(values)
    metric = {
        "values": values,
        "low": [None if value is None else value * 0.99 for value in values],
        "high": [None if value is None else value * 1.01 for value in values],
        "changes": [{"run": "r1", "relative": 0.2, "p": 0.01}],
    }
    return {
        "workload": "case1",
        "kernel": "k01",
        "cap": "450W",
        "cache": "hot",
        "gpu_uuid": "GPU-1",
        "item": "",
        "runs": [[f"r{n}", f"2026-01-0{n + 1}T00:00:00+00:00"] for n in range(count)],
        "flags": [["host_gaps"] if n == 1 else [] for n in range(count)],
        "metrics": {"time": metric, "energy": metric, "edp": metric},
        **more,
    }


def test_figures_over_runs_are_a_line_with_intervals(show, report, measured):
    page = show(report(measured(1)), trend=[trend([50.0, 60.0, 61.0])])
    assert page.complaints == []
    assert len(page.find("#trend svg .series")) == 1
    assert len(page.find("#trend svg .mark")) == 3
    assert page.find("#trend svg .whisker")
    assert page.column("change", "#trend") == ["+20.0 %"] * 3
    page.find("#filters [name=search]")[0].send_keys("k99")
    assert not page.find("#trend figure")[0].is_displayed()


def test_a_trend_that_there_is_not_is_told(show, report, measured):
    assert (
        "No kernel was measured in two"
        in show(report(measured(1)), trend=[]).find("#trend")[0].text
    )
    assert not show(report(measured(1))).find("#trend")[0].is_displayed()


def test_a_long_table_shows_more_on_request(show, report, measured):
    page = show(report(*(measured(k, node_id=f"item{k}") for k in range(1, 260))))
    assert len(page.column("kernel")) == 200
    (more,) = [one for one in page.find("#measurements .more") if one.is_displayed()]
    assert more.text == "Show 59 more of 259"
    more.click()
    assert len(page.column("kernel")) == 259


def test_the_roofline_is_drawn_where_the_peaks_are_known(show, report, sweep):
    declared = [
        replace(
            one, workload=replace(one.workload, parameters={"kind": "conv2d", "dtype": "float32"})
        )
        for one in sweep
    ]
    page = show(report(*declared))
    assert len(page.find(".roofline .roof-line")) == 1
    assert len(page.find(".roofline .mark")) == len(sweep)
    assert show(report(*declared, gpu_name="Some other GPU")).find(".roofline") == []
