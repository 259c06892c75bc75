"""Two-dimensional convolutions in NCHW float32: shapes, the reference, bundled networks, text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.bounds import ErrorBound
from pytest_gpuenergy.workloads.number_types import Array, whole
from pytest_gpuenergy.workloads.workload import (
    Tensor,
    Workload,
    WorkloadKind,
    check_parameter_names,
)

_SCRATCH_BYTES = 1 << 26
_MAX_ELEMENTS = (1 << 31) - 1
"""The most elements of one tensor, because kernels use 32-bit indices."""


@dataclass(frozen=True)
class Conv2dShape:
    """[N, H, W, CO, CI, KH, KW, stride, padding, dilation, groups], sizes in elements.

    Raises:
        InputError: a number is out of range, the groups do not divide the channels, the window
            does not fit the padded input, or a tensor is too large.
    """

    N: int
    H: int
    W: int
    CO: int
    CI: int
    KH: int
    KW: int
    strides: int
    padding: int
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = whole(getattr(self, field.name)), 0 if field.name == "padding" else 1
            object.__setattr__(self, field.name, value)
            if type(value) is not int or value < least:
                raise InputError(
                    f"conv2d needs {field.name} to be an integer of at least {least}, "
                    f"not {value!r}."
                )
        if self.CO % self.groups or self.CI % self.groups:
            raise InputError(
                f"conv2d needs groups to divide CO and CI, but {self.groups} does not divide "
                f"{self.CO} and {self.CI}."
            )
        if self.OH < 1 or self.OW < 1:
            dilated = f" dilated by {self.dilation}" if self.dilation > 1 else ""
            raise InputError(
                f"conv2d with a {self.KH}x{self.KW} window{dilated} does not fit the padded input "
                f"of {self.H + 2 * self.padding}x{self.W + 2 * self.padding}."
            )
        largest = max(map(prod, (self.data, self.weight, self.output)))
        if largest > _MAX_ELEMENTS:
            raise InputError(
                "conv2d has a tensor with more elements than 32-bit indices can address: "
                "choose smaller sizes."
            )

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of a dilated window: dilation (KH - 1) + 1, and likewise for KW."""
        return self.dilation * (self.KH - 1) + 1, self.dilation * (self.KW - 1) + 1

    @property
    def OH(self) -> int:  # noqa: N802 -- the literature's name
        """Output height."""
        return (self.H + 2 * self.padding - self.window[0]) // self.strides + 1

    @property
    def OW(self) -> int:  # noqa: N802
        """Output width."""
        return (self.W + 2 * self.padding - self.window[1]) // self.strides + 1

    @property
    def data(self) -> tuple[int, int, int, int]:
        """Shape of the input: (N, CI, H, W)."""
        return self.N, self.CI, self.H, self.W

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Shape of the weight: (CO, CI/groups, KH, KW)."""
        return self.CO, self.CI // self.groups, self.KH, self.KW

    @property
    def output(self) -> tuple[int, int, int, int]:
        """Shape of the output: (N, CO, OH, OW)."""
        return self.N, self.CO, self.OH, self.OW

    @property
    def reduction_length(self) -> int:
        """Products added up for one output: CI/groups KH KW."""
        return prod(self.weight[1:])

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers by name, in order; dilation and groups only if they are not 1.

        Labels, reports and record files write a shape in this form, which is older than dilation
        and groups.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name not in ("dilation", "groups") or value != 1
        }

    @property
    def label(self) -> str:
        """File-name form: ``N_1_H_272_..._strides_1_padding_1``."""
        return "_".join(f"{name}_{value}" for name, value in self.sizes.items())


@dataclass(frozen=True)
class Conv2d(Workload):
    """Cross-correlation of ``data`` (N,CI,H,W) with ``weight`` (CO,CI/groups,KH,KW), zero padded.

    The output ``output`` is (N,CO,OH,OW) with
    OH = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1, and likewise for OW.
    """

    kind: ClassVar[str] = "conv2d"

    name: str
    shape: Conv2dShape

    @classmethod
    def of(cls, name: str, *sizes: int) -> Conv2d:
        """From N, H, W, CO, CI, KH, KW, stride, padding and, optionally, dilation and groups.

        Raises:
            InputError: a number is missing or out of range.
        """
        if not 9 <= len(sizes) <= 11:
            raise InputError(
                "conv2d takes the nine numbers N,H,W,CO,CI,KH,KW,stride,padding, then dilation "
                f"and groups if they are not 1, not {len(sizes)} numbers."
            )
        return cls(name, Conv2dShape(*sizes))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            Tensor("data", self.shape.data, "float32", "input"),
            Tensor("weight", self.shape.weight, "float32", "input"),
            Tensor("output", self.shape.output, "float32", "output"),
        )

    @property
    def parameters(self) -> Mapping[str, int | str]:
        return {"kind": self.kind, **self.shape.sizes, "layout": "NCHW", "dtype": "float32"}

    @property
    def signature(self) -> str:
        """``conv2d_N_1_H_272_..._strides_1_padding_1``; layout and dtype are always the same."""
        return f"{self.kind}_{self.shape.label}"

    @property
    def flops(self) -> int:
        """2 N CO OH OW CI/groups KH KW: one multiplication and one addition per tap."""
        return 2 * prod(self.shape.output) * self.shape.reduction_length

    @property
    def error_bound(self) -> ErrorBound:
        return ErrorBound.for_reduction(self.shape.reduction_length)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        """By im2col and a matrix product, a block of output rows at a time to bound the memory."""
        s = self.shape
        margin = (s.padding, s.padding)
        data = np.pad(inputs["data"].astype(np.float64), ((0, 0), (0, 0), margin, margin))
        weight = inputs["weight"].astype(np.float64).reshape(s.groups, s.CO // s.groups, -1)
        # Every tap of every output, (N, CI, OH, OW, KH, KW), as a view.
        taps = np.lib.stride_tricks.sliding_window_view(data, s.window, axis=(2, 3))
        taps = taps[:, :, :: s.strides, :: s.strides, :: s.dilation, :: s.dilation]
        output = np.empty_like(data, shape=s.output)
        rows = max(1, _SCRATCH_BYTES // (8 * s.CI * s.KH * s.KW * s.OW))
        for n in range(s.N):
            for top in range(0, s.OH, rows):
                block = taps[n, :, top : top + rows].transpose(0, 3, 4, 1, 2)
                columns = block.reshape(s.groups, weight.shape[2], -1)
                output[n, :, top : top + rows] = (weight @ columns).reshape(s.CO, -1, s.OW)
        return {"output": output}


NETWORKS: dict[str, tuple[Conv2d, ...]] = {
    # N, H, W, CO, CI, KH, KW, stride, padding[, dilation[, groups]]
    "cases": (
        Conv2d.of("case1", 1, 272, 272, 64, 32, 3, 3, 1, 1),
        Conv2d.of("case2", 1, 68, 68, 256, 128, 3, 3, 1, 1),
        Conv2d.of("case3", 1, 34, 34, 512, 256, 3, 3, 1, 1),
        Conv2d.of("case4", 1, 17, 17, 1024, 512, 3, 3, 1, 1),
        Conv2d.of("case5", 1, 56, 56, 64, 64, 3, 3, 1, 1),
        Conv2d.of("case6", 1, 28, 28, 128, 128, 3, 3, 1, 1),
        Conv2d.of("case7", 1, 14, 14, 256, 256, 3, 3, 1, 1),
    ),
    "resnet": (
        Conv2d.of("resnet01", 1, 224, 224, 64, 3, 7, 7, 2, 3),
        Conv2d.of("resnet02", 1, 56, 56, 64, 64, 1, 1, 1, 0),
        Conv2d.of("resnet03", 1, 56, 56, 64, 64, 3, 3, 1, 1),
        Conv2d.of("resnet04", 1, 56, 56, 256, 64, 1, 1, 1, 0),
        Conv2d.of("resnet05", 1, 56, 56, 128, 256, 1, 1, 2, 0),
        Conv2d.of("resnet06", 1, 28, 28, 128, 128, 3, 3, 1, 1),
        Conv2d.of("resnet07", 1, 28, 28, 512, 128, 1, 1, 1, 0),
        Conv2d.of("resnet08", 1, 28, 28, 256, 512, 1, 1, 2, 0),
        Conv2d.of("resnet09", 1, 14, 14, 256, 256, 3, 3, 1, 1),
        Conv2d.of("resnet10", 1, 14, 14, 1024, 256, 1, 1, 1, 0),
        Conv2d.of("resnet11", 1, 14, 14, 512, 1024, 1, 1, 2, 0),
        Conv2d.of("resnet12", 1, 7, 7, 512, 512, 3, 3, 1, 1),
        Conv2d.of("resnet13", 1, 7, 7, 2048, 512, 1, 1, 1, 0),
    ),
    "yolo": (
        Conv2d.of("yolo00", 1, 544, 544, 32, 3, 3, 3, 1, 1),
        Conv2d.of("yolo02", 1, 272, 272, 64, 32, 3, 3, 1, 1),
        Conv2d.of("yolo04", 1, 136, 136, 128, 64, 3, 3, 1, 1),
        Conv2d.of("yolo05", 1, 136, 136, 64, 128, 1, 1, 1, 0),
        Conv2d.of("yolo08", 1, 68, 68, 256, 128, 3, 3, 1, 1),
        Conv2d.of("yolo09", 1, 68, 68, 128, 256, 1, 1, 1, 0),
        Conv2d.of("yolo12", 1, 34, 34, 512, 256, 3, 3, 1, 1),
        Conv2d.of("yolo13", 1, 34, 34, 256, 512, 1, 1, 1, 0),
        Conv2d.of("yolo18", 1, 17, 17, 1024, 512, 3, 3, 1, 1),
        Conv2d.of("yolo19", 1, 17, 17, 512, 1024, 1, 1, 1, 0),
    ),
}
"""Convolutions of ResNet at 224x224 and YOLO at 544x544, and the seven cases taken from both."""


_MIN_NUMBERS = 9  # dilation and groups may be left out
_SIZES = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9}){8,10}", re.ASCII)
_FIXED = {"layout": "NCHW", "dtype": "float32"}


class Conv2dKind(WorkloadKind):
    """The kind ``conv2d``."""

    name = Conv2d.kind
    grammar = "N,H,W,CO,CI,KH,KW,stride,padding[,dilation[,groups]]"
    example = "1,56,56,64,64,3,3,1,1"
    networks = NETWORKS

    def parse(self, text: str) -> Conv2d | None:
        if _SIZES.fullmatch(text) is None:
            return None
        return self.from_sizes("", [int(number) for number in text.split(",")])

    def format_sizes(self, workload: Workload) -> str:
        assert isinstance(workload, Conv2d)
        numbers = [getattr(workload.shape, field.name) for field in fields(Conv2dShape)]
        while numbers[_MIN_NUMBERS:] and numbers[-1] == 1:
            numbers.pop()
        return ",".join(map(str, numbers))

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Conv2d:
        workload = Conv2d.of(name, *sizes)
        if name:
            return workload
        s = workload.shape
        name = f"conv_{s.N}x{s.H}x{s.W}_{s.CO}x{s.CI}_{s.KH}x{s.KW}_s{s.strides}_p{s.padding}"
        name += f"_d{s.dilation}" if s.dilation > 1 else ""
        name += f"_g{s.groups}" if s.groups > 1 else ""
        return workload.called(name)

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Conv2d:
        sizes = dict(parameters)
        for key, only in _FIXED.items():
            if (value := sizes.pop(key, only)) != only:
                raise InputError(f"conv2d only supports {key} {only}, not {value!r:.40}.")
        check_parameter_names(self.name, fields(Conv2dShape), sizes)
        return Conv2d(name, Conv2dShape(**sizes))  # type: ignore[arg-type]  # it checks them all
