"""Kernel specs whose work is known, for tests of what is counted in their text."""

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.search import (
    KernelSpec,
    KernelWork,
    LaunchPlan,
    ScalarSpec,
    TensorSpec,
    count_work,
)

N = 4096


def cuda_spec(body: str, *, before: str = "", block: int = 128, **fields: Any) -> KernelSpec:
    """Return the spec of a CUDA kernel ``f(x, y, n)`` with a thread for each of N elements."""
    settings: dict[str, Any] = {
        "tensors": (TensorSpec("x", ("N",)), TensorSpec("y", ("N",), role="output")),
        "sizes": ({"N": N}, {"N": 100}),
        **fields,
    }
    head = "__global__ void f(const float* x, float* y, int n)"
    return KernelSpec(
        name="f",
        language="cuda",
        entry="f",
        source=f"{before}{head} {{\n int i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n",
        launch=LaunchPlan(grid=("ceil_div(N, block_x)",), block=(block,)),
        arguments=("x", "y", "n"),
        scalars=(ScalarSpec("n", "int32", "N"),),
        **settings,
    )


def triton_spec(body: str, *, constants: dict[str, int] | None = None) -> KernelSpec:
    """Return the spec of a Triton kernel ``f(x, y, n)`` with a program for BLOCK elements."""
    given = {"BLOCK": 256} if constants is None else constants
    parameters = "".join(f", {name}: tl.constexpr" for name in given)
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return KernelSpec(
        name="f",
        language="triton",
        entry="f",
        source=f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def f(x, y, n{parameters}):\n{lines}",
        launch=LaunchPlan(grid=("ceil_div(N, 256)",), constants=dict(given)),
        arguments=("x", "y", "n"),
        tensors=(TensorSpec("x", ("N",)), TensorSpec("y", ("N",), role="output")),
        scalars=(ScalarSpec("n", "int32", "N"),),
        sizes=({"N": N},),
    )


def counted(spec: KernelSpec) -> KernelWork:
    """Return the work of a spec's baseline, whose text must be understood."""
    found = count_work(spec.baseline, spec)
    assert found is not None
    return found
