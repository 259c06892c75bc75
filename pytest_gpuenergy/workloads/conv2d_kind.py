"""How convolutions are written: on the command line, in pyproject.toml and in files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.conv2d import Conv2d, Conv2dShape
from pytest_gpuenergy.workloads.conv2d_networks import NETWORKS
from pytest_gpuenergy.workloads.given import check_names
from pytest_gpuenergy.workloads.workload import Workload

_LEAST_NUMBERS = 9  # dilation and groups may be left out
_SIZES = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9}){8,10}", re.ASCII)
_FIXED = {"layout": "NCHW", "dtype": "float32"}


class Conv2dKind:
    """The kind ``conv2d``; see `registry.WorkloadKind`."""

    name = Conv2d.kind
    grammar = "N,H,W,CO,CI,KH,KW,stride,padding[,dilation[,groups]]"
    example = "1,56,56,64,64,3,3,1,1"
    networks = NETWORKS

    def parse(self, text: str) -> Conv2d | None:
        """The convolution that ``text`` describes; None if it has another form."""
        if _SIZES.fullmatch(text) is None:
            return None
        return self.from_sizes("", [int(number) for number in text.split(",")])

    def text_of(self, workload: Workload) -> str:
        """The sizes, separated by commas."""
        assert isinstance(workload, Conv2d)
        numbers = [getattr(workload.shape, field.name) for field in fields(Conv2dShape)]
        while numbers[_LEAST_NUMBERS:] and numbers[-1] == 1:
            numbers.pop()
        return ",".join(map(str, numbers))

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Conv2d:
        """From nine to eleven numbers; without a name it is named after them.

        For example ``conv_1x56x56_64x64_3x3_s1_p1``.
        """
        workload = Conv2d.of(name, *sizes)
        return workload if name else Conv2d(_name_of(workload.shape), workload.shape)

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Conv2d:
        """From `Conv2d.parameters`; layout and dtype, which are always the same, may be missing."""
        given = dict(parameters)
        for key, only in _FIXED.items():
            if (value := given.pop(key, only)) != only:
                raise InputError(f"conv2d only supports {key} {only}, not {value!r:.40}.")
        check_names(self.name, fields(Conv2dShape), given)
        return Conv2d(name, Conv2dShape(**given))  # type: ignore[arg-type]  # it checks them all


def _name_of(s: Conv2dShape) -> str:
    name = f"conv_{s.N}x{s.H}x{s.W}_{s.CO}x{s.CI}_{s.KH}x{s.KW}_s{s.strides}_p{s.padding}"
    if s.dilation > 1:
        name += f"_d{s.dilation}"
    return name + (f"_g{s.groups}" if s.groups > 1 else "")
