"""Convolutions for TVM; see `operators.Operator`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tvm.conv2d_forms import as_gemm, gemm_forms
from pytest_gpuenergy.tvm.requirements import import_tvm
from pytest_gpuenergy.workloads import Conv2d, Workload

LARGEST_SIZE = 10**9
"""The largest size of a convolution that is read; the FLOPs of such sizes fit into a float."""

_SIZE = r"[0-9]{1,9}"
_STRIDE = rf"({_SIZE}|\({_SIZE}, ?{_SIZE}\))"
# In file names: N_1_H_272_..._strides_1_padding_1, or ..._strides_(1, 1)_padding_(1, 1).
_LABEL = re.compile(
    "_".join(f"{name}_({_SIZE})" for name in ("N", "H", "W", "CO", "CI", "KH", "KW"))
    + f"_strides_{_STRIDE}_padding_{_STRIDE}(?:_dilation_({_SIZE}))?(?:_groups_({_SIZE}))?(?![0-9])"
)
# Functions whose nine arguments are in the order of Conv2d's sizes.
_FUNCTIONS = ("conv2d", "conv2d_layer")


class Conv2dOperator:
    """The kind ``conv2d``."""

    formless = "it is grouped or has one output position"

    def module(self, workload: Workload) -> Any:
        """TOPI's convolution, so records from other MetaSchedule searches of it apply.

        Its function is ``main(data, weight, output)``.
        """
        assert isinstance(workload, Conv2d)
        tvm = import_tvm()
        te, topi = tvm.te, tvm.topi
        shape = workload.shape
        data, weight = (te.placeholder(t.shape, t.dtype, t.name) for t in workload.inputs)
        # With one group this equals `topi.nn.conv2d_nchw`, including the name of its block.
        output = topi.nn.group_conv2d_nchw(
            data, weight, shape.strides, shape.padding, shape.dilation, shape.groups, "float32"
        )
        return tvm.IRModule({"main": te.create_prim_func([data, weight, output])})

    def forms(self, workload: Workload) -> Sequence[Callable[[Any], None]]:
        """The convolution as matrix products; see `conv2d_forms`."""
        assert isinstance(workload, Conv2d)
        shape = workload.shape
        return [partial(as_gemm, shape=shape, form=form) for form in gemm_forms(shape)]

    def from_log_name(self, name: str) -> Conv2d | None:
        """From the sizes in a file's name; None if it contains none."""
        match = _LABEL.search(name)
        if match is None:
            return None
        *sizes, dilation, groups = match.groups()
        if dilation or groups:  # written only if they are not 1
            sizes += [dilation or "1", groups or "1"]
        return _conv2d([[int(n) for n in size.strip("()").split(",")] for size in sizes])

    def from_log_key(self, key: Sequence[Any]) -> Conv2d | None:
        """From a function's name and its nine arguments; None for another function."""
        function, *arguments = key
        if function not in _FUNCTIONS or len(arguments) != 9:
            return None
        return _conv2d([part if type(part) is list else [part] for part in arguments])

    def flops_of(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """From the tensors in NCHW; stride and padding are not needed."""
        if [len(shape) for shape in shapes] != [4, 4, 4]:
            return None
        (n, ci, _, _), (co, group_ci, kh, kw), (out_n, out_co, oh, ow) = shapes
        sizes = (n, co, oh, ow, group_ci, kh, kw)
        if min(sizes) < 1 or (n, co) != (out_n, out_co) or ci % group_ci:
            return None
        return 2 * math.prod(sizes)


def _conv2d(arguments: Sequence[Sequence[object]]) -> Conv2d | None:
    """From numbers, each of which may be given as a pair of equal ones, as strides often are."""
    numbers = []
    for values in arguments:
        if len(values) not in (1, 2) or values[0] != values[-1]:
            return None
        number = values[0]
        if type(number) is not int or number > LARGEST_SIZE:
            return None
        numbers.append(number)
    try:
        return Conv2d.of("conv2d", *numbers)
    except InputError:
        return None
