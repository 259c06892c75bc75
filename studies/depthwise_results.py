"""The results of `depthwise.py`: their file, and the table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from depthwise_sides import CUDNN, OURS

from pytest_gpuenergy.record import Measurement, Metric, log_ratio, session_mean
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError, convert, is_file, write_atomically
from pytest_gpuenergy.workloads import Conv2d

BENCH = "depthwise"
_HEADER = (
    *("layer", "input", "stride", "ours µs", "cuDNN µs", "cuDNN / ours", "95 %"),
    *("ours mJ", "cuDNN mJ", "cuDNN / ours", "95 %", "notes"),
)
Layer = dict[str, Any]
"""What is kept of a layer: ``workload``, ``search``, ``notes`` and ``measurements``."""


class Results:
    """The file of results.

    Args:
        path: where it is; a file that is there is continued.
        about: the GPU, and versions.

    Raises:
        InputError: the file is of something else, or of another GPU.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self.content: dict[str, Any] = {"bench": BENCH, "about": dict(about), "layers": {}}
        if is_file(path):
            self.content = load(path)
            known = self.content["about"]
            if known["gpu"] != about["gpu"] or known["emulated"] != about["emulated"]:
                raise InputError(
                    f"{path} has results of {known['gpu']}, not of {about['gpu']}: give another "
                    "file to --json."
                )

    def __contains__(self, name: str) -> bool:
        return name in self.content["layers"]

    def add(self, name: str, layer: Layer) -> None:
        """Keep what was measured for a layer, on disk too."""
        self.content["layers"][name] = layer
        write_atomically(self._path, json.dumps(self.content, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """The content of a file of results.

    Raises:
        InputError: it is not one.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): give another file.") from None
    if not isinstance(content, dict) or content.get("bench") != BENCH:
        raise InputError(f"{path} is not a result of studies/depthwise.py: give another file.")
    return content


def best(layer: Layer, side: str) -> Measurement | None:
    """The fastest of a side's measurements that have figures."""
    found = [convert(one, Measurement) for one in layer["measurements"]]
    usable = [m for m in found if m.kernel.label.startswith(f"{side}-") and m.measured]
    return min(usable, key=lambda m: m.time_ms or math.inf, default=None)


def ratio(
    ours: Measurement | None, theirs: Measurement | None, metric: Metric
) -> tuple[float, float, float] | None:
    """The figure of cuDNN divided by ours, and its 95 % interval; None if one is missing."""
    samples = [session_mean(one, metric) if one else None for one in (ours, theirs)]
    if samples[0] is None or samples[1] is None:
        return None
    found = log_ratio(samples[0], samples[1], session_sd=0.0, tail=0.025)
    return math.exp(found.value), math.exp(found.low), math.exp(found.high)


def table(content: dict[str, Any], layers: Sequence[Conv2d]) -> str:
    """The results as Markdown."""
    rows: list[list[str]] = []
    ratios: dict[Metric, list[float]] = {Metric.TIME: [], Metric.ENERGY: []}
    for workload in layers:
        layer = content["layers"].get(workload.name)
        if layer is None:
            continue
        ours, theirs = best(layer, OURS), best(layer, CUDNN)
        cells = []
        for metric, name, scale, form in (
            (Metric.TIME, "time_ms", 1e3, ".2f"),
            (Metric.ENERGY, "energy_mj", 1.0, ".3f"),
        ):
            for one in (ours, theirs):
                value = getattr(one, name) if one else None
                cells.append("" if value is None else f"{value * scale:{form}}")
            found = ratio(ours, theirs, metric)
            ratios[metric] += [found[0]] if found else []
            cells += (
                [f"{found[0]:.2f}x", f"{found[1]:.2f} to {found[2]:.2f}"] if found else [""] * 2
            )
        s = workload.shape
        rows.append(
            [workload.name, f"{s.H} x {s.W} x {s.CI}", str(s.strides), *cells, layer["notes"]]
        )
    about = content["about"]
    title = f"{about['gpu']}{' (emulated)' if about['emulated'] else ''}, {about['started'][:10]}"
    software = ", ".join(f"{name} {version}" for name, version in about["software"].items())
    lines = [f"{title}, {software}.", "", markdown_table(_HEADER, rows, text=(0, 1, 11))]
    for metric, all_found in ratios.items():
        if all_found:
            lines += [
                "",
                f"{metric}: cuDNN / ours is {geometric_mean(all_found):.3f}x (geometric mean of "
                f"{len(all_found)}), {min(all_found):.3f}x at least.",
            ]
    return "\n".join(lines)
