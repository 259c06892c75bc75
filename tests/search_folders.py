"""The folder of a search as `gpuenergy optimize` leaves it, without searching."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kernel_specs import BUDGET, SCALE
from report_fixtures import a_run

from pytest_gpuenergy.search.running import kernel_folder
from pytest_gpuenergy.support import dump

KERNEL = Path("kernels/_scale")
ROOT, ONE, TWO, THREE = "s0", "s1", "s2", "s3"
_INFO = a_run()
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


@contextmanager
def disk_with_room(files: int) -> Iterator[Callable[[], bool]]:
    """Searches can write so many files; yields what tells whether they wanted to write more."""
    real: Callable[..., None] = kernel_folder.write_atomically
    left = files

    def write_if_there_is_room(*arguments: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_folder, "write_atomically", write_if_there_is_room)
        yield lambda: left < 0


_KILLED = """
import os, signal, sys
from pytest_gpuenergy.search.running import kernel_folder
from pytest_gpuenergy.support.worker import Worker
from pytest_gpuenergy.cli import main

left = int(sys.argv[1])
real_write, real_call = kernel_folder.write_atomically, Worker.call

def write(*arguments, **named):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    real_write(*arguments, **named)

def call(worker, *arguments, **named):
    worker.start()
    os.write(1, f"{worker.pid}\\n".encode())  # in one piece: there are two threads
    return real_call(worker, *arguments, **named)

kernel_folder.write_atomically, Worker.call = write, call
sys.exit(main(sys.argv[2:]))
"""
"""A search that is killed before it writes one of its files; it prints its GPUs' processes."""


def search_killed_at(files: int, spec: Path, out: Path, *options: str) -> set[int]:
    """Kill a search before it writes one file more; return the ids of its GPUs' processes."""
    words = ["optimize", str(spec), "--outdir", str(out), "--budget-builds", str(BUDGET), *options]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(files), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL
    return set(map(int, done.stdout.split()))
