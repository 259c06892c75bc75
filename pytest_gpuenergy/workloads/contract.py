"""A workload given by its inputs and outputs and a function that computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.workloads.workload import Array, ErrorBound, Scalar, Tensor, Workload


@dataclass(frozen=True)
class Contract(Workload):
    """What a kernel of your own computes.

    Args:
        name: in item records; letters, digits, ``-`` and ``_``.
        contract: inputs, then outputs, each a `Tensor`; inputs are standard normal (integers: 0
            to 127).
        compute: takes the inputs by name, as float64 for floating-point tensors, and returns the
            outputs by name.
        flops: floating-point operations of one run.
        values: arguments passed by value.
        reduction_length: how many products the kernel adds up for one output; sets the error
            bound, see `ErrorBound.for_reduction`.

    Raises:
        InputError: two tensors share a name, there is no output, or a tensor has no elements or
            a type that is not understood.
    """

    name: str
    contract: tuple[Tensor, ...]
    compute: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    flops: int = 0
    values: tuple[Scalar, ...] = ()
    reduction_length: int = 1

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.contract] + [value.name for value in self.values]
        if len(set(names)) != len(names):
            raise InputError(f"Two arguments of workload {self.name!r} share a name.")
        if not self.outputs:
            raise InputError(f"Workload {self.name!r} needs a tensor with the role 'output'.")
        for tensor in self.contract:
            _check(tensor, self.name)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.contract

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.values

    @property
    def parameters(self) -> Mapping[str, int | str]:
        shapes = {t.name: f"{t.dtype}[{','.join(map(str, t.shape))}]" for t in self.contract}
        return {"kind": "contract", **shapes, **{s.name: str(s.value) for s in self.values}}

    @property
    def error_bound(self) -> ErrorBound:
        kinds = [np.dtype(t.dtype) for t in self.contract if np.dtype(t.dtype).kind == "f"]
        if not kinds:
            return ErrorBound(0.0, 0.0)  # integers are exact
        coarsest = max((kind.name for kind in kinds), key=lambda name: np.finfo(name).eps)
        return ErrorBound.for_reduction(self.reduction_length, coarsest)

    @property
    def digest(self) -> None:
        """None: a function's meaning has no hash, so nothing about it is remembered."""
        return

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        wide = {
            name: value.astype(np.float64) if value.dtype.kind == "f" else value
            for name, value in inputs.items()
        }
        results = self.compute(wide)
        outputs = {}
        for tensor in self.outputs:
            if tensor.name not in results:
                raise InputError(
                    f"The reference of workload {self.name!r} does not return {tensor.name!r}."
                )
            value = np.asarray(results[tensor.name], dtype=np.float64)
            if value.shape != tensor.shape:
                raise InputError(
                    f"The reference of workload {self.name!r} returns {tensor.name!r} with shape "
                    f"{value.shape} instead of {tensor.shape}."
                )
            outputs[tensor.name] = value
        return outputs


def _check(tensor: Tensor, workload: str) -> None:
    where = f"Tensor {tensor.name!r} of workload {workload!r}"
    try:
        known = np.dtype(tensor.dtype).kind in "fiub"
    except TypeError:
        known = False
    if not known:
        raise InputError(
            f"{where} has the type {tensor.dtype!r}: give one such as float32, float16 or int32."
        )
    if any(type(size) is not int or size < 1 for size in tensor.shape):
        raise InputError(
            f"{where} has the shape {tensor.shape!r}: give sizes that are integers of at least 1."
        )
