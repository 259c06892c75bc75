"""Reads searches from disk, and gives the values that the HTML page shows of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.record import METRICS, RunInfo
from pytest_gpuenergy.report import finite
from pytest_gpuenergy.search.running.gains_summary import path_from_baseline, summarize
from pytest_gpuenergy.search.running.kernel_folder import (
    BASELINE,
    EVENTS_JSONL,
    SPEC_JSON,
    STATE_JSON,
    VARIANTS,
    SearchState,
    read_state,
)
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.spec_file import read_spec
from pytest_gpuenergy.search.validation.result import SearchNode
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    is_file,
    matching,
    read_bytes,
    read_record,
)

Values = dict[str, Any]
_MAX_BYTES = 1 << 20
"""Size of a file of a variant."""
_MAX_DIFF = 40_000
"""Characters of a diff that the page shows."""


class SearchRecord(Struct, frozen=True):
    """A search on disk that has evaluated its baseline.

    Attributes:
        folder: the folder of the kernel, ``OUTDIR/kernels/_NAME``.
        spec: the spec of the kernel.
        state: the state of the search, which may still be running.
        run: the run in which the baseline was evaluated.
    """

    folder: Path
    spec: KernelSpec
    state: SearchState
    run: RunInfo


def search_folders(named: Path) -> list[Path]:
    """Return the folders of kernels in an ``--outdir``, or the folder of a kernel itself."""
    if is_file(named / STATE_JSON):
        return [named]
    return [path for path in matching(named, "kernels/_*") if is_file(path / STATE_JSON)]


def search_files(named: Path) -> list[Path]:
    """Return the files of `search_folders` that pages and continued searches need."""
    names = (SPEC_JSON, STATE_JSON, EVENTS_JSONL, f"{BASELINE}/run.json")
    return [folder / name for folder in search_folders(named) for name in names]


def read_searches(named: Path) -> list[SearchRecord]:
    """Read the searches in an ``--outdir``, or in the folder of one kernel.

    Raises:
        InputError: no search has evaluated its baseline, or a file is damaged.
    """
    searches = []
    for folder in search_folders(named):
        state = read_state(folder / STATE_JSON)
        if state.nodes:
            path, remedy = folder / BASELINE / "run.json", "name another folder"
            run = read_record(path, "record of a run", RunInfo, _MAX_BYTES, remedy=remedy)
            searches.append(SearchRecord(folder, read_spec(folder / SPEC_JSON), state, run))
    if not searches:
        raise InputError(
            f"No search in {named} has evaluated its baseline yet: continue it with gpuenergy "
            "optimize --resume."
        )
    return searches


def search_values(search: SearchRecord) -> Values:
    """Return what the HTML page shows of a search, with its states `in_tree_order`."""
    state, identity = search.state, search.state.identity
    summed_up = summarize([(search.spec, state)])
    assert summed_up is not None  # because there is a baseline
    (summary,) = summed_up.kernels
    return {
        "name": summary.name,
        "folder": str(search.folder),
        "gpu": summary.gpu,
        "settings": identity.settings,
        "emulated": summary.emulated,
        "objective": identity.objective.label,
        "unit": identity.objective.unit,
        "seed": identity.seed,
        "builds": summary.builds,
        "correct": summary.correct,
        "finished": summary.finished,
        "incumbent": state.incumbent,
        "roofline": summary.roofline_share,
        "states": list(_states(search)),
        "gains": [
            {
                "id": gain.id,
                "accepted": gain.accepted,
                "message": gain.message,
                "unclaimed": gain.unclaimed,
                "reasons": gain.reasons,
                "rounds": gain.rounds,
                "ratios": [
                    {
                        "metric": metric.label,
                        "ratio": gain.ratios.get(metric),
                        "low": ends.low,
                        "high": ends.high,
                    }
                    for metric in METRICS
                    if (ends := gain.ratio_intervals.get(metric)) is not None
                ],
            }
            for gain in state.gains
        ],
        "changes": [
            {"id": node.id, "move": _move(node), "diff": _diff(search.folder, node)}
            for node in path_from_baseline(state.nodes, state.incumbent)
        ],
    }


def _states(search: SearchRecord) -> Iterator[Values]:
    nodes = {node.id: node for node in search.state.nodes}
    visited = {} if search.state.graph is None else search.state.graph.nodes
    order = in_tree_order({node.id: node.parent for node in nodes.values()})
    number = dict(zip(order, count()))
    others: defaultdict[str, set[int]] = defaultdict(set)  # whose moves would also have led there
    for tail, tail_node in visited.items():
        for edge in tail_node.edges or ():
            child = nodes.get(edge.child)
            if tail in nodes and child is not None and child.parent not in (tail, None):
                others[edge.child].add(number[tail])
    first = search.state.nodes[0].cost
    for id_, depth in order.items():
        node = nodes[id_]
        yield {
            "id": id_,
            "depth": depth,
            "parent": None if node.parent is None else number.get(node.parent),
            "others": sorted(others[id_]),
            "move": _move(node),
            "outcome": node.outcome,
            "message": _message(search.folder, node),
            "cost": node.cost,
            "assumed": node.assumed,
            "ratio": None if node.cost is None or not first else finite(node.cost / first),
            "time_ms": node.time_ms,
            "visits": visited[id_].visits if id_ in visited else None,
        }


def in_tree_order(parents: Mapping[str, str | None]) -> dict[str, int]:
    """Return the depths of states, each state followed by those that were made from it.

    A state whose parent is missing, or comes after it, is a root.

    Args:
        parents: the parent of each state by its id, parents before their children.
    """
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    depths: dict[str, int] = {}
    for state, parent in parents.items():
        listed_parent = parent if parent in depths else None
        children[listed_parent].append(state)
        depths[state] = 0 if listed_parent is None else depths[listed_parent] + 1
    order: dict[str, int] = {}
    waiting = children[None][::-1]
    while waiting:
        state = waiting.pop()
        order[state] = depths[state]
        waiting += children[state][::-1]
    return order


def _move(node: SearchNode) -> str:
    return f"{node.move} {node.what}".strip() or BASELINE


class _Failure(Struct, frozen=True):
    message: str | None = None


def _message(folder: Path, node: SearchNode) -> str:
    """Return why a state was refused, if that is on disk."""
    if node.cost is not None:
        return ""
    content = _content(folder, node, "result.json")
    try:
        return decode(content, _Failure).message or ""
    except FormError:
        return ""


def _diff(folder: Path, node: SearchNode) -> str:
    """Return the diff of the move, if it is on disk."""
    text = _content(folder, node, "candidate.diff").decode(errors="replace")
    if len(text) <= _MAX_DIFF:
        return text
    return f"{text[:_MAX_DIFF]}\n[the rest is in {VARIANTS}/{node.id}/candidate.diff]\n"


def _content(folder: Path, node: SearchNode, name: str) -> bytes:
    """Return the content of a variant's file; nothing if there is no such file."""
    if Path(node.id).name != node.id:  # a damaged id must not lead to another folder
        return b""
    try:
        return read_bytes(folder / VARIANTS / node.id / name, name, _MAX_BYTES)
    except InputError:
        return b""
