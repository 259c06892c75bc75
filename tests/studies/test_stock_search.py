"""The process of TVM's own tuner, as far as it goes without a GPU: its journal and its refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import stock_search

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.tuning import Trial


def journal(path: Path) -> list[Trial]:
    return [Trial(**json.loads(line)) for line in path.read_text().splitlines()]


def test_a_trial_that_ran_has_the_mean_of_its_times(tmp_path):
    stock_search.Journal(tmp_path / "trials.jsonl").note("runtime", [1e-4, 3e-4], None)
    (trial,) = journal(tmp_path / "trials.jsonl")
    assert trial.good
    assert trial.time_ms == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("stage", "error", "outcome"),
    [
        ("runtime", "LocalRunner: An exception occurred\nCUDA error", "runtime"),
        ("compile", "LocalBuilder: An exception occurred\nnvcc fatal", "compile"),
        ("runtime", "LocalRunner: Timeout, killed after 30 seconds\n", "timeout"),
        ("compile", "LocalBuilder: Timeout, killed after 30.0 seconds", "timeout"),
    ],
)
def test_a_trial_that_failed_says_how(tmp_path, stage, error, outcome):
    log = stock_search.Journal(tmp_path / "trials.jsonl")
    log.note("runtime", [1e-4], None)
    log.note(stage, None, "backtrace " * 100 + error)
    trial = journal(tmp_path / "trials.jsonl")[1]
    assert (trial.index, trial.outcome, trial.time_ms) == (1, outcome, None)
    assert trial.message is not None
    assert trial.message.endswith(error.split()[-1])
    assert len(trial.message) <= 300


def search(folder: Path) -> int:
    return stock_search.main(
        [
            *("--case", "case7", "--trials", "5", "--threads", "3"),
            *("--out", str(folder), "--gpu-device", "emulated"),
        ]
    )


@pytest.fixture
def real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated GPU, which does not say so."""

    def unmarked(spec: str) -> Device:
        device = open_device(spec)
        device.emulated = False
        return device

    monkeypatch.setattr(stock_search, "open_device", unmarked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("real_gpu")
def test_it_searches_on_the_gpu_that_was_named(tmp_path, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(stock_search, "NEEDED", ())
    monkeypatch.setattr(stock_search, "tvm_operator", lambda _: Mock(**{"module.return_value": 7}))
    monkeypatch.setattr(stock_search, "cuda_target", lambda architecture: architecture)
    monkeypatch.setattr(stock_search, "search", lambda *arguments: seen.extend(arguments))
    assert search(tmp_path / "out") == 0
    assert seen == [7, "sm_90", 5, 3, 0, tmp_path / "out"]
    assert os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert (tmp_path / "out").is_dir()
