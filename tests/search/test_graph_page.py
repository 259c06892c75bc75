"""``graph.html``, the graph of a search as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_specs import SCALE, state_of
from msgspec import convert
from msgspec.structs import replace

from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.search import graph_record
from pytest_gpuenergy.search.graph_record import Edge, GraphRecord
from pytest_gpuenergy.search.graph_view.layout import places
from pytest_gpuenergy.search.graph_view.page import graph_page
from pytest_gpuenergy.search.search_state import Gain, Identity, Node, SearchState
from pytest_gpuenergy.search.spec import KernelSpec

if TYPE_CHECKING:
    from conftest import Searched

SPEC = convert(SCALE, KernelSpec)
BASELINE = SPEC.baseline.id
GAIN = Gain(
    id="s2",
    accepted=True,
    rounds=6,
    ratios={Metric.EDP: 0.5},
    ratio_intervals={Metric.EDP: Interval(0.4375, 0.5625)},
    reasons=("it drifts",),
)


def node(name: str, parent: str | None, cost: float | None, **fields: Any) -> Node:
    outcome = "correctness" if cost is None else "correct"
    found = Node(id=name, parent=parent, outcome=outcome, cost=cost, time_ms=cost, move="a_move")
    return replace(found, **fields)


def state(**fields: Any) -> SearchState:
    identity = Identity(
        spec="", gpu="NVIDIA H200", emulated=True, power_limit_w=700, objective="edp", seed=0
    )
    nodes = (
        node(BASELINE, None, 4.0, move=""),
        node("s1", BASELINE, 3.0),
        node("s2", "s1", 2.0),
        node("s3", "s1", None),
        node("s4", BASELINE, 8.0),
    )
    found = SearchState(
        identity=replace(identity, objective=Metric.EDP),
        builds=4,
        nodes=nodes,
        incumbent="s2",
        finished=True,
        gains=(GAIN,),
    )
    return replace(found, **fields)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def classes(self) -> dict[str, str]:
        """The kind of each state that is drawn."""
        return {
            str(one["id"]).removeprefix("node-"): str(one["class"])
            for tag, one in self.tags
            if tag == "a" and str(one.get("class")).startswith("node ")
        }

    def hrefs(self) -> list[str]:
        return [str(one["href"]) for _, one in self.tags if "href" in one]

    def ids(self) -> set[str]:
        return {str(one["id"]) for _, one in self.tags if "id" in one}

    def count(self, tag: str, class_: str) -> int:
        return sum((tag, class_) == (name, one.get("class")) for name, one in self.tags)


def test_states_are_drawn_by_what_became_of_them() -> None:
    assert Page(graph_page(SPEC, state())).classes() == {
        BASELINE: "node baseline",
        "s1": "node better",
        "s2": "node better best",
        "s3": "node failed",
        "s4": "node other",
    }


def test_each_state_leads_to_its_row_and_each_row_to_its_state_and_files() -> None:
    page = Page(graph_page(SPEC, state()))
    local = {href[1:] for href in page.hrefs() if href.startswith("#")}
    assert local <= page.ids()
    assert {f"row-{name}" for name in ("s1", "s2", "s3", "s4", BASELINE)} <= local
    files = {href for href in page.hrefs() if not href.startswith("#")}
    assert files == {"baseline/", *(f"variants/s{number}/" for number in range(1, 5))}


def test_lines_are_the_moves_that_were_made_and_dashed_ones_the_others() -> None:
    assert Page(graph_page(SPEC, state())).count("path", "made") == 4
    nodes = {
        BASELINE: graph_record.Node(0, edges=[Edge("a", "s1", None, "a", 0.0)], visits=7),
        "s1": graph_record.Node(1, edges=[Edge("b", "s4", None, "b", 0.0)], visits=5),
        "s4": graph_record.Node(2, edges=[Edge("c", "never", None, "c", 0.0)]),
    }
    page = Page(graph_page(SPEC, state(), GraphRecord(nodes, 3)))
    assert (page.count("path", "made"), page.count("path", "other")) == (4, 1)
    assert {"visits", "7", "5"} <= set(page.texts)


def test_gains_have_their_intervals() -> None:
    texts = Page(graph_page(SPEC, state())).texts
    assert {"0.5000", "[0.4375, 0.5625]", "better; it drifts"} <= set(texts)
    message = Gain(id="s2", accepted=False, rounds=0, message="It was wrong.")
    assert "It was wrong." in Page(graph_page(SPEC, state(gains=(message,)))).texts
    assert "No variant has been compared." in Page(graph_page(SPEC, state(gains=()))).texts


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "The best is s2."),
        ({"incumbent": BASELINE}, "The baseline remains the best."),
        ({"finished": False}, "The best figure so far is that of s2."),
    ],
)
def test_the_outcome_is_told(fields: dict[str, Any], said: str) -> None:
    assert said in Page(graph_page(SPEC, state(**fields))).texts


def test_figures_of_an_emulated_gpu_are_marked() -> None:
    badge = "emulated: no figure here is measured"
    assert badge in Page(graph_page(SPEC, state())).texts
    real = replace(state().identity, emulated=False)
    assert badge not in Page(graph_page(SPEC, state(identity=real))).texts


@given(
    st.sampled_from(["<script>alert(1)</script>", '"><img src=x onerror=a()>', "&lt;", "]]>"])
    | st.text()
)
def test_no_name_becomes_code(name: str) -> None:
    nodes = tuple(replace(one, move=name, what=name) for one in state().nodes)
    gain = replace(GAIN, reasons=(name,))
    identity = replace(state().identity, gpu=name)
    text = graph_page(SPEC, state(nodes=nodes, gains=(gain,), identity=identity))
    assert text.encode()
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert not any(key.startswith("on") or key == "style" for _, one in page.tags for key in one)
    assert all(href.startswith(("#", "variants/s", "baseline/")) for href in page.hrefs())
    assert [tag for tag, _ in page.tags] == [
        tag for tag, _ in Page(graph_page(SPEC, plain_copy())).tags
    ]


def plain_copy() -> SearchState:
    """The state of the test above with harmless names."""
    nodes = tuple(replace(one, move="m", what="w") for one in state().nodes)
    return state(nodes=nodes)


def test_nothing_is_loaded_or_run() -> None:
    text = graph_page(SPEC, state())
    assert re.search(r"default-src 'none'; style-src 'sha256-[\w+/=]+'; base-uri 'none'", text)
    assert "http:" not in text
    assert "https:" not in text
    assert "prefers-color-scheme: dark" in text


@given(st.lists(st.integers(0, 30), max_size=40))
def test_no_two_states_are_drawn_at_the_same_place(parents: list[int]) -> None:
    tree: dict[str, str | None] = {"n0": None}
    for number, parent in enumerate(parents, start=1):
        tree[f"n{number}"] = f"n{parent % number}"
    found = places(tree)
    assert set(found) == set(tree)
    assert len(set(found.values())) == len(tree)
    for name, parent_name in tree.items():
        if parent_name is not None:
            assert found[name].column == found[parent_name].column + 1


def test_a_long_chain_is_drawn() -> None:
    tree = {f"n{number}": f"n{number - 1}" if number else None for number in range(5000)}
    assert places(tree)["n4999"] == (4999, 0)


@pytest.mark.slow
def test_a_search_writes_its_page(searched: Searched) -> None:
    page = Page((searched.out / "kernels/_scale/graph.html").read_text())
    assert set(page.classes()) == {one["id"] for one in state_of(searched.out)["nodes"]}
