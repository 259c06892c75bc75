"""Kernels that cheat, see `tests/search/test_cheats.py`, and what they pretend to compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from pytest_gpuenergy.engine import case_of, drawings_of
from pytest_gpuenergy.search import (
    Constant,
    KernelSpec,
    LaunchPlan,
    ScalarSpec,
    State,
    TensorSpec,
    workload_of,
)

FOLDER = Path(__file__).parent / "search/cheats"
RIGHT_BUT_READS = "recognizes_its_output"
"""A candidate with right results, which only its text gives away."""
WHOLE_BLOCKS = ({"M": 64, "N": 48, "K": 40}, {"M": 48, "N": 32, "K": 29})
"""Sizes for it: in a part of a block, so few marks may be wrong that all are right by chance."""


def source_of(name: str) -> str:
    return (FOLDER / "common.cuh").read_text() + (FOLDER / f"{name}.cu").read_text()


SPEC = KernelSpec(
    name="product",
    language="cuda",
    source=source_of("honest"),
    entry="product",
    launch=LaunchPlan(grid=("ceil_div(N, block_x)", "ceil_div(M, block_y)"), block=(16, 16)),
    arguments=("a", "b", "c", "m", "n", "k"),
    tensors=(
        TensorSpec("a", ("M", "K")),
        TensorSpec("b", ("K", "N")),
        TensorSpec("c", ("M", "N"), role="output"),
    ),
    scalars=tuple(ScalarSpec(name.lower(), "int32", name) for name in "MNK"),
    sizes=({"M": 64, "N": 48, "K": 40}, {"M": 33, "N": 31, "K": 29}),
    reference={"c": "a @ b"},
    reduction_length="K",
    flops="2 * M * N * K",
)
"""A product of matrices in float32."""
KNOWN_SEEDS = (0, 1, 2)


def candidate(name: str) -> State:
    constants: dict[str, Constant] = {}
    if name == "knows_the_seed":
        workloads = [workload_of(SPEC, sizes) for sizes in SPEC.sizes]
        drawings = drawings_of(KNOWN_SEEDS)
        cases = [case_of(one, drawing, None) for one in workloads for drawing in drawings]
        first = [np.asarray(case.inputs["a"]).flat[0] for case in cases]
        constants = {f"FIRST_{number}": float(value) for number, value in enumerate(first)}
    launch = replace(SPEC.launch, constants=constants)
    return replace(SPEC.baseline, source=source_of(name), launch=launch)
