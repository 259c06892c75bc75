"""The folder of a search as `gpuenergy optimize` leaves it, without searching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernel_specs import SCALE

from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.support.json_output import dump

KERNEL = Path("kernels/_scale")
ROOT, ONE, TWO, THREE = "s0", "s1", "s2", "s3"
_INFO = RunInfo(
    run_id="20260102T030405-abcdef",
    started="2026-01-02T03:04:05+00:00",
    host="host",
    gpu_name="NVIDIA H200",
    gpu_uuid="GPU-0",
    architecture="sm_90",
    emulated=True,
    power_limits_w={},
    software={},
    options={},
)
_GAIN = {
    "id": ONE,
    "accepted": True,
    "rounds": 6,
    "ratios": {"time": 0.75, "edp": 0.5},
    "ratio_intervals": {
        "time": {"low": 0.7, "high": 0.8},
        "edp": {"low": 0.4375, "high": 0.5625},
    },
    "reasons": ["it drifts"],
}


def _node(name: str, parent: str | None, cost: float | None) -> dict[str, Any]:
    outcome = "correctness" if cost is None else "correct"
    place = {"id": name, "parent": parent, "move": "a_move" if parent else ""}
    return {**place, "outcome": outcome, "cost": cost, "time_ms": cost}


def write_search(out: Path, root: str = ROOT, one: str = ONE) -> Path:
    """Write the results of a search with four states to ``out``; returns that.

    Args:
        out: the folder.
        root: id of the baseline.
        one: id of the best variant, made from it. `TWO`, made from that, failed; to `THREE`, moves
            lead from both.
    """
    for name in ("baseline", *(f"variants/{each}" for each in (one, TWO, THREE))):
        (out / KERNEL / name).mkdir(parents=True)
    (out / KERNEL / "spec.json").write_text(json.dumps(SCALE))
    (out / KERNEL / "baseline/run.json").write_text(dump(_INFO))
    (out / KERNEL / "variants" / one / "candidate.diff").write_text("-a\n+b\n")
    wrong = {"outcome": "correctness", "message": "3 elements of y are wrong."}
    (out / KERNEL / "variants" / TWO / "result.json").write_text(json.dumps(wrong))
    edge = {"label": "a", "child": THREE, "gain": None, "kind": "a", "draw": 0.5}
    identity = {"spec": "", "gpu": "NVIDIA H200", "emulated": True, "power_limit_w": 700.0}
    state = {
        "schema_version": 1,
        "identity": {**identity, "objective": "edp", "seed": 0},
        "builds": 3,
        "nodes": [
            *(_node(root, None, 4.0), _node(one, root, 2.0)),
            *(_node(TWO, one, None), _node(THREE, root, 8.0)),
        ],
        "incumbent": one,
        "finished": True,
        "gains": [{**_GAIN, "id": one}],
        "graph": {
            "proposed": 4,
            "nodes": {
                root: {"number": 0, "visits": 4, "edges": [{**edge, "child": one}, edge]},
                one: {"number": 1, "visits": 2, "edges": [edge]},
            },
        },
    }
    (out / KERNEL / "search_state.json").write_text(json.dumps(state))
    return out
