"""Measures what a model's head takes in a prefill: alone, after gaps, and after the layers.

    python studies/head_clocks.py bloom-560m --json head-clocks.json

Needs a GPU, CuPy, PyTorch and transformers. The head takes most of what is outside of the layers,
and the power limit slows it down when it is repeated. Each measurement is a graph of the head with
something before it, whose own energy is measured as well; notes of the clock stand around the head,
see `step_clocks`. Results are written after each measurement.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from account_models import CONFIGS
from step_clocks import Notes, Study
from study_command import study_parser

from pytest_gpuenergy.control import CURRENT
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.replay.profile.language_models import BUILT_IN

_GAPS = (134, 15, 45, 268)
"""The numbers of gaps before the head, each of about 20 µs."""


def main() -> int:
    """Measure the head of a model; see the module's documentation."""
    parser = study_parser(__doc__)
    parser.add_argument("model", choices=sorted({*CONFIGS, *BUILT_IN}))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gpu-device", default="auto")
    options = parser.parse_args()
    import torch

    from pytest_gpuenergy.replay import capture_step, load_model
    from pytest_gpuenergy.replay.play.turns import gap
    from pytest_gpuenergy.replay.profile.programs import Prompt

    with (
        open_device(options.gpu_device) as device,
        Station(device) as station,
        station.under(CURRENT) as enforced,
        torch.inference_mode(),
    ):
        harness = station.harness(cache="hot", min_launches=0)
        gpu = f"cuda:{device.ordinal}" if hasattr(device, "ordinal") else "cpu"
        with tempfile.TemporaryDirectory() as folder, harness.heating():
            if options.model in CONFIGS:
                Path(folder, "config.json").write_text(json.dumps(CONFIGS[options.model]))
            program = load_model(folder if options.model in CONFIGS else options.model, device=gpu)
        notes = Notes()
        _, levels = capture_step(program, program.inputs(Prompt(1024, 1, 1), gpu), 0)
        (step,), (layers,) = levels["graph"], levels["layers"]
        head, *_ = levels["module.lm_head"]
        study = Study(harness, enforced, notes, options.json)

        def measure(name: str, before: Callable[[], object], times: int = 1) -> None:
            def noted() -> object:
                for _ in range(times):
                    before()
                notes()
                returned = head()
                notes()
                return returned

            study.measure(name, [noted], ["before", "head"].copy)

        study.measure("gap", [gap])
        study.measure("layers", [layers])
        study.measure("step", [step])
        measure("head", gap, 0)
        measure("head after layers", layers)
        for number in _GAPS:
            measure(f"head after {number} gaps", gap, number)
        study.measure("layers again", [layers])
    return 0


if __name__ == "__main__":
    sys.exit(main())
