"""Tables and plots of the contenders in matrix products.

    pytest bench/test_gemm.py --gemm "MNK=1024; MNK=4096 mode=bfloat16" --gpuenergy-json gemm.json
    python studies/product_tables.py gemm.json
    python studies/product_tables.py gemm.json --all-figures
    python studies/product_tables.py gemm.json --plot gemm.svg

Contenders that may be the fastest, within noise, are bold, and `*` marks one that the power limit
held back. Products that differ in the distribution of their inputs alone are compared too, and the
plot then shows these. All that is plotted has its 95 % interval.
The plot, SVG or PNG depending on the file name, requires ``pip install vl-convert-python``.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import AS_EXACT, Measurement, Metric
from pytest_gpuenergy.report import (
    Report,
    draw,
    figures,
    load_report,
    markdown_table,
    merge,
    tie,
)
from pytest_gpuenergy.support import InputError

PEER = "cublas"
"""What the others' times are compared with."""
_SIZES = ("M", "N", "K")
_MORE = ("B", "groups", "lda", "ldb", "ldc")


@dataclass(frozen=True)
class Product:
    """What the contenders of one row compute."""

    precision: str
    layout: str
    sizes: tuple[int, int, int]
    distribution: str
    more: tuple[str, ...] = ()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Product:
        """The product of a measurement."""
        mode = str(parameters["mode"])
        m, n, k = (int(parameters[name]) for name in _SIZES)
        return cls(
            AS_EXACT.get(mode, mode),
            str(parameters["layout"]),
            (m, n, k),
            str(parameters.get("distribution", "normal")),
            tuple(f"{name} {parameters[name]}" for name in _MORE if name in parameters),
        )

    @property
    def size(self) -> str:
        """``1024`` for a cube, otherwise ``512 x 256 x 640``; then what `_MORE` names, if any."""
        cube = len(set(self.sizes)) == 1
        sizes = str(self.sizes[0]) if cube else " x ".join(map(str, self.sizes))
        return ", ".join([sizes, *self.more])


Row = dict[str, Measurement]
"""The measurements of one product by contender."""


def contender(one: Measurement) -> str:
    """Its name, with the mode if that is not the precision it is ranked with."""
    mode = str(one.workload.parameters["mode"])
    return f"{one.kernel.label} {mode}" if mode in AS_EXACT else one.kernel.label


def rows_of(report: Report) -> dict[Product, Row]:
    """The measurements of matrix products, by product.

    Raises:
        InputError: there are none, or several of one contender in one product.
    """
    found: dict[Product, Row] = {}
    for one in report.measurements:
        if one.workload.parameters.get("kind") != "gemm":
            continue
        row = found.setdefault(Product.of(one.workload.parameters), {})
        if contender(one) in row:
            raise InputError(
                f"{one.workload.name} was measured twice with {contender(one)}: give reports of "
                "one power limit and one state of the cache."
            )
        row[contender(one)] = one
    if not found:
        raise InputError("The report has no matrix products: run bench/test_gemm.py.")
    return found


def tables(rows: Mapping[Product, Row], *, all_figures: bool = False) -> Iterator[str]:
    """Lines of Markdown: a table for each precision and layout, and one for the distributions.

    Where a precision has several layouts, the geometric means are also over all of them.

    Args:
        rows: what they show.
        all_figures: also the EDP, and the speed for each watt.
    """
    usual = {product: row for product, row in rows.items() if product.distribution == "normal"}
    for precision, layout in dict.fromkeys((one.precision, one.layout) for one in usual):
        own = {
            product: row
            for product, row in usual.items()
            if (product.precision, product.layout) == (precision, layout)
        }
        table = _by_size(own, all_figures=all_figures)
        yield from (f"{precision}, {layout}:", "", table, "", *_against_peer(own), "")
    for precision in dict.fromkeys(one.precision for one in usual):
        own = {product: row for product, row in usual.items() if product.precision == precision}
        if len({product.layout for product in own}) > 1 and (lines := list(_against_peer(own))):
            yield from (f"{precision}, all layouts:", "", *lines, "")
    if several := of_several_distributions(rows):
        yield _by_distribution(several)


def of_several_distributions(rows: Mapping[Product, Row]) -> dict[Product, Row]:
    """Only products that differ from another one in the distribution of their inputs alone."""
    alike = Counter(replace(product, distribution="") for product in rows)
    return {
        product: row
        for product, row in rows.items()
        if alike[replace(product, distribution="")] > 1
    }


def _by_size(rows: Mapping[Product, Row], *, all_figures: bool) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    units = "TFLOP/s, mJ, mJ·ms, GFLOP/s/W" if all_figures else "TFLOP/s, mJ"
    return markdown_table(
        ("M x N x K", *(f"{name}: {units}" for name in names)),
        [
            (
                product.size,
                *(
                    _cell(row.get(name), best=name in _best(row), all_figures=all_figures)
                    for name in names
                ),
            )
            for product, row in sorted(rows.items(), key=lambda pair: math.prod(pair[0].sizes))
        ],
    )


def _cell(one: Measurement | None, *, best: bool, all_figures: bool) -> str:
    if one is None:
        return ""
    if one.gflops is None or one.energy_mj is None:
        return str(one.outcome)
    held_back = "*" if one.cap_binding else ""
    speed = f"{figures(one.gflops / 1e3)}{held_back}"
    more = (one.edp_mj_ms, one.gflops_per_w) if all_figures else ()
    shown = (figures(figure or 0.0) for figure in (one.energy_mj, *more))
    return ", ".join([f"**{speed}**" if best else speed, *shown])


def _best(row: Row) -> set[str]:
    """The contenders that may be the fastest, within noise."""
    found = tie(list(row.values()), Metric.TIME)
    fastest = set(map(id, found.rows)) if found is not None else set()
    return {name for name, one in row.items() if id(one) in fastest}


def _against_peer(rows: Mapping[Product, Row]) -> Iterator[str]:
    """For each contender, the geometric means of its speed and energy relative to the peer's."""
    ratios: dict[str, list[tuple[float, float]]] = {}
    for row in rows.values():
        peer = row.get(PEER)
        if peer is None or peer.time_ms is None or peer.energy_mj is None:
            continue
        for name, one in row.items():
            if one is not peer and one.time_ms is not None and one.energy_mj is not None:
                ratio = (
                    math.log(peer.time_ms / one.time_ms),
                    math.log(one.energy_mj / peer.energy_mj),
                )
                ratios.setdefault(name, []).append(ratio)
    for name, logs in ratios.items():
        speed, energy = (math.exp(fmean(values)) for values in zip(*logs, strict=True))
        yield (
            f"{name} has {speed:.3f} times the speed of {PEER} and takes {energy:.3f} times its "
            f"energy (geometric means over {len(logs)} product{'s' if len(logs) > 1 else ''})."
        )


def _by_distribution(rows: Mapping[Product, Row]) -> str:
    return markdown_table(
        ("product", "contender", "inputs", "W", "mJ", "TFLOP/s"),
        [
            (
                f"{product.size} {product.layout} {product.precision}",
                name,
                product.distribution,
                "" if one.power_w is None else f"{one.power_w:.0f}{'*' if one.cap_binding else ''}",
                "" if one.energy_mj is None else figures(one.energy_mj),
                "" if one.gflops is None else figures(one.gflops / 1e3),
            )
            for product, row in rows.items()
            for name, one in row.items()
        ],
    )


def plot(rows: Mapping[Product, Row], gpu: str) -> dict[str, Any]:
    """A Vega-Lite specification: speed and efficiency by size, or power by distribution."""
    several = of_several_distributions(rows)
    values = [
        {
            "product": f"{product.size}, {product.precision}, {product.layout}"
            if several
            else f"{product.precision}, {product.layout}",
            "size": product.size,
            "inputs": product.distribution,
            "contender": name,
            **_with_ends("TFLOP/s", one.gflops / 1e3, _relative(one, Metric.TIME)),
            **_with_ends(
                "TFLOP/s/W", (one.gflops_per_w or 0.0) / 1e3, _relative(one, Metric.ENERGY)
            ),
            **_with_ends(
                "W",
                one.power_w or 0.0,
                math.hypot(_relative(one, Metric.ENERGY), _relative(one, Metric.TIME)),
            ),
        }
        for product, row in sorted(
            (several or rows).items(), key=lambda pair: math.prod(pair[0].sizes)
        )
        for name, one in row.items()
        if one.gflops is not None
    ]
    shown = ("W", "TFLOP/s") if several else ("TFLOP/s", "TFLOP/s/W")
    along = "inputs" if several else "size"
    charts = [
        {
            "width": 260,
            "height": 180,
            "encoding": {
                "x": {"field": along, "type": "nominal", "sort": None, "title": along},
                "color": {"field": "contender", "type": "nominal"},
            },
            "layer": [
                {
                    "mark": {"type": "point", "filled": True, "size": 90}
                    if several
                    else {"type": "line", "point": True},
                    "encoding": {
                        "y": {"field": figure, "type": "quantitative", "scale": {"zero": True}}
                    },
                },
                {
                    "mark": "errorbar",
                    "encoding": {
                        "y": {
                            "field": f"{figure} from",
                            "type": "quantitative",
                            "title": figure,
                        },
                        "y2": {"field": f"{figure} to"},
                    },
                },
            ],
        }
        for figure in shown
    ]
    return {
        "title": f"Matrix products on one {gpu}",
        "data": {"values": values},
        "facet": {"row": {"field": "product", "type": "nominal", "title": None}},
        "spec": {"hconcat": charts},
        "resolve": {"scale": {"y": "independent", "x": "independent"}},
    }


def _relative(one: Measurement, metric: Metric) -> float:
    """Half the width of a figure's interval, as a fraction; 0 without an interval."""
    found = one.estimate(metric)
    return 0.0 if found is None else found.relative_half_width


def _with_ends(name: str, value: float, relative: float) -> dict[str, float]:
    """A value for the plot, with the ends of its interval."""
    return {
        name: value,
        f"{name} from": value * (1 - relative),
        f"{name} to": value * (1 + relative),
    }


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if a report cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", type=Path, nargs="+", help="Files of --gpuenergy-json")
    parser.add_argument(
        "--all-figures",
        action="store_true",
        help="Also the EDP (mJ·ms), and the speed for each watt",
    )
    parser.add_argument("--plot", type=Path, metavar="PATH", help="Draw to this .svg or .png")
    arguments = parser.parse_args(words)
    report = merge([load_report(path) for path in arguments.reports])
    rows = rows_of(report)
    run = report.run
    gpu = f"{run.gpu_name}{' (emulated)' if run.emulated else ''}"
    print(f"{gpu}, driver {run.software.get('driver', 'unknown')}\n")
    for line in tables(rows, all_figures=arguments.all_figures):
        print(line)
    if arguments.plot is not None:
        draw(plot(rows, gpu), arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
