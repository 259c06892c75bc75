"""A small language model on two real GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.opening import count_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


@pytest.fixture(scope="module")
def run(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of one profile and replay."""
    if count_gpus() < 2:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("replay")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run = folder / "run"
    sizes = ("--prompt-tokens", "256", "--new-tokens", "2")
    assert main(["profile", str(folder), *sizes, "--tp", "2", "--out", str(run)]) == 0
    assert main(["replay", str(run), "--brief"]) == 0
    return run


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_exchanges_end_within_microseconds_on_both(run):
    _, other = read(run / "exchanges.json")["clocks"]
    assert other["spread_us"] < 20


def test_all_exchanges_are_there_with_what_ranks_waited(run):
    found = read(run / "exchanges.json")["exchanges"]
    assert len(found) >= 2 * 2 * 2  # layers, halves of a layer, steps
    assert all(min(one["waiting_us"]) == 0 for one in found)


def test_almost_all_gpu_time_is_replayed_on_both(run):
    report = read(run / "results/gpu_energy_report.json")
    assert {one["rank"] for one in report["accounts"]} == {0, 1}
    assert all(one["coverage"] > 0.99 for one in report["accounts"])


def test_there_is_a_sum_for_each_step_and_level(run):
    totals = read(run / "results/gpu_energy_report.json")["totals"]
    assert len(totals) == 6
    assert all(one["energy_mj"] > 0 for one in totals)
