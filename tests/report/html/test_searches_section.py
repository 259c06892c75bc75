"""The graphs of searches on the page, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuenergy.record import KernelInfo

pytestmark = pytest.mark.browser
HOSTILE = "</script><img src=x onerror=pwned=1>" + "x" * 300
PHONE = 400


def state(id_: str, parent: int | None, depth: int, **fields: Any) -> dict[str, Any]:
    place = {"id": id_, "parent": parent, "depth": depth, "others": [], "move": f"move {id_}"}
    figures = {"cost": 1.0, "ratio": 0.5, "time_ms": 1.0, "visits": 3, "message": ""}
    return {**place, "outcome": "correct", **figures, **fields}


def search(**fields: Any) -> dict[str, Any]:
    failed = {"cost": None, "ratio": None, "outcome": "correctness", "message": HOSTILE}
    states = [state("s0", None, 0), state("s1", 0, 1, move=HOSTILE), state("s2", 1, 2, **failed)]
    ratio = {"metric": "EDP", "ratio": 0.5, "low": 0.4, "high": 0.6}
    gain = {"id": "s1", "accepted": True, "message": "", "reasons": [], "rounds": 6}
    return {
        "name": "scale",
        "folder": "out/kernels/_scale",
        "gpu": "NVIDIA H200",
        "settings": " under 700 W",
        "emulated": True,
        "objective": "EDP",
        "unit": "mJ·ms",
        "seed": 0,
        "builds": 3,
        "correct": 2,
        "finished": True,
        "roofline": [0.1, 0.2],
        "baseline": "s0",
        "incumbent": "s1",
        "gains": [{**gain, "ratios": [ratio]}],
        "states": [*states, state("s3", 0, 1, others=[1], ratio=2.0)],
        "changes": [{"id": "s1", "move": HOSTILE, "diff": f"-a\n+{HOSTILE}\n"}],
        **fields,
    }


def test_a_search_alone_is_a_page(show, report):
    page = show(report(), searches=[search()])
    assert [one.text for one in page.find("h2") if one.text] == ["Searches", "This run"]
    assert [one.get_attribute("class") for one in page.find(".states a")] == [
        *("baseline", "better", "failed", "other")
    ]
    assert "1 search for better kernels" in page.find("header")[0].text
    assert page.run("return window.pwned") is None
    assert page.complaints == []


def test_assumed_figures_are_named_so_and_are_no_gain(show, report):
    states = [state("s0", None, 0, ratio=1.0), state("s1", 0, 1, assumed=True)]
    page = show(report(), searches=[search(states=states, gains=[], incumbent="s0")])
    assert [one.get_attribute("class") for one in page.find(".states a")] == ["baseline", "other"]
    assert ["(assumed)" in one.text for one in page.find(".states a")] == [False, True]
    assert page.complaints == []


def test_what_was_measured_stands_beside_the_variant(show, report, measured):
    kernel = KernelInfo("k01", "0" * 64, "search", details={"state": "s1"})
    page = show(report(measured(1, kernel=kernel)), searches=[search()])
    cells = page.column("measured here", "#searches")
    assert sum("k01" in one for one in cells) == 1


def test_several_are_closed_at_first(show, report):
    page = show(report(), searches=[search(), search(name="other")])
    assert [one.get_attribute("open") for one in page.find("details.search")] == [None, None]


def test_states_are_used_with_the_keyboard(show, report):
    page = show(report(), searches=[search()])
    page.run("document.querySelectorAll('.states a')[3].focus()")
    assert len(page.find(".others path")) == 1
    page.press("ENTER")
    assert page.run("return document.querySelector('tr:target').textContent").startswith("s3")
    page.press("TAB")
    page.press("ENTER")
    assert page.run("return document.querySelector(':target').id") == "state-0-3"


def test_every_state_has_a_name_that_tells_how_it_was_reached(show, report):
    page = show(report(), searches=[search()])
    names = [one.get_attribute("aria-label") for one in page.find(".states a")]
    assert names[3] == "s3: x2.000, move s3, made from s0, other moves lead here from s1"
    assert names[1].endswith("made from s0, best")
    nameless = page.run(
        "return [...document.querySelectorAll('#searches :is([role=region], table)')]"
        ".filter((one) => !one.getAttribute('aria-label')).length"
    )
    assert nameless == 0


def test_a_phone_shows_it_without_scrolling_sideways(show, report):
    deep = [state(f"s{n}", n - 1 if n else None, n) for n in range(60)]
    page = show(report(), searches=[search(states=deep)])
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    page.resize(PHONE, dark=True)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE
    wider = page.run(
        "return [...document.querySelectorAll('#searches .scroll')]"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    )
    assert wider == 0
    last = page.find(".states a")[-1]
    room = page.run(
        "return arguments[0].clientWidth - parseFloat(getComputedStyle(arguments[0]).paddingLeft)",
        last,
    )
    assert room > PHONE / 3
