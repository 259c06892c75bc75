"""`gpuenergy replay` of a small language model on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuenergy.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""A model whose attention, unlike BLOOM's in transformers 5.17, copies no number to the GPU."""


@pytest.fixture(scope="module")
def report(
    transformers: None,  # noqa: ARG001 -- it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Of one replay."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run = str(folder / "run")
    sizes = ("--prompt-tokens", "256", "--new-tokens", "2")
    assert main(["profile", str(folder), *sizes, "--out", run]) == 0
    assert main(["replay", run, "--brief"]) == 0
    return json.loads(Path(run, "results/gpu_energy_report.json").read_text())


def test_almost_all_gpu_time_is_replayed(report):
    assert all(one["coverage"] > 0.99 for one in report["accounts"])


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("level", ["graph", "eager", "layers"])
def test_each_step_is_measured_as_a_whole(report, step, level):
    (found,) = [one for one in report["accounts"] if (one["step"], one["level"]) == (step, level)]
    assert found["energy_mj"] > 0
    assert found["time_ms"] > 0


def test_a_step_takes_no_less_as_launched_by_the_host_than_as_a_graph(report):
    times = {(one["step"], one["level"]): one["time_ms"] for one in report["accounts"]}
    assert all(times[step, "eager"] > 0.9 * times[step, "graph"] for step in (0, 1))


def test_a_step_that_copies_from_the_host_is_captured():
    torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
    from pytest_gpuenergy.devices import GraphRepeater
    from pytest_gpuenergy.replay import FunctionProgram, capture_step

    value = torch.ones(2, 2, device="cuda")

    def compute() -> Any:
        number = torch.tensor(2.0, device="cuda", dtype=torch.float16)
        return value[[1]] + torch.tensor([1.0, 3.0], device="cuda") + number

    with torch.inference_mode():
        program = FunctionProgram(name="tests:compute", function=compute)
        whole, levels = capture_step(program, compute, 0)
        replays = GraphRepeater(levels["graph"])
        found = replays.relaunch(0, lambda returned: returned.zero_(), once=False)
        assert found.tolist() == [[4.0, 6.0]]
        with pytest.raises(RuntimeError, match="during CUDA graph capture"):
            GraphRepeater([whole])
