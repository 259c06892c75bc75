"""`gpuenergy profile` of a small language model on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
CONFIG = {"model_type": "bloom", "vocab_size": 512, "hidden_size": 256, "n_layer": 2, "n_head": 4}
SMALL = ("--prompt-tokens", "64", "--new-tokens", "3")


@pytest.fixture(scope="module")
def run(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of one profile."""
    folder = tmp_path_factory.mktemp("profile")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert main(["profile", str(folder), *SMALL, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_kernels_have_phases_layers_and_launch_plans(run):
    lines = (run / "unique_kernels_compute.jsonl").read_text().splitlines()
    kernels = [one for one in map(json.loads, lines) if one["work"] == "kernel"]
    assert {one["phase"] for one in kernels} >= {"prefill", "decode"}
    assert {layer for one in kernels for layer in one["layers"]} == {0, 1}
    assert all(one["grid"] and one["block"] and one["registers"] for one in kernels)


def test_almost_all_gpu_time_can_be_replayed(run):
    found = json.loads((run / "kernel_signatures.json").read_text())
    assert found["time_coverage"] > 0.99
    assert {one["tier"] for one in found["signatures"]} >= {2, 3}


def test_power_samples_are_on_the_clock_of_the_trace(tmp_path, run):
    model, out = str(run.parent), tmp_path / "long"
    assert main(["profile", model, *SMALL, "--runs", "50", "--out", str(out)]) == 0
    power = json.loads((out / "profile.json").read_text())["power"]
    assert power["error_us"] < 100
    assert 0 <= power["stamp_lag_us"] < 200_000
    lines = (out / "kernel_launch_params.jsonl").read_text().splitlines()
    launches = [json.loads(one) for one in lines]
    rows = (out / "power.csv").read_text().splitlines()[1:]
    times_us = [float(row.split(",")[0]) for row in rows]
    assert len(times_us) == power["samples"]
    begin_us, end_us = launches[0]["begin_us"], launches[-1]["begin_us"]
    assert any(begin_us < one < end_us for one in times_us)


def test_an_export_makes_the_same_calls(tmp_path, run, capsys):
    model, file = str(run.parent), str(tmp_path / "model.pt")
    first, again = tmp_path / "first", tmp_path / "again"
    assert main(["profile", model, *SMALL, "--out", str(first), "--export", file]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "exported to" in one]
    same, _, calls = line.partition(": ")[2].partition(" calls")[0].partition(" of ")
    # transformers 5 makes a tensor of a number in each step, by a copy from the host. An export has
    # it as a constant, which is copied on the GPU.
    assert int(calls) - 3 <= int(same) <= int(calls) != 0
    assert main(["profile", file, "--out", str(again)]) == 0
    kernels = [
        {json.loads(one)["name"] for one in path.read_text().splitlines()}
        for path in (folder / "unique_kernels_compute.jsonl" for folder in (first, again))
    ]
    assert all(name.startswith("Memcpy") for name in kernels[0] ^ kernels[1])
    assert kernels[0] & kernels[1]
