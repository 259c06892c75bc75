"""Measures what a model's head takes in a prefill: alone, after gaps, and after the layers.

    python studies/head_clocks.py bloom-560m --json head-clocks.json

Needs a GPU, CuPy, PyTorch and transformers. The head takes most of what is outside of the layers,
and the power limit slows it down when it is repeated. Each measurement is a graph of the head with
something before it, whose own energy is measured as well; notes of the clock stand around the head,
see `step_clocks`. Results are written after each measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from step_clocks import MODELS, study_of
from study_command import study_parser

_GAPS = (134, 15, 45, 268)
"""The numbers of gaps before the head, each of about 20 µs."""


def main() -> int:
    """Measure the head of a model; see the module's documentation."""
    parser = study_parser(__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    from pytest_gpuenergy.replay import capture_step
    from pytest_gpuenergy.replay.play.turns import gap
    from pytest_gpuenergy.replay.profile.programs import Prompt

    with study_of(options.model, options.json) as (study, notes, program, gpu):
        _, levels = capture_step(program, program.inputs(Prompt(1024, 1, 1), gpu), 0)
        (step,), (layers,) = levels["graph"], levels["layers"]
        head, *_ = levels["module.lm_head"]

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
