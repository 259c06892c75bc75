"""Tables and plots of what `untuned_products.py` has timed.

    python studies/untuned_tables.py untuned.jsonl.gz [--worst 5]
    python studies/untuned_tables.py curve.jsonl.gz --plot docs/images/unaligned-h200.svg

A ratio is the speed of the estimate's first choice relative to the fastest algorithm of cuBLASLt's
heuristics for the same product, and its energy relative to that algorithm's; `3xtf32` is compared
with cuBLASLt's float32. The energy column counts only products whose energies were measured.

The plot, SVG or PNG depending on the file name, shows speed and energy by K, and requires
``pip install vl-convert-python``.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, quantiles
from typing import Any

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import draw, markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import MODES

_OF_LIBRARY = {"3xtf32": "float32"}
"""The modes of cuBLASLt with which others are compared."""

Product = tuple[int, int, int, str]


@dataclass(frozen=True)
class Compared:
    """A product in a mode: the first choice, the best of the timed kernels, and cuBLASLt.

    Attributes:
        product: M, N, K and the layout.
        mode: the mode.
        source: the model, or ``odd`` or ``any``.
        first: the line of the first choice.
        best_ms: the time of the fastest kernel of ours that was timed.
        library: the line of cuBLASLt.
    """

    product: Product
    mode: str
    source: str
    first: Mapping[str, Any]
    best_ms: float
    library: Mapping[str, Any]

    @property
    def speed(self) -> float:
        """The speed of the first choice, relative to cuBLASLt."""
        return float(self.library["time_ms"] / self.first["time_ms"])

    @property
    def best_speed(self) -> float:
        """That of the fastest kernel of ours."""
        return float(self.library["time_ms"] / self.best_ms)

    @property
    def energy(self) -> float | None:
        """The energy of the first choice, relative to cuBLASLt; None if it was not measured."""
        if "energy_mj" not in self.first or "energy_mj" not in self.library:
            return None
        return float(self.first["energy_mj"] / self.library["energy_mj"])


def lines_of(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of files; several lines of a kernel count one by one.

    Raises:
        InputError: a file has a line that `untuned_products.py` does not write.
    """
    for path in paths:
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        for number, line in enumerate(text.decode().splitlines(), start=1):
            try:
                one = json.loads(line)
                _ = one["workload"]["mode"], one["time_ms"], one["gpu"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"Line {number} of {path} is no kernel: see --help.") from None
            yield one


def compared(lines: Iterator[Mapping[str, Any]]) -> list[Compared]:
    """Return the products of which a first choice and cuBLASLt were timed.

    Where energies were measured, the time is that of the same, longer run.
    """
    ours: dict[tuple[Product, str], list[Mapping[str, Any]]] = {}
    libraries: dict[tuple[Product, str], Mapping[str, Any]] = {}
    for one in lines:
        w = one["workload"]
        product = (w["M"], w["N"], w["K"], w["layout"])
        if "contender" in one:
            if "energy_mj" not in libraries.get((product, w["mode"]), {}):
                libraries[product, w["mode"]] = one
        elif one["time_ms"]:
            ours.setdefault((product, w["mode"]), []).append(one)
    found = []
    for (product, mode), kernels in ours.items():
        library = libraries.get((product, mode))
        library = library or libraries.get((product, _OF_LIBRARY.get(mode, mode)))
        firsts = sorted((one for one in kernels if one["rank"] == 0), key=_has_no_energy)
        first = firsts[0] if firsts else None
        if library is not None and first is not None:
            best_ms = min(one["time_ms"] for one in kernels)
            found.append(Compared(product, mode, first["source"], first, best_ms, library))
    return found


def _has_no_energy(one: Mapping[str, Any]) -> bool:
    return "energy_mj" not in one


def table(found: Sequence[Compared], worst: int) -> str:
    """Return the ratios by mode: geometric mean, tenth percentile, and the worst products."""
    header = ("mode", "products", "speed", "tenth percentile", "best timed", "energy", "worst")
    rows = []
    for mode in MODES:
        chosen = sorted((one for one in found if one.mode == mode), key=lambda one: one.speed)
        if not chosen:
            continue
        speeds = [one.speed for one in chosen]
        energies = [one.energy for one in chosen if one.energy is not None]
        rows.append(
            (
                mode,
                str(len(chosen)),
                f"{geometric_mean(speeds):.3f}",
                f"{tenth_percentile(speeds):.2f}",
                f"{geometric_mean(one.best_speed for one in chosen):.3f}",
                f"{geometric_mean(energies):.3f} ({len(energies)})" if energies else "",
                ", ".join(f"{_named(one)} {one.speed:.2f}" for one in chosen[:worst]),
            )
        )
    return markdown_table(header, rows)


def tenth_percentile(values: Sequence[float]) -> float:
    """Return the tenth percentile, with linear interpolation; of a single value that itself."""
    return quantiles(values, n=10, method="inclusive")[0] if len(values) > 1 else values[0]


def _named(one: Compared) -> str:
    m, n, k, layout = one.product
    return f"{m}x{n}x{k} {layout}"


def plot(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a Vega-Lite specification: speed and energy by K, for us and for cuBLASLt."""
    values: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in lines:
        w = one["workload"]
        contender = _contender(one)
        if not one["time_ms"] or contender is None:
            continue
        flops = 2 * w["M"] * w["N"] * w["K"]
        value = {"K": w["K"], "mode": w["mode"], "contender": contender}
        value["TFLOP/s"] = flops / one["time_ms"] / 1e9
        if "energy_mj" in one:
            value["pJ a FLOP"] = one["energy_mj"] / flops * 1e9
        key = (w["K"], w["mode"], contender)
        if key not in values or value["TFLOP/s"] > values[key]["TFLOP/s"]:
            values[key] = value
    shown = ["TFLOP/s"]
    if any("pJ a FLOP" in value for value in values.values()):
        shown.append("pJ a FLOP")
    charts = [
        {
            "width": 340,
            "height": 170,
            "mark": {"type": "line", "point": {"size": 14}, "strokeWidth": 1},
            "encoding": {
                "x": {"field": "K", "type": "quantitative", "scale": {"zero": False}},
                "y": {"field": figure, "type": "quantitative", "scale": {"zero": True}},
                "color": {"field": "contender", "type": "nominal"},
            },
        }
        for figure in shown
    ]
    w = lines[0]["workload"]
    return {
        "title": f"Products of {w['M']} x {w['N']} x K in {w['layout']} on one {lines[0]['gpu']}",
        "data": {"values": [values[key] for key in sorted(values, key=str)]},
        "facet": {"row": {"field": "mode", "type": "nominal", "title": None}},
        "spec": {"hconcat": charts},
        "resolve": {"scale": {"y": "independent"}},
    }


def _contender(one: Mapping[str, Any]) -> str | None:
    """Return the line of the plot in which a kernel is; only the first choice is."""
    if "contender" in one:
        return "cuBLASLt"
    return "template" if one["rank"] == 0 else None


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = study_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="What untuned_products.py wrote")
    parser.add_argument("--worst", type=int, default=3, help="How many of the worst are named")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="Draw to this .svg or .png")
    arguments = parser.parse_args(words)
    lines = list(lines_of(arguments.files))
    if not (found := compared(iter(lines))):
        raise InputError("No product has both a first choice and cuBLASLt: see --help.")
    print(f"On one {lines[0]['gpu']}:\n\n{table(found, arguments.worst)}")
    if arguments.plot is not None:
        draw(plot(lines), arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
