"""Searches on the HTML page: what ``gpuenergy report`` and a bench show of their graphs."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from kernel_specs import state_of
from search_folders import KERNEL, ONE, ROOT, THREE, TWO, write_search

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report import Report, html_page
from pytest_gpuenergy.search import in_tree_order, read_searches, search_values

Capsys = pytest.CaptureFixture[str]


class Page(HTMLParser):
    """The tags of a page, and the data that it shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name == "src" for name, _ in attrs)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.tags[-1] == "script":
            self.scripts[-1] += data

    @property
    def searches(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.scripts[0])["searches"]
        return found


def page_of(tmp_path: Path, *runs: Path) -> Page:
    path = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "--html", str(path)]) == 0
    return Page(path.read_text())


def change(out: Path, **fields: Any) -> None:
    """Change the state of a search on disk."""
    path = out / KERNEL / "search_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def states_of(search: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in search["states"]}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a search with a failed variant of a variant, and two paths to a third one."""
    return write_search(tmp_path / "out")


def test_states_follow_what_they_were_made_from(out, tmp_path):
    (search,) = page_of(tmp_path, out).searches
    assert [(state["id"], state["depth"], state["parent"]) for state in search["states"]] == [
        *((ROOT, 0, None), (ONE, 1, 0), (TWO, 2, 1), (THREE, 1, 0))
    ]
    states = states_of(search)
    assert (states[THREE]["others"], states[ONE]["others"]) == ([1], [])
    assert states[ROOT]["visits"] == 4
    assert states[ROOT]["assumed"] is False
    assert states[ONE]["ratio"] == 0.5


def test_a_failure_has_its_reason_and_the_best_its_diffs(out, tmp_path):
    (search,) = page_of(tmp_path, out).searches
    assert states_of(search)[TWO]["message"] == "3 elements of y are wrong."
    assert search["changes"] == [{"id": ONE, "move": "a_move", "diff": "-a\n+b\n"}]


def test_gains_have_their_intervals(out, tmp_path):
    (search,) = page_of(tmp_path, out).searches
    (gain,) = search["gains"]
    assert gain["ratios"] == [
        {"metric": "time", "ratio": 0.75, "low": 0.7, "high": 0.8},
        {"metric": "EDP", "ratio": 0.5, "low": 0.4375, "high": 0.5625},
    ]
    assert gain["reasons"] == ["it drifts"]
    assert search["emulated"] is True


def test_a_kernels_own_folder_will_do_and_is_shown_once(out, tmp_path):
    folders = (out / KERNEL, out)
    assert [one["name"] for one in page_of(tmp_path, *folders).searches] == ["scale"]


def test_a_search_that_goes_on_is_shown(out, tmp_path):
    nodes = state_of(out)["nodes"][:2]
    change(out, nodes=nodes, graph=None, finished=False, gains=[], incumbent=nodes[0]["id"])
    (search,) = page_of(tmp_path, out).searches
    assert (len(search["states"]), search["finished"], search["changes"]) == (2, False, [])


def test_without_an_output_the_gains_are_printed(out, capsys):
    assert main(["report", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "of roofline" in printed
    assert "1 kernel improved" in printed


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--csv", "tree"), "--csv is of measurements, and "),
        (("--mean",), "--mean is of measurements, and "),
        (("--html", "{out}/kernels/_scale/spec.json"), "is also an input"),
    ],
)
def test_what_searches_alone_cannot_give_is_told(out, capsys, option, said):
    words = (word.format(out=out) for word in option)
    assert main(["report", str(out), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("search_state.json", "{", "The state of a search * cannot be used"),
        ("baseline/run.json", "{}", "The record of a run * cannot be used"),
        ("spec.json", "[]", "The kernel spec * cannot be used"),
    ],
)
def test_damaged_files_are_named(out, capsys, name, content, said):
    (out / KERNEL / name).write_text(content)
    assert main(["report", str(out)]) == 2
    first, last = said.split(" * ")
    error = capsys.readouterr().err
    assert first in error
    assert last in error


def test_a_search_without_a_baseline_is_told(out, capsys):
    change(out, nodes=[])
    assert main(["report", str(out)]) == 2
    assert "has evaluated its baseline yet" in capsys.readouterr().err


def test_an_id_leads_to_no_other_folder(out, tmp_path):
    (tmp_path / "candidate.diff").write_text("secret")
    nodes = state_of(out)["nodes"][:2]
    nodes[1]["id"] = str(tmp_path)
    change(out, nodes=nodes, incumbent=str(tmp_path), graph=None)
    (search,) = page_of(tmp_path, out).searches
    assert search["changes"][0]["diff"] == ""


HOSTILE = st.sampled_from(
    ["</script><script>alert(1)</script>", '"><img src=x onerror=a()>', "<!--", "&lt;"]
) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\u2028\u2029"), max_size=20
)


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=HOSTILE, message=HOSTILE)
def test_no_name_or_message_becomes_code(out, name, message):
    state = state_of(out)
    nodes = [{**one, "move": name, "what": message} for one in state["nodes"]]
    gain = {"id": name, "accepted": False, "rounds": 0, "message": message}
    change(out, nodes=nodes, gains=[gain], identity={**state["identity"], "gpu": name})
    failed = nodes[2]["id"]
    path = out / KERNEL / "variants" / failed / "result.json"
    path.write_text(json.dumps({"message": message}))
    (out / KERNEL / "variants" / nodes[1]["id"] / "candidate.diff").write_text(name, newline="")
    (search,) = read_searches(out)
    values = search_values(search)
    page = Page(html_page(Report(search.run, ()), searches=[values]))
    plain = Page(html_page(Report(search.run, ())))
    assert page.tags == plain.tags
    assert page.scripts[1:] == plain.scripts[1:]
    (shown,) = page.searches
    assert states_of(shown)[failed]["message"] == message
    assert shown["gains"][0]["id"] == name
    assert shown["changes"][0]["diff"] == name


@given(st.lists(st.integers(0, 30), max_size=40))
def test_every_state_is_listed_below_what_it_was_made_from(parents):
    tree: dict[str, str | None] = {"n0": None}
    for number, parent in enumerate(parents, start=1):
        tree[f"n{number}"] = f"n{parent % number}"
    found = in_tree_order(tree)
    order = list(found)
    assert set(order) == set(tree)
    for name, above in tree.items():
        if above is not None:
            assert found[name] == found[above] + 1
            between = order[order.index(above) + 1 : order.index(name)]
            assert all(found[one] >= found[name] for one in between)


def test_a_long_chain_is_listed():
    tree = {f"n{number}": f"n{number - 1}" if number else None for number in range(5000)}
    assert in_tree_order(tree)["n4999"] == 4999


def test_states_without_a_known_parent_are_roots():
    assert in_tree_order({"a": "b", "b": None, "c": "lost"}) == {"a": 0, "b": 0, "c": 0}


def test_a_link_overwrites_no_file_of_a_search(out, tmp_path):
    state = out / KERNEL / "search_state.json"
    before = state.read_bytes()
    link = tmp_path / "page.html"
    link.symlink_to(state)
    assert main(["report", str(out), "--html", str(link)]) == 2
    assert state.read_bytes() == before


@pytest.mark.slow
def test_a_search_and_its_page_have_the_same_states(searched, tmp_path):
    (search,) = page_of(tmp_path, searched.out).searches
    state = state_of(searched.out)
    assert set(states_of(search)) == {one["id"] for one in state["nodes"]}
    assert [one["id"] for one in search["gains"]] == [one["id"] for one in state["gains"]]
    assert not search["changes"] or search["changes"][-1]["diff"].startswith("--- a/")
