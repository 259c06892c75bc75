"""Kernel specs for tests: small ones, which take no time; and searches of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuenergy.cli import main

SOURCE = """
__global__ void scale(const float* x, float* y, float by, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  for (int i = first; i < first + ITEMS && i < n; ++i) y[i] = by * x[i];
}
"""
SCALE: dict[str, Any] = {
    "schema_version": 1,
    "name": "scale",
    "language": "cuda",
    "source": SOURCE,
    "entry": "scale",
    "launch": {
        "grid": ["ceil_div(N, block_x * ITEMS)"],
        "block": [32],
        "constants": {"ITEMS": 4},
    },
    "arguments": ["x", "y", "by", "n"],
    "tensors": [
        {"name": "x", "shape": ["N"]},
        {"name": "y", "shape": ["N"], "role": "output"},
    ],
    "scalars": [
        {"name": "by", "dtype": "float32", "value": 2.5},
        {"name": "n", "dtype": "int32", "value": "N"},
    ],
    "sizes": [{"N": 4000}, {"N": 501}],
    "reference": {"y": "by * x"},
    "flops": "N",
}
"""Multiplies a vector."""


def spec_with(**fields: Any) -> dict[str, Any]:
    """`SCALE` with other fields; those that are None are left out."""
    return {name: value for name, value in {**SCALE, **fields}.items() if value is not None}


def launch_with(**fields: Any) -> dict[str, Any]:
    """The launch of `SCALE` with other fields."""
    return {**SCALE["launch"], **fields}


def write(folder: Path, spec: dict[str, Any] = SCALE) -> Path:
    """Write a spec to a folder."""
    path = folder / f"{spec.get('name', 'spec')}.json"
    path.write_text(json.dumps(spec))
    return path


BUDGET = 2


def optimize(spec: Path, out: Path, *options: str) -> int:
    """The exit code of a search on the emulated GPU, of `BUDGET` variants by default."""
    words = ["optimize", str(spec), "--outdir", str(out), "--gpus", "emulated:h200"]
    return main([*words, "--budget-builds", str(BUDGET), *options])


def state_of(out: Path, name: str = "scale") -> Any:
    """The state of a search on disk."""
    return json.loads((out / f"kernels/_{name}/search_state.json").read_text())


def events_of(out: Path, name: str = "scale") -> list[Any]:
    """The events of a search on disk."""
    lines = (out / f"kernels/_{name}/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


class Searched(NamedTuple):
    """A search of `SCALE` for the smallest EDP that nothing has disturbed.

    Attributes:
        out: its folder, not to be changed.
        printed: on standard output.
    """

    out: Path
    printed: str
