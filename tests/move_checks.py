"""Specs of kernels that moves rewrite, and their verification on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.search import (
    MOVES,
    Application,
    KernelSpec,
    LaunchPlan,
    Move,
    ScalarSpec,
    State,
    TensorSpec,
    evaluate,
)
from pytest_gpuenergy.workloads import Contract, ErrorBound, Scalar, Tensor

Reference = Callable[[Mapping[str, Any]], Mapping[str, Any]]
BOUND = ErrorBound(1e-4, 1e-4)


def move_named(name: str) -> Move:
    """Return the move of a name."""
    return next(move for move in MOVES if move.name == name)


def spec_of(
    source: str,
    tensors: Iterable[str],
    *,
    scalars: Iterable[str] = (),
    grid: Iterable[int | str] = (1,),
    block: Iterable[int] = (64,),
    sizes: Iterable[dict[str, int]] = ({},),
    entry: str = "kernel",
    dtypes: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    **named: Any,
) -> KernelSpec:
    """A spec of CUDA text, or of Triton's if ``language`` says so.

    A tensor is ``name[expression, ...]``, and an output after ``>``; a scalar is ``name``, an
    integer of the size of that name in capitals. The arguments are tensors, then scalars.
    """
    parsed = [_tensor(text, dtypes or {}) for text in tensors]
    plan = LaunchPlan(tuple(grid), tuple(block), constants=dict(constants or {}))
    names = (*(tensor.name for tensor in parsed), *scalars)
    language = named.pop("language", "cuda")
    return KernelSpec(
        name="moved",
        language=language,
        entry=entry,
        launch=plan,
        arguments=names,
        tensors=tuple(parsed),
        scalars=tuple(ScalarSpec(name, "int32", name.upper()) for name in scalars),
        sizes=tuple(sizes),
        source=source,
        **named,
    )


def _tensor(text: str, dtypes: Mapping[str, str]) -> TensorSpec:
    role = "output" if text.startswith(">") else "input"
    name, _, shape = text.lstrip("> ").rstrip("]").partition("[")
    sizes = tuple(part.strip() for part in shape.split(","))
    return TensorSpec(name, sizes, dtypes.get(name, "float32"), role)  # type: ignore[arg-type]


def results(move: Move | str, spec: KernelSpec, state: State | None = None) -> list[Application]:
    """All applications of a move, by default to the baseline."""
    move = move_named(move) if isinstance(move, str) else move
    return list(move.applications(state or spec.baseline, spec))


def whats(move: Move | str, spec: KernelSpec, state: State | None = None) -> list[str]:
    """What all applications of a move do."""
    return [one.what for one in results(move, spec, state)]


def only(move: Move | str, spec: KernelSpec, what: str = "", state: State | None = None) -> State:
    """The result of the one application that ``what`` describes."""
    found = [one for one in results(move, spec, state) if what in one.what]
    assert len(found) == 1, whats(move, spec, state)
    return found[0].state


def check(
    state: State,
    spec: KernelSpec,
    compute: Reference,
    *,
    zeroed: str = "",
    init: Mapping[str, tuple[float, float]] | None = None,
    bound: ErrorBound | None = BOUND,
) -> None:
    """Verify a state with all sets of sizes on the emulated GPU."""
    with EmulatedDevice() as gpu:
        for sizes in spec.sizes:
            names = {**sizes, **state.launch.constants}
            tensors = tuple(
                Tensor(t.name, tuple(evaluate(size, names) for size in t.shape), t.dtype, t.role)
                for t in spec.tensors
            )
            values = tuple(
                Scalar(s.name, s.dtype, evaluate(s.value, names))  # type: ignore[arg-type]
                for s in spec.scalars
            )
            contract = Contract(
                "moved", tensors, compute, values=values, init=dict(init or {}), bound=bound
            )
            kernel, first = _kernel(state, spec, names, tensors, zeroed), sizes == spec.sizes[0]
            verify_on_device(gpu, kernel, contract, seeds=(0, 1), measured=first)


def _kernel(
    state: State, spec: KernelSpec, names: dict[str, Any], tensors: tuple[Tensor, ...], zeroed: str
) -> Kernel:
    plan = state.launch
    grid = [evaluate(size, names) for size in (*plan.grid, 1, 1, 1)[:3]]
    x, y, z = (*plan.block, 1, 1, 1)[:3]
    macros = "".join(f"#define {name} {value}\n" for name, value in plan.constants.items())
    launch = Launch(
        spec.entry,
        (grid[0], grid[1], grid[2]),
        (x, y, z),
        spec.arguments,
        evaluate(plan.shared_bytes, names),
    )
    if not zeroed:
        return Kernel(macros + state.source, (launch,))
    (output,) = (tensor for tensor in tensors if tensor.name == zeroed)
    count = int(np.prod(output.shape))
    kind = {"float32": "float", "int32": "int", "uint32": "unsigned int"}[output.dtype]
    clear = (
        f"\n__global__ void clear({kind}* out) {{"
        f" for (int i = threadIdx.x; i < {count}; i += 64) out[i] = 0; }}\n"
    )
    first = Launch("clear", (1, 1, 1), (64, 1, 1), (zeroed,))
    return Kernel(macros + state.source + clear, (first, launch))
