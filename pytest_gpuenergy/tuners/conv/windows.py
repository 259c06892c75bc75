"""The common part of templates that compute a convolution as a product (cuda/conv/windows.cu)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import Constant, TemplateParameters
from pytest_gpuenergy.workloads import Conv2d, Mode, Workload

LINE_BYTES = 128
"""The length of the lines in which threads copy what a step multiplies."""
_PIECE_BYTES = 16
ELEMENTS: Mapping[str, str] = {
    "float32": "using Element = float;",
    "float16": "#include <cuda_fp16.h>\nusing Element = __half;",
    "bfloat16": "#include <cuda_bf16.h>\nusing Element = __nv_bfloat16;",
}
"""The first lines of a text by the type of the tensors' elements."""


class WindowParameters(TemplateParameters[Conv2d]):
    """The part of a template's parameters that all convolutions as products share."""

    modes: ClassVar[tuple[Mode, ...]] = ("3xtf32", "tf32", "float16", "bfloat16")

    @classmethod
    def computes(cls, workload: Workload) -> bool:
        """Return whether the workload is a convolution in one of the template's modes."""
        return isinstance(workload, Conv2d) and workload.mode in cls.modes

    def check_mode(self, conv: Conv2d) -> None:
        """Check that the template computes in the convolution's mode.

        Raises:
            InputError: it does not.
        """
        if conv.mode not in self.modes:
            raise InputError(
                f"The template {self.template} computes in {', '.join(self.modes)}, not in mode "
                f"{conv.mode}."
            )

    def _widths(self, conv: Conv2d) -> tuple[int, int]:
        """Return how many elements threads copy at once from the input, and from the weights.

        In NHWC, these are channels of a pixel. In NCHW, they are pixels of a channel; windows of
        several elements begin anywhere in a row, so that these are copied one by one.
        """
        widest, s = _PIECE_BYTES // conv.element_bytes, conv.shape
        if conv.layout == "nhwc":
            of_input = math.gcd(widest, s.CI, s.CI // s.groups)
        elif s.KH == s.KW == s.strides == 1 and s.padding == 0:
            of_input = math.gcd(widest, s.OH * s.OW)
        else:
            of_input = 1
        return of_input, math.gcd(widest, s.reduction_length)

    def _lines(self, conv: Conv2d) -> dict[str, Constant]:
        """Return the constants of `cuda/conv/lines.cu` and `cuda/conv/gathered.cu`."""
        width, weight_width = self._widths(conv)
        return {
            "WIDTH": width,
            "WEIGHT_WIDTH": weight_width,
            "LINE_BYTES": LINE_BYTES,
            "BOXES": 1,
        }

    def _geometry(self, conv: Conv2d) -> dict[str, Constant]:
        """Return the constants of `cuda/conv/windows.cu` that do not depend on the parameters."""
        s = conv.shape
        return {
            "HALVES": conv.element_bytes == 2,
            "SPLIT": conv.mode == "3xtf32",
            "SUM_LENGTH": s.reduction_length,
            "NHWC": conv.layout == "nhwc",
            "OUT_NHWC": conv.layout == "nhwc",
            "IMAGES": s.N,
            **{name: getattr(s, name) for name in ("H", "W", "CI", "CO", "KH", "KW", "OH", "OW")},
            "STRIDE": s.strides,
            "PADDING": s.padding,
            "X_STRIDE": s.strides,
            "X_PADDING": s.padding,
            "DILATION": s.dilation,
            "X_DILATION": s.dilation,
            "GROUPS": s.groups,
            "GROUP_IN": s.CI // s.groups,
            "GROUP_OUT": s.CO // s.groups,
            "WITH_BIAS": conv.bias,
            "WITH_RELU": conv.relu,
        }
