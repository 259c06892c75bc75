"""A kernel search on two real GPUs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.opening import count_gpus
from pytest_gpuenergy.support import Worker

pytestmark = pytest.mark.gpu
SPEC = Path(__file__).parents[2] / "bench/search/kernels/softmax.json"
BUDGET = 8


def search(out: Path, *options: str) -> int:
    words = ["optimize", str(SPEC), "--no-llm", "--outdir", str(out), "--gpus", "0,1"]
    return main([*words, "--budget-builds", str(BUDGET), *options])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one search, in which one process is killed."""
    if count_gpus() < 2:
        pytest.skip("needs two GPUs")
    out = tmp_path_factory.mktemp("search") / "out"
    calls: list[str] = []
    real = Worker.call

    def call(worker: Worker, method: str, *arguments: Any, timeout_s: Any = None) -> Any:
        if method == "run":
            calls.append(method)
            if len(calls) == 4 and worker.pid is not None:
                os.kill(worker.pid, signal.SIGKILL)
        return real(worker, method, *arguments, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "call", call)
        assert search(out) == 0
    assert len(calls) >= 4, "no process was killed"
    return out / "kernels/_softmax"


def test_both_gpus_evaluate_variants_one_killed_process_or_not(found):
    state = read(found / "search_state.json")
    assert state["finished"]
    assert state["builds"] == BUDGET
    results = [read(path) for path in found.glob("variants/*/result.json")]
    assert len({one["gpu"] for one in results}) == 2
    assert {one["outcome"] for one in results} == {"correct"}


def test_cards_of_one_model_differ_by_some_percent(found):
    scales = [read(path)["scale"] for path in found.glob("variants/*/result.json")]
    assert all(0.7 < scale < 1.4 for scale in scales)


def test_the_best_is_compared_with_the_baseline_on_one_card(found):
    gain = read(found / "search_state.json")["gains"][-1]
    assert gain["message"] == ""
    assert gain["accepted"]


def test_it_goes_on_with_one_gpu(found):
    out = found.parents[1]
    more = ("--resume", "--gpus", "0", "--budget-builds", str(BUDGET + 1))
    assert search(out, *more) == 0
    assert read(found / "search_state.json")["builds"] == BUDGET + 1
