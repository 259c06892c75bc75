"""The modes of sums of products, and what the name of a workload tells of its mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Mode = Literal["float32", "3xtf32", "tf32", "float16", "bfloat16", "e4m3", "e5m2"]
MODES: tuple[Mode, ...] = get_args(Mode)
FLOAT8_MODES: tuple[Mode, ...] = ("e4m3", "e5m2")
"""The modes of 8-bit elements, which matrix products have."""
CONV_MODES: tuple[Mode, ...] = tuple(mode for mode in MODES if mode not in FLOAT8_MODES)
"""The modes of convolutions."""
AS_EXACT: Mapping[str, str] = {"3xtf32": "float32"}
"""Modes that have the error bound of another one, and are ranked with it."""

_NCHW = "nchw"


def split_mode(name: str, parameters: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the name that a workload of a report has in every mode, with its mode and layout.

    The layout is empty for NCHW and for other kinds of workloads, the mode for kinds without any.
    """
    kind, mode = parameters.get("kind"), str(parameters.get("mode", MODES[0]))
    if kind == "gemm":
        return (name if mode == MODES[0] else name.replace(f"_{mode}", "", 1)), mode, ""
    if kind != "conv2d":
        return name, "", ""
    layout = str(parameters.get("layout", _NCHW)).lower()
    layout = "" if layout == _NCHW else layout
    fused = "".join(f"_{option}" for option in ("bias", "relu") if parameters.get(option))
    variant = "".join(f"_{one}" for one in (mode, layout) if one and one != MODES[0])
    end = f"{variant}{fused}"
    return (name.removesuffix(end) + fused if name.endswith(end) else name), mode, layout
