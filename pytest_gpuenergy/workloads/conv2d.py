"""Two-dimensional convolution, NCHW float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.workloads.workload import Array, ErrorBound, Tensor, Workload

_SCRATCH_BYTES = 1 << 26


@dataclass(frozen=True)
class Conv2dShape:
    """[N, H, W, CO, CI, KH, KW, stride, padding], sizes in elements."""

    N: int
    H: int
    W: int
    CO: int
    CI: int
    KH: int
    KW: int
    strides: int
    padding: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "padding" else 1
            if type(value) is not int or value < least:
                raise InputError(
                    f"conv2d needs {field.name} to be an integer of at least {least}, "
                    f"not {value!r}."
                )
        if self.OH < 1 or self.OW < 1:
            raise InputError(
                f"conv2d with a {self.KH}x{self.KW} window does not fit the padded input of "
                f"{self.H + 2 * self.padding}x{self.W + 2 * self.padding}."
            )

    @property
    def OH(self) -> int:  # noqa: N802 -- the literature's name
        """Output height."""
        return (self.H + 2 * self.padding - self.KH) // self.strides + 1

    @property
    def OW(self) -> int:  # noqa: N802
        """Output width."""
        return (self.W + 2 * self.padding - self.KW) // self.strides + 1

    @property
    def label(self) -> str:
        """File-name form: ``N_1_H_272_..._strides_1_padding_1``."""
        return "_".join(f"{field.name}_{getattr(self, field.name)}" for field in fields(self))


@dataclass(frozen=True)
class Conv2d(Workload):
    """Cross-correlation of ``data`` (N,CI,H,W) with ``weight`` (CO,CI,KH,KW), zero padded.

    The output ``output`` is (N,CO,OH,OW) with OH = (H + 2 padding - KH) // stride + 1.
    """

    name: str
    shape: Conv2dShape

    @classmethod
    def of(cls, name: str, *sizes: int) -> Conv2d:
        """From the nine numbers N, H, W, CO, CI, KH, KW, stride, padding.

        Raises:
            InputError: a number is missing or out of range.
        """
        if len(sizes) != len(fields(Conv2dShape)):
            raise InputError(
                f"conv2d takes the nine numbers N,H,W,CO,CI,KH,KW,stride,padding, not {len(sizes)}."
            )
        return cls(name, Conv2dShape(*sizes))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        s = self.shape
        return (
            Tensor("data", (s.N, s.CI, s.H, s.W), "float32", "input"),
            Tensor("weight", (s.CO, s.CI, s.KH, s.KW), "float32", "input"),
            Tensor("output", (s.N, s.CO, s.OH, s.OW), "float32", "output"),
        )

    @property
    def parameters(self) -> Mapping[str, int | str]:
        values = {field.name: getattr(self.shape, field.name) for field in fields(self.shape)}
        return {"kind": "conv2d", **values, "layout": "NCHW", "dtype": "float32"}

    @property
    def flops(self) -> int:
        """2 N CO OH OW CI KH KW: a multiplication and an addition for each tap."""
        s = self.shape
        return 2 * s.N * s.CO * s.OH * s.OW * s.CI * s.KH * s.KW

    @property
    def error_bound(self) -> ErrorBound:
        return ErrorBound.for_reduction(self.shape.CI * self.shape.KH * self.shape.KW)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        """By im2col and a matrix product, a block of output rows at a time to bound the memory."""
        s = self.shape
        data = inputs["data"].astype(np.float64)
        margin = (s.padding, s.padding)
        data = np.pad(data, ((0, 0), (0, 0), margin, margin))
        weight = inputs["weight"].astype(np.float64).reshape(s.CO, -1)
        taps = np.lib.stride_tricks.sliding_window_view(data, (s.KH, s.KW), axis=(2, 3))
        taps = taps[:, :, :: s.strides, :: s.strides]
        output = np.empty((s.N, s.CO, s.OH, s.OW))
        rows = max(1, _SCRATCH_BYTES // (8 * weight.shape[1] * s.OW))
        for n in range(s.N):
            for top in range(0, s.OH, rows):
                block = taps[n, :, top : top + rows].transpose(0, 3, 4, 1, 2)
                columns = block.reshape(weight.shape[1], -1)
                output[n, :, top : top + rows] = (weight @ columns).reshape(s.CO, -1, s.OW)
        return {"output": output}
