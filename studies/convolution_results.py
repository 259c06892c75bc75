"""Tables, a plot and records from trials of `convolution_sweep.py`.

    python studies/convolution_results.py TRIALS.json.gz [MORE.json.gz ...]
    python studies/convolution_results.py *.json.gz --plot energy.svg --records records

Of the files, later ones replace what earlier ones have of a layer, mode and layout. cuDNN is
PyTorch's conv2d on the same card in the same process: in float32 without TF32 beside 3xtf32. Its
"other" layout is the one that the kernel does not have. Energy is that of a steady load.

Regret is the time of the kernel that the estimate puts first, or of the best of its first three,
relative to the least time of the layer, less 1. The plot, SVG or PNG, requires
``pip install vl-convert-python``.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from convolution_sweep import CARD, MODES
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy import __version__
from pytest_gpuenergy.report import draw, markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import TEMPLATES
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d

GROUPS = {"cases": ("case",), "ResNet and YOLO": ("resnet", "yolo"), "drawn": ("drawn",)}
"""The beginnings of the names of layers in a group."""
_KEPT = 3
"""The kernels of a layer that records keep."""


@dataclass
class Layer:
    """A convolution in one mode and layout.

    Attributes:
        conv: the convolution.
        kernels: the rows of its kernels, the fastest first.
        cudnn: the row of cuDNN by layout.
        about: what its file says of the run.
    """

    conv: Conv2d
    about: dict[str, Any]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    cudnn: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name without the mode and the layout."""
        return self.conv.name.removesuffix(self.conv.suffix)

    @property
    def group(self) -> str:
        """The group of its name."""
        return next(g for g, names in GROUPS.items() if self.name.startswith(names))

    def ratio(self, figure: str, other: str) -> float:
        """Return a figure of cuDNN's relative to that of the kernel.

        Args:
            figure: ``us`` or ``mj``.
            other: ``own`` layout, the ``other`` one, or the ``better`` of both.
        """
        own = _figure_of(self.kernels[0], figure)
        at = {layout: _figure_of(row, figure) for layout, row in self.cudnn.items()}
        if other == "better":
            return min(at.values()) / own
        (wanted,) = (layout for layout in at if (layout == self.conv.layout) is (other == "own"))
        return at[wanted] / own

    def regret(self, first: int) -> float:
        """Return the regret of trying so many kernels."""
        ranked = sorted(self.kernels, key=lambda row: self._estimate(row))
        return float(min(row["us"] for row in ranked[:first]) / min(r["us"] for r in ranked) - 1)

    def _estimate(self, row: dict[str, Any]) -> float:
        return float(TEMPLATES[row["template"]].of(row["numbers"]).cycles(self.conv, CARD))


def _figure_of(row: dict[str, Any], figure: str) -> float:
    """Return a time in µs, under a steady load if it was measured so, or an energy in mJ."""
    if figure == "us":
        return float(row.get("steady_us", row["final_us"]))
    return float(row.get("mj", math.nan))


def read_layers(paths: Sequence[Path]) -> list[Layer]:
    """Return all layers of the files, in the order of modes, layouts and layers.

    Raises:
        InputError: a file has no trials.
    """
    found: dict[tuple[str, str, str], Layer] = {}
    for path in paths:
        try:
            stored = json.loads(gzip.decompress(path.read_bytes()))
            for key, layer in _layers_of(stored).items():
                before = found.get(key)
                if before is None or _has(layer, "mj") or not _has(before, "mj"):
                    found[key] = layer
        except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError):
            raise InputError(f"{path} has no trials of convolutions: see --help.") from None
    return sorted(
        (layer for layer in found.values() if layer.kernels and len(layer.cudnn) == 2),
        key=lambda one: (
            MODES.index(one.conv.mode),
            CONV_LAYOUTS.index(one.conv.layout),
            list(GROUPS).index(one.group),
            one.name,
        ),
    )


def _has(layer: Layer, figure: str) -> bool:
    return bool(layer.kernels) and figure in layer.kernels[0]


def _layers_of(stored: dict[str, Any]) -> dict[tuple[str, str, str], Layer]:
    found: dict[tuple[str, str, str], Layer] = {}
    about = {name: part for name, part in stored.items() if name != "rows"}
    rows = [row for row in stored["rows"] if "missed" not in row]
    for row in rows:
        if "template" in row and "us" in row:
            conv = _conv_of(row, about)
            key = (conv.mode, conv.layout, conv.name.removesuffix(conv.suffix))
            found.setdefault(key, Layer(conv, about)).kernels.append(row)
    for row in rows:
        if row.get("cudnn") and "final_us" in row:
            for layout in CONV_LAYOUTS:
                if (layer := found.get((row["mode"], layout, row["name"]))) is not None:
                    layer.cudnn[row["layout"]] = row
    for layer in found.values():
        layer.kernels.sort(key=lambda row: (not row.get("first"), row.get("final_us", row["us"])))
    return found


def _conv_of(row: dict[str, Any], about: dict[str, Any]) -> Conv2d:
    suffixed: str = row["name"]
    name = next(n for n in about["layers"] if suffixed == n or suffixed.startswith(f"{n}_"))
    conv = Conv2d.of(name, *about["layers"][name])
    return conv.varied(mode=row["mode"], layout=row["layout"])


def _by_mode(layers: Sequence[Layer]) -> Iterator[tuple[str, list[Layer]]]:
    titles = [f"`{layer.conv.mode}`, `{layer.conv.layout}`" for layer in layers]
    for title in dict.fromkeys(titles):
        yield title, [layer for layer, own in zip(layers, titles, strict=True) if own == title]


def _mean(
    some: Sequence[Layer],
    value: Callable[[Layer], float],
    worst: Callable[[Sequence[float]], float],
) -> str:
    values = [one for layer in some if math.isfinite(one := value(layer))]
    if not values:
        return ""
    return f"{geometric_mean(values):.2f} ({worst(values):.2f})"


def summary(layers: Sequence[Layer], figure: str) -> str:
    """Return geometric means by mode, layout and group, with the worst layer's in parentheses.

    Args:
        layers: the layers.
        figure: ``us`` for cuDNN's time relative to the kernel's, ``mj`` for the kernel's energy
            relative to cuDNN's.
    """

    def of_layer(one: Layer, other: str) -> float:
        ratio = one.ratio(figure, other)
        return ratio if figure == "us" else 1 / ratio

    rows = []
    for title, some in _by_mode(layers):
        for other in ("own", "better"):
            groups = [[one for one in some if one.group == group] for group in GROUPS]
            worst = min if figure == "us" else max
            cells = [
                _mean(group, lambda one, to=other: of_layer(one, to), worst) for group in groups
            ]
            rows.append([title, other, *cells])
    return markdown_table(("mode and layout", "cuDNN's layout", *GROUPS), rows)


def tables(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield a Markdown table for each mode and layout."""
    for title, some in _by_mode(layers):
        rows = []
        for layer in some:
            best = layer.kernels[0]
            own = layer.cudnn[layer.conv.layout]
            (other,) = (row for at, row in layer.cudnn.items() if at != layer.conv.layout)
            times = [f"{_figure_of(row, 'us'):.1f}" for row in (best, own, other)]
            joules = [_shown(_figure_of(row, "mj")) for row in (best, own, other)]
            ratios = [layer.ratio("us", "own"), layer.ratio("us", "other")]
            ratios += [1 / layer.ratio("mj", which) for which in ("own", "other")]
            rows.append(
                [layer.name, *times, *(_ratio(ratio) for ratio in ratios[:2]), *joules]
                + [_ratio(ratio) for ratio in ratios[2:]]
            )
        header = (
            "layer",
            "kernel (µs)",
            "cuDNN",
            "other layout",
            "cuDNN / kernel",
            "other / kernel",
        )
        more = ("kernel (mJ)", "cuDNN", "other layout", "kernel / cuDNN", "kernel / other")
        yield f"{title}:\n\n{markdown_table((*header, *more), rows)}"


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def regret_table(layers: Sequence[Layer]) -> str:
    """Return the regret by mode and layout, and of all, as a Markdown table."""

    def row(title: str, some: Sequence[Layer]) -> list[str]:
        figures = []
        for first in (1, 3):
            regrets = [layer.regret(first) for layer in some]
            figures += [f"{median(regrets):.1%}", f"{np.quantile(regrets, 0.9):.1%}"]
        return [title, str(len(some)), str(sum(len(layer.kernels) for layer in some)), *figures]

    return markdown_table(
        (
            *("mode and layout", "convolutions", "kernels", "first: median", "worst decile"),
            *("best of three: median", "worst decile"),
        ),
        [*(row(title, some) for title, some in _by_mode(layers)), row("all", layers)],
    )


def plot(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return a Vega-Lite specification: energy against time, a point for each layer."""
    values = []
    for layer in layers:
        rows = [("template", layer.kernels[0]), ("cuDNN", layer.cudnn[layer.conv.layout])]
        for contender, row in rows:
            if "mj" not in row:
                continue
            mode = layer.conv.mode
            if contender == "cuDNN" and mode == "3xtf32":
                mode = "float32"
            gflop = layer.conv.flops / 1e9
            values.append(
                {
                    "mode": f"{contender}, {mode}",
                    "layout": layer.conv.layout,
                    "µs for a GFLOP": _figure_of(row, "us") / gflop,
                    "mJ for a GFLOP": row["mj"] / gflop,
                }
            )
    if not values:
        raise InputError("The trials have no energy: measure it with --seconds.")

    def axis(name: str) -> dict[str, Any]:
        return {"field": name, "type": "quantitative", "scale": {"type": "log"}}

    return {
        "title": f"Convolutions on one {layers[0].about['gpu']}: each point is a layer",
        "data": {"values": values},
        "facet": {"column": {"field": "layout", "type": "nominal", "title": None}},
        "spec": {
            "width": 330,
            "height": 330,
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.75},
            "encoding": {
                "x": axis("µs for a GFLOP"),
                "y": axis("mJ for a GFLOP"),
                "color": {"field": "mode", "type": "nominal", "sort": None, "title": None},
                "shape": {"field": "mode", "type": "nominal", "sort": None, "title": None},
            },
        },
    }


def write_records(layers: Sequence[Layer], folder: Path) -> int:
    """Write the fastest kernels of bundled layers to record files; return the number of files."""
    some = [layer for layer in layers if layer.group != "drawn"]
    for layer in some:
        best = layer.kernels[:_KEPT]
        records = []
        for rank, row in enumerate(best, 1):
            recipe = {"template": row["template"], "parameters": row["numbers"]}
            time_ms = row.get("final_us", row["us"]) / 1000
            text = json.dumps({**recipe, "time_ms": time_ms}, separators=(",", ":"))
            records.append(Record(rank, "fastest", text))
        count = len(layer.kernels)
        file = RecordFile(
            layer.conv,
            "template",
            layer.about["gpu"],
            layer.about["driver"],
            {"gpuenergy": __version__},
            layer.about["date"],
            count,
            count,
            tuple(records),
        )
        dump_records(file, folder / file_name(layer.conv, "template"))
    return len(some)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print the tables; draw the plot and write the records, if they are asked for."""
    parser = study_parser(__doc__)
    parser.add_argument("trials", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw to this .svg or .png")
    parser.add_argument("--records", type=Path, metavar="DIR", help="write records to this folder")
    options = parser.parse_args(words)
    layers = read_layers(options.trials)
    if not layers:
        raise InputError("No layer has kernels and cuDNN: see --help.")
    if options.records:
        print(f"{write_records(layers, options.records)} record files in {options.records}")
    if options.plot:
        draw(plot(layers), options.plot)
    print(f"Time of cuDNN / time of the kernel:\n\n{summary(layers, 'us')}\n")
    print(f"Energy of the kernel / energy of cuDNN:\n\n{summary(layers, 'mj')}\n")
    print("\n\n".join([*tables(layers), regret_table(layers)]))


if __name__ == "__main__":
    raise SystemExit(main())
