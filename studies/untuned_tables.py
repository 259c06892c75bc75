"""Tables and plots of what `untuned_products.py` has timed.

    python studies/untuned_tables.py untuned.jsonl.gz [--worst 5]
    python studies/untuned_tables.py curve.jsonl.gz --plot docs/images/unaligned-h200.svg

A ratio is the speed of the estimate's first choice relative to the fastest algorithm of cuBLASLt's
heuristics for the same product, and its energy relative to that algorithm's; `3xtf32` is compared
with cuBLASLt's float32. The columns of rows tell products whose operands have rows a multiple of 16
bytes apart from others, the energy column only products whose energies were measured, with their
number, and the speed in the same, longer runs. Products that were named (``--also``) have a table
of their own, in which times and energies are those of these runs.

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
from typing import Any, cast

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import draw, markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import MODES, Gemm, from_parameters, product_name

_OF_LIBRARY = {"3xtf32": "float32"}
"""The modes of cuBLASLt with which others are compared."""

Product = tuple[tuple[str, Any], ...]
"""What a line says of a workload, without its mode."""
_ROW_BYTES = 16


@dataclass(frozen=True)
class Compared:
    """A product in a mode: the first choice, the best of the timed kernels, and cuBLASLt.

    Attributes:
        product: what the line says of the workload but for its mode.
        mode: the mode.
        source: the model, or ``odd`` or ``any``.
        first: the line of the first choice.
        best_ms: the time of the fastest kernel of ours that was timed.
        library: the line of cuBLASLt.
        steady: the lines of both from the run in which energies were measured, if there is one.
    """

    product: Product
    mode: str
    source: str
    first: Mapping[str, Any]
    best_ms: float
    library: Mapping[str, Any]
    steady: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None

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
        if self.steady is None:
            return None
        ours, library = self.steady
        return float(ours["energy_mj"] / library["energy_mj"])

    @property
    def steady_speed(self) -> float:
        """The speed in the run in which energies were measured, relative to cuBLASLt."""
        ours, library = self.steady or (self.first, self.library)
        return float(library["time_ms"] / ours["time_ms"])

    @property
    def gemm(self) -> Gemm:
        """The product."""
        gemm = from_parameters({"name": "g", **dict(self.product), "mode": self.mode})
        return cast("Gemm", gemm)

    @property
    def is_aligned(self) -> bool:
        """Whether the rows of both operands are a multiple of 16 bytes apart."""
        gemm = self.gemm
        return all(row * gemm.element_bytes % _ROW_BYTES == 0 for row in (gemm.lda, gemm.ldb))


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

    Of a product with energies alone, the time is that of the run in which they were measured.
    """
    ours: dict[tuple[Product, str], list[Mapping[str, Any]]] = {}
    libraries: dict[tuple[Product, str], list[Mapping[str, Any]]] = {}
    for one in lines:
        w = one["workload"]
        product = tuple(sorted((name, w[name]) for name in w.keys() - {"mode", "name"}))
        if one["time_ms"]:
            kind = libraries if "contender" in one else ours
            kind.setdefault((product, w["mode"]), []).append(one)
    found = []
    for (product, mode), kernels in ours.items():
        library = libraries.get((product, mode))
        library = library or libraries.get((product, _OF_LIBRARY.get(mode, mode)), [])
        firsts = [one for one in kernels if one["rank"] == 0]
        if not library or not firsts:
            continue
        first, compared_to = (min(some, key=_has_energy) for some in (firsts, library))
        steady = [
            next((one for one in some if _has_energy(one)), None) for some in (firsts, library)
        ]
        best_ms = min(one["time_ms"] for one in kernels if _has_energy(one) == _has_energy(first))
        both = (steady[0], steady[1]) if steady[0] and steady[1] else None
        found.append(Compared(product, mode, first["source"], first, best_ms, compared_to, both))
    return found


def _has_energy(one: Mapping[str, Any]) -> bool:
    return "energy_mj" in one


def table(found: Sequence[Compared], worst: int) -> str:
    """Return the ratios by mode: geometric mean, tenth percentile, and the worst products."""
    header = (
        *("mode", "products", "speed", "tenth percentile", "aligned rows", "other rows"),
        *("best timed", "energy", "worst"),
    )
    rows = []
    for mode in MODES:
        chosen = sorted((one for one in found if one.mode == mode), key=lambda one: one.speed)
        if not chosen:
            continue
        speeds = [one.speed for one in chosen]
        steady = [one for one in chosen if one.energy is not None]
        energy = geometric_mean(one.energy or 0 for one in steady) if steady else 0
        at_speed = geometric_mean(one.steady_speed for one in steady) if steady else 0
        rows.append(
            (
                mode,
                str(len(chosen)),
                f"{geometric_mean(speeds):.3f}",
                f"{tenth_percentile(speeds):.2f}",
                *(
                    f"{geometric_mean(some):.3f} ({len(some)})" if some else ""
                    for some in (
                        [one.speed for one in chosen if one.is_aligned == aligned]
                        for aligned in (True, False)
                    )
                ),
                f"{geometric_mean(one.best_speed for one in chosen):.3f}",
                f"{energy:.3f} ({len(steady)}, speed {at_speed:.3f})" if steady else "",
                ", ".join(f"{_named(one)} {one.speed:.2f}" for one in chosen[:worst]),
            )
        )
    return markdown_table(header, rows)


def named_table(found: Sequence[Compared]) -> str:
    """Return times, energies and powers of products that were named, one by one."""
    rows = []
    for one in found:
        ours, library = one.steady or (one.first, one.library)
        watts = [
            f"{each['energy_mj'] / each['time_ms']:.0f}"
            for each in (ours, library)
            if _has_energy(each)
        ]
        rows.append(
            (
                product_name(one.gemm),
                *(f"{1000 * each['time_ms']:.3g} µs" for each in (ours, library)),
                f"{one.steady_speed:.2f}",
                "" if one.energy is None else f"{one.energy:.2f}",
                ", ".join(watts),
            )
        )
    return markdown_table(("product", "ours", "cuBLASLt", "speed", "energy", "W"), rows)


def tenth_percentile(values: Sequence[float]) -> float:
    """Return the tenth percentile, with linear interpolation; of a single value that itself."""
    return quantiles(values, n=10, method="inclusive")[0] if len(values) > 1 else values[0]


def _named(one: Compared) -> str:
    gemm = one.gemm
    return f"{gemm.M}x{gemm.N}x{gemm.K} {gemm.layout}"


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
    drawn = [one for one in found if one.source not in ("curve", "also")]
    named = [one for one in found if one.source == "also"]
    print(f"On one {lines[0]['gpu']}:\n\n{table(drawn or found, arguments.worst)}")
    if named:
        print(f"\n{named_table(named)}")
    if arguments.plot is not None:
        of_curve = [one for one in lines if one.get("source") == "curve"]
        draw(plot(of_curve or lines), arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
