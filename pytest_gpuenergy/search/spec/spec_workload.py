"""A spec with one set of sizes, as the workload on which variants are verified and measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from pytest_gpuenergy.record import Peaks
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, ScalarSpec, TensorSpec
from pytest_gpuenergy.search.spec.reference import ReferenceExpressions
from pytest_gpuenergy.search.spec.sizes import evaluate
from pytest_gpuenergy.search.spec.tensors import fixed_input, tensor_layout
from pytest_gpuenergy.workloads import (
    Array,
    Contract,
    Edges,
    ErrorBound,
    Scalar,
    Tensor,
    is_floating,
    repeated,
)

_MAX_NAME_LENGTH = 100
"""Characters of a workload's name; sizes that are longer are replaced by a hash."""
Compute = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class SpecWorkload(Contract):
    """The workload of a spec's kernel with one set of sizes.

    Attributes:
        fixed: the inputs that are the same for all seeds, as buffers.
        tensor_cores: whether kernels may use tensor cores.
        moved_bytes: the least memory traffic of one launch; None if each tensor moves once.
    """

    fixed: Mapping[str, Array] = field(default_factory=dict, hash=False, compare=False)
    tensor_cores: bool = False
    moved_bytes: int | None = None

    @property
    def allows_tensor_cores(self) -> bool:
        return self.tensor_cores

    @property
    def bytes_moved(self) -> int:
        return super().bytes_moved if self.moved_bytes is None else self.moved_bytes

    def make_inputs(self, seed: int) -> dict[str, Array]:
        beginnings = self.draw_inputs(seed)
        return {one.name: repeated(beginnings[one.name], one.shape) for one in self.inputs}

    def draw_inputs(self, seed: int, edges: Edges | None = None) -> dict[str, Array]:
        return {**self._beginnings(seed, edges), **self.fixed}


def workload_of(
    spec: KernelSpec, sizes: Mapping[str, int], compute: Compute | None = None
) -> SpecWorkload:
    """Return the workload of a checked spec with one of its sets of sizes.

    Args:
        spec: the spec.
        sizes: one of its sets of sizes.
        compute: the reference of a spec without expressions, see `BaselineOutputs`. Both it and a
            kernel then have rounding errors, so the bound is doubled.
    """
    names = {**sizes, **spec.launch.constants}
    layouts = {tensor.name: tensor_layout(tensor, names) for tensor in spec.tensors}
    scalars = tuple(evaluated_scalar(scalar, names) for scalar in spec.scalars)
    if compute is None:
        by_name = {scalar.name: scalar.value for scalar in scalars}
        compute = ReferenceExpressions(spec.reference, {**names, **by_name}, layouts)
    length = evaluate(spec.reduction_length, names)
    low_precision = any(is_floating(t.dtype) and t.dtype != "float32" for t in spec.tensors)
    return SpecWorkload(
        name=sized_name(spec, sizes),
        contract=tuple(
            Tensor(
                tensor.name,
                layouts[tensor.name].buffer_shape,
                tensor.dtype,
                tensor.role,
                _bound(spec, tensor, length) if tensor.is_written else None,
            )
            for tensor in spec.tensors
        ),
        compute=compute,
        flops=evaluate(spec.flops, names),
        values=scalars,
        reduction_length=length,
        init={
            tensor.name: (tensor.low, tensor.high)
            if is_floating(tensor.dtype)
            else (int(tensor.low), int(tensor.high))
            for tensor in spec.tensors
            if tensor.init in ("uniform", "randint") and tensor.is_read and tensor.data is None
        },
        fixed={
            tensor.name: layout.buffer(values)
            for tensor in spec.tensors
            if tensor.is_read
            and (values := fixed_input(tensor, (layout := layouts[tensor.name]).shape)) is not None
        },
        tensor_cores=spec.tensor_cores or low_precision,
        moved_bytes=None if spec.bytes_moved is None else evaluate(spec.bytes_moved, names),
    )


def sized_name(spec: KernelSpec, sizes: Mapping[str, int]) -> str:
    """Return the name of the workload with these sizes, such as ``softmax-ROWS64-COLUMNS1000``."""
    parts = "-".join(f"{name}{value}" for name, value in sizes.items())
    if len(spec.name) + len(parts) >= _MAX_NAME_LENGTH:
        parts = hashlib.sha256(parts.encode()).hexdigest()[:12]
    return f"{spec.name}-{parts}" if parts else spec.name


def block_names(block: tuple[int, ...]) -> dict[str, int]:
    """Return the threads of a block by the names that expressions of a launch use for them."""
    names = ("block_x", "block_y", "block_z")
    return {name: threads or 1 for name, threads in zip_longest(names, block)}


def evaluated_scalar(scalar: ScalarSpec, names: Mapping[str, object]) -> Scalar:
    """Return a scalar with these sizes and constants.

    Raises:
        InputError: the value cannot be computed, or its type cannot represent it.
    """
    value: bool | int | float
    value = evaluate(scalar.value, names) if isinstance(scalar.value, str) else scalar.value
    if isinstance(value, float) and value.is_integer() and "int" in scalar.dtype:
        value = int(value)  # JSON has one type of numbers
    return Scalar(scalar.name, scalar.dtype, value)


def _bound(spec: KernelSpec, tensor: TensorSpec, length: int) -> ErrorBound | None:
    """Return the error bound of an output; None if `Contract` derives it."""
    if tensor.bound is not None or tensor.steps is not None:
        own = tensor.bound or 0.0
        return ErrorBound(own, own, steps=tensor.steps or 0)
    if not is_floating(tensor.dtype):
        return None
    if spec.tolerance is not None:
        return ErrorBound(spec.tolerance, spec.tolerance)
    if spec.reference:
        return None
    usual = ErrorBound.for_reduction(length, tensor.dtype)
    return ErrorBound(2 * usual.max_relative, 2 * usual.normwise)


def floor_ms(workload: SpecWorkload, peaks: Peaks | None) -> float:
    """Return the least time of one of many launches, in ms, by a card's bandwidth and arithmetic.

    Data that fits in the L2 need not move. Arithmetic counts only if tensor cores, whose peak is
    many times higher, are not allowed. The result is 0 if the card's peaks are unknown.
    """
    if peaks is None:
        return 0.0
    memory_ms = peaks.memory_ms(max(0, workload.bytes_moved - peaks.l2_bytes))
    flops = 0 if workload.allows_tensor_cores else workload.flops
    return max(memory_ms, peaks.compute_ms(flops) or 0.0)
