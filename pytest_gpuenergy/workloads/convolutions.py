"""Two-dimensional convolutions: shapes, modes, layouts, the reference, bundled networks, text.

The grammar of sizes is ``1,56,56,64,64,3,3,1,1``, after which other modes and layouts are named:
``1,56,56,64,64,3,3,1,1 mode=3xtf32 layout=nhwc bias=1 relu=1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.modes import (
    CONV_MODES,
    ExactTwin,
    Mode,
    SumsOfProducts,
    check_choice,
    switch,
)
from pytest_gpuenergy.workloads.number_types import Array, whole
from pytest_gpuenergy.workloads.workload import (
    Tensor,
    Workload,
    WorkloadKind,
    check_parameter_names,
)

ConvLayout = Literal["nchw", "nhwc"]
CONV_LAYOUTS: tuple[ConvLayout, ...] = get_args(ConvLayout)

# The C library keeps as much for the next array, instead of clearing new pages.
_SCRATCH_BYTES = 1 << 24
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
class Conv2d(SumsOfProducts):
    """Cross-correlation of ``data`` with ``weight``, zero padded, with optional bias and ReLU.

    In layout ``nchw``, ``data`` is (N,CI,H,W), ``weight`` (CO,CI/groups,KH,KW) and ``output``
    (N,CO,OH,OW) with OH = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1, and likewise for
    OW. In layout ``nhwc`` channels come last: (N,H,W,CI), (CO,KH,KW,CI/groups) and (N,OH,OW,CO),
    which is how PyTorch stores all three in the memory format ``channels_last``.

    Attributes:
        shape: the sizes.
        mode: see `SumsOfProducts`.
        layout: where the channels are.
        bias: whether an input ``bias`` (CO,) is added.
        relu: whether negative results become 0, after the bias has been added.

    Raises:
        InputError: the mode or layout is unknown, or ``bias`` or ``relu`` is not a boolean.
    """

    kind: ClassVar[str] = "conv2d"

    name: str
    shape: Conv2dShape
    mode: Mode = "float32"
    layout: ConvLayout = "nchw"
    bias: bool = False
    relu: bool = False

    def __post_init__(self) -> None:
        check_choice(self.kind, "mode", self.mode, CONV_MODES)
        check_choice(self.kind, "layout", self.layout, CONV_LAYOUTS)
        for option in _FUSED:
            object.__setattr__(self, option, switch(self.kind, option, getattr(self, option)))

    @classmethod
    def of(cls, name: str, *sizes: int, **options: Any) -> Conv2d:
        """From N, H, W, CO, CI, KH, KW, stride, padding and, optionally, dilation and groups.

        Args:
            name: the name.
            sizes: the numbers.
            options: ``mode``, ``layout``, ``bias`` and ``relu``.

        Raises:
            InputError: a number is missing or out of range, or an option has no such value.
        """
        if not 9 <= len(sizes) <= 11:
            raise InputError(
                "conv2d takes the nine numbers N,H,W,CO,CI,KH,KW,stride,padding, then dilation "
                f"and groups if they are not 1, not {len(sizes)} numbers."
            )
        return cls(name, Conv2dShape(*sizes), **options)

    def varied(self, **options: Any) -> Conv2d:
        """As of `SumsOfProducts`; the options are ``mode``, ``layout``, ``bias`` and ``relu``."""
        other = replace(self, **options)
        return other.called(self.name.removesuffix(self.suffix) + other.suffix)

    @property
    def options(self) -> dict[str, str | int]:
        """The options that are not as usual, in order: ``mode``, ``layout``, ``bias``, ``relu``."""
        return {
            field.name: int(value) if field.name in _FUSED else value
            for field in fields(Conv2d)[2:]
            if (value := getattr(self, field.name)) != field.default
        }

    @property
    def is_plain(self) -> bool:
        """Whether all options are as usual: in float32 and NCHW, with neither bias nor ReLU."""
        return not self.options

    @property
    def suffix(self) -> str:
        """The end of its name: empty for the usual options, otherwise such as ``_3xtf32_nhwc``."""
        options = self.options
        return "".join(f"_{name if name in _FUSED else options[name]}" for name in options)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        bias = (Tensor("bias", (self.shape.CO,), self.dtype, "input"),) if self.bias else ()
        return (
            Tensor("data", self._stored(self.shape.data), self.dtype, "input"),
            Tensor("weight", self._stored(self.shape.weight), self.dtype, "input"),
            *bias,
            Tensor("output", self._stored(self.shape.output), self.dtype, "output"),
        )

    def _stored(self, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        outer, channels, height, width = sizes
        return sizes if self.layout == "nchw" else (outer, height, width, channels)

    @property
    def parameters(self) -> Mapping[str, int | str]:
        """Sizes, layout and dtype; mode, bias and ReLU unless as usual."""
        rest = {name: value for name, value in self.options.items() if name != "layout"}
        told = {"layout": self.layout.upper(), "dtype": self.dtype, **rest}
        return {"kind": self.kind, **self.shape.sizes, **told}

    @property
    def signature(self) -> str:
        """``conv2d_N_1_H_272_..._strides_1_padding_1``, with the options that are not as usual."""
        told = (f"{name}_{value}" for name, value in self.options.items())
        return "_".join([self.kind, self.shape.label, *told])

    @property
    def flops(self) -> int:
        """2 N CO OH OW CI/groups KH KW: one multiplication and one addition per tap.

        Bias and ReLU do not count.
        """
        return 2 * prod(self.shape.output) * self.shape.reduction_length

    @property
    def reduction_length(self) -> int:
        """Taps of one output, and its bias."""
        return self.shape.reduction_length + self.bias

    @property
    def twins(self) -> tuple[Workload, ...]:
        """The same convolution of small integers, unless all options are as usual.

        It has none then, because a kernel on CUDA cores has no narrower type to lose digits in.
        """
        if self.is_plain:
            return ()
        return (
            ExactConv2d(**{member.name: getattr(self, member.name) for member in fields(self)}),
        )

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, npt.NDArray[np.float64]]:
        """Compute by im2col and a matrix product, a few output rows at a time to bound memory."""
        s = self.shape
        # Where the axes N, C, H, W are stored, and where N, H, W, C are found among those.
        last = self.layout == "nhwc"
        axes, stored = ((0, 3, 1, 2), (0, 2, 3, 1)) if last else ((0, 1, 2, 3),) * 2
        margin = (s.padding, s.padding)
        data = inputs["data"].astype(np.float64).transpose(axes)
        data = np.pad(data, ((0, 0), (0, 0), margin, margin))
        weight = inputs["weight"].astype(np.float64).transpose(axes)
        weight = weight.reshape(s.groups, s.CO // s.groups, -1)
        # Every tap of every output, (N, CI, OH, OW, KH, KW), as a view.
        taps = np.lib.stride_tricks.sliding_window_view(data, s.window, axis=(2, 3))
        taps = taps[:, :, :: s.strides, :: s.strides, :: s.dilation, :: s.dilation]
        result = np.empty_like(data, shape=[s.output[axis] for axis in stored], order="C")
        output = result.transpose(axes)
        rows = max(1, _SCRATCH_BYTES // (8 * s.CI * s.KH * s.KW * s.OW))
        for n in range(s.N):
            for top in range(0, s.OH, rows):
                block = taps[n, :, top : top + rows].transpose(0, 3, 4, 1, 2)
                columns = block.reshape(s.groups, weight.shape[2], -1)
                output[n, :, top : top + rows] = (weight @ columns).reshape(s.CO, -1, s.OW)
        if self.bias:
            output += inputs["bias"].astype(np.float64)[:, None, None]
        if self.relu:
            np.maximum(result, 0.0, out=result)
        return {"output": result}


_FUSED = ("bias", "relu")
"""The options that are either on or off."""


@dataclass(frozen=True)
class ExactConv2d(ExactTwin, Conv2d):
    """A convolution of small integers."""

    @property
    def distribution(self) -> str:
        return "integers"


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
        Conv2d.of("resnet14", 1, 56, 56, 64, 256, 1, 1, 1, 0),
        Conv2d.of("resnet15", 1, 56, 56, 512, 256, 1, 1, 2, 0),
        Conv2d.of("resnet16", 1, 28, 28, 128, 512, 1, 1, 1, 0),
        Conv2d.of("resnet17", 1, 28, 28, 1024, 512, 1, 1, 2, 0),
        Conv2d.of("resnet18", 1, 14, 14, 256, 1024, 1, 1, 1, 0),
        Conv2d.of("resnet19", 1, 14, 14, 2048, 1024, 1, 1, 2, 0),
        Conv2d.of("resnet20", 1, 7, 7, 512, 2048, 1, 1, 1, 0),
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
"""Convolutions of ResNet-50 at 224x224 and YOLO at 544x544, and the seven cases taken from both."""


OCCURRENCES: Mapping[str, Mapping[str, int]] = {
    "resnet50": dict(
        zip(
            (layer.name for layer in NETWORKS["resnet"]),
            (1, 1, 3, 4, 1, 4, 4, 1, 6, 6, 1, 3, 3, 2, 1, 3, 1, 5, 1, 2),
            strict=True,
        )
    )
}
"""The number of times that each layer occurs in a network.

These are the 53 convolutions of ResNet-50 with strides in the first convolution of a block
(K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1).
"""

_MIN_NUMBERS = 9  # dilation and groups may be left out
_SIZES = re.compile(r"(-?[0-9]{1,9}(?:,-?[0-9]{1,9}){8,10})((?:\s+[A-Za-z]+=\S+)*)", re.ASCII)
_OPTIONS = tuple(field.name for field in fields(Conv2d)[2:])
"""``mode``, ``layout``, ``bias`` and ``relu``."""
_SUFFIX = re.compile(
    rf"(?:_(?P<mode>{'|'.join(CONV_MODES[1:])}))?(?:_(?P<layout>{'|'.join(CONV_LAYOUTS[1:])}))?"
    r"(?P<bias>_bias)?(?P<relu>_relu)?",
    re.ASCII,
)


def split_suffix(name: str) -> tuple[str, dict[str, Any]]:
    """Return a name without the suffix of `Conv2d.suffix`, and the options that this stands for."""
    for match in re.finditer("_", name):
        if found := _SUFFIX.fullmatch(name, match.start()):
            told = {option: value for option, value in found.groupdict().items() if value}
            return name[: match.start()], {
                option: option in _FUSED or value for option, value in told.items()
            }
    return name, {}


class Conv2dKind(WorkloadKind):
    """The kind ``conv2d``."""

    name = Conv2d.kind
    grammar = (
        "N,H,W,CO,CI,KH,KW,stride,padding[,dilation[,groups]] "
        "[mode=tf32] [layout=nhwc] [bias=1] [relu=1]"
    )
    example = "1,56,56,64,64,3,3,1,1"
    networks = NETWORKS

    def parse(self, text: str) -> Conv2d | None:
        match = _SIZES.fullmatch(text)
        if match is None:
            return None
        options: dict[str, Any] = {}
        for word in match[2].split():
            name, value = word.split("=", 1)
            if name not in _OPTIONS:
                raise InputError(
                    f"{text!r} has {shown(name)}, which is not understood: after the sizes there "
                    f"may be {', '.join(_OPTIONS)}."
                )
            if name in options:
                raise InputError(f"{text!r} gives {name} twice: leave one out.")
            options[name] = int(value) if name in _FUSED and value in ("0", "1") else value.lower()
        workload = self.from_sizes("", [int(number) for number in match[1].split(",")])
        return workload.varied(**options)

    def format_sizes(self, workload: Workload) -> str:
        assert isinstance(workload, Conv2d)
        numbers = [getattr(workload.shape, field.name) for field in fields(Conv2dShape)]
        while numbers[_MIN_NUMBERS:] and numbers[-1] == 1:
            numbers.pop()
        words = (f"{name}={value}" for name, value in workload.options.items())
        return " ".join([",".join(map(str, numbers)), *words])

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
        given: dict[str, Any] = dict(parameters)
        dtype = given.pop("dtype", None)
        known = fields(Conv2dShape)
        check_parameter_names(self.name, (*known, *fields(Conv2d)[2:]), given)
        sizes = {field.name: given.pop(field.name) for field in known if field.name in given}
        if isinstance(layout := given.get("layout"), str):
            given["layout"] = layout.lower()
        # Both check the types of all their arguments.
        workload = Conv2d(name, Conv2dShape(**sizes), **given)
        if dtype not in (None, workload.dtype):
            raise InputError(
                f"conv2d in mode {workload.mode} has the dtype {workload.dtype}, not "
                f"{shown(dtype)}: choose one of the modes {', '.join(CONV_MODES)}."
            )
        return workload
