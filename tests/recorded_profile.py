"""A profile of BLOOM-560M with the figures of its calls, for tests that replay it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

BLOOM = Path(__file__).parents[1] / "bench/profiles/bloom-560m"
STEPS = ((0, 8.1, 4400.0), (1, 2.1, 520.0))
"""Number, ms and mJ of the whole steps, which are made up."""


def copy_with_steps(run: Path) -> Path:
    """A copy of the bundled profile in ``run``, which tests may change, with `STEPS`."""
    shutil.copytree(BLOOM, run)
    path = run / "results/measurements.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"step' not in line]
    for step, time_ms, energy_mj in STEPS:
        whole = json.loads(lines[0])
        whole["workload"]["parameters"]["replays"] = f"step{step}-graph"
        whole |= {"time_ms": time_ms, "raw_energy_mj": energy_mj, "energy_mj": energy_mj}
        whole["power_w"] = energy_mj / time_ms
        lines.append(json.dumps(whole))
    path.write_text("\n".join(lines))
    return run
