"""Tables, a plot and records from trials of `convolution_sweep.py`.

    python studies/convolution_results.py TRIALS.json.gz [MORE.json.gz ...]
    python studies/convolution_results.py *.json.gz --plot energy.svg --records records

Of the files, later ones replace what earlier ones have of a layer, mode and layout, and of cuDNN's
in each layout. cuDNN is
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
from statistics import geometric_mean, median, stdev
from typing import Any

import numpy as np
from convolution_sweep import CARD, MODES
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy import __version__
from pytest_gpuenergy.report import draw, markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import TEMPLATES, load_records
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name, find_records
from pytest_gpuenergy.workloads import CONV_LAYOUTS, OCCURRENCES, Conv2d, network

RECORDS = Path(__file__).resolve().parent.parent / "bench" / "records"
GROUPS = {"cases": ("case",), "ResNet and YOLO": ("resnet", "yolo"), "drawn": ("drawn",)}
"""The beginnings of the names of layers in a group."""
_MOST_OF_FINAL = 1.1
"""The time of a launch under a steady load, relative to that in a short window, above which the
queue has run empty: such an energy is left out."""
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
            return (
                min((value for value in at.values() if math.isfinite(value)), default=math.nan)
                / own
            )
        wanted = [layout for layout in at if (layout == self.conv.layout) is (other == "own")]
        return at[wanted[0]] / own if wanted else math.nan

    def regret(self, first: int) -> float:
        """Return the regret of trying so many kernels."""
        ranked = sorted(self.kernels, key=lambda row: self._estimate(row))
        return float(min(row["us"] for row in ranked[:first]) / min(r["us"] for r in ranked) - 1)

    def _estimate(self, row: dict[str, Any]) -> float:
        return float(TEMPLATES[row["template"]].of(row["numbers"]).cycles(self.conv, CARD))


def _figure_of(row: dict[str, Any], figure: str) -> float:
    """Return a time in µs, under a steady load if it was measured so, or an energy in mJ."""
    if figure == "us":
        return float(row.get("steady_us", row.get("final_us", math.nan)))
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
                    if before is not None:
                        layer.cudnn = {**before.cudnn, **layer.cudnn}
        except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError):
            raise InputError(f"{path} has no trials of convolutions: see --help.") from None
    return sorted(
        (layer for layer in found.values() if layer.kernels and layer.conv.layout in layer.cudnn),
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
    rows = [row for row in stored["rows"] if "missed" not in row]
    for row in rows:
        if row.get("steady_us", 0.0) > _MOST_OF_FINAL * row.get("final_us", math.inf):
            del row["steady_us"], row["mj"]
    about = {name: part for name, part in stored.items() if name != "rows"}
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
            other = next((row for at, row in layer.cudnn.items() if at != layer.conv.layout), {})
            times = [_shown(_figure_of(row, "us"), ".1f") for row in (best, own, other)]
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


def _shown(value: float, form: str = ".3g") -> str:
    return "" if math.isnan(value) else format(value, form)


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


def own_table(layers: Sequence[Layer], records: Path) -> str:
    """Return kernels in 3xtf32 beside the best bundled ones in float32, as a Markdown table.

    The figures in float32 are those of record files, from other cards of the model.
    """
    rows, ratios = [], []
    for layer in layers:
        if layer.conv.mode != "3xtf32" or layer.group == "drawn":
            continue
        path = find_records(
            records, layer.conv.varied(mode="float32", layout="nchw"), layer.about["gpu"]
        )
        measured = load_records(path).record(1).measured if path else None
        if measured is None:
            continue
        best = layer.kernels[0]
        pair = [
            1000 * measured.time_ms / _figure_of(best, "us"),
            _figure_of(best, "mj") / measured.energy_mj,
        ]
        ratios.append((layer.conv.layout, pair))
        figures = (1000 * measured.time_ms, _figure_of(best, "us"))
        rows.append([layer.name, layer.conv.layout, *(f"{us:.1f}" for us in figures)])
        rows[-1] += [_ratio(ratio) for ratio in pair]
    for layout in CONV_LAYOUTS:
        of_layout = [pair for at, pair in ratios if at == layout]
        means = [
            _ratio(geometric_mean(column)) for column in zip(*of_layout, strict=True) if column
        ]
        rows.append(["geometric mean", layout, "", "", *means])
    header = ("layer", "layout", "float32 (µs)", "3xtf32 (µs)", "float32 / 3xtf32")
    return markdown_table((*header, "energy of 3xtf32 / float32"), rows)


def network_table(layers: Sequence[Layer]) -> str:
    """Return what the bundled layers of ResNet-50 cost in each mode, as a Markdown table.

    Layers of equal sizes were measured once. An interval of a sum is 1.96 standard errors, from the
    power in the parts of each window, which are taken as independent.
    """
    times = OCCURRENCES["resnet50"]
    wanted = {conv.shape: times[conv.name] for conv in network("resnet")}
    sums: dict[tuple[str, str, str], list[tuple[int, dict[str, Any]]]] = {}
    for layer in layers:
        if (count := wanted.get(layer.conv.shape)) is None:
            continue
        rows = [("template", layer.conv.layout, layer.kernels[0])]
        rows += [("cuDNN", at, row) for at, row in layer.cudnn.items() if at == layer.conv.layout]
        for contender, layout, row in rows:
            mode = layer.conv.mode
            if contender == "cuDNN" and mode == "3xtf32":
                mode = "float32"
            sums.setdefault((mode, layout, contender), []).append((count, row))
    # In float32, the energy of cuDNN was measured in its better layout, layer by layer.
    better = [min(pair, key=lambda one: _figure_of(one[1], "us")) for pair in _pairs(sums)]
    if better:
        for layout in CONV_LAYOUTS:
            sums.pop(("float32", layout, "cuDNN"), None)
        sums["float32", "better of both", "cuDNN"] = better
    costs = {key: _cost(rows) for key, rows in sums.items() if len(rows) == len(wanted)}
    peer = costs.get(("float32", "better of both", "cuDNN"), (math.nan,) * 3)
    rows = []
    for (mode, layout, contender), (us, mj, half) in costs.items():
        joules = "" if math.isnan(mj) else f"{mj:.2f} ±{half / mj:.1%}"
        ratios = [_ratio(us / peer[0]), _ratio(mj / peer[1])]
        rows.append([f"`{mode}`", layout, contender, f"{us:.0f}", joules, *ratios])
    header = ("mode", "layout", "contender", "time (µs)", "energy (mJ)")
    return markdown_table((*header, "time / cuDNN float32", "energy / cuDNN float32"), rows)


def _pairs(sums: dict[Any, Any]) -> Iterator[tuple[tuple[int, dict[str, Any]], ...]]:
    """Yield what cuDNN takes for each layer in float32, in all layouts."""
    both = [sums.get(("float32", layout, "cuDNN"), []) for layout in CONV_LAYOUTS]
    yield from zip(*both, strict=True)


def _cost(rows: Sequence[tuple[int, dict[str, Any]]]) -> tuple[float, float, float]:
    """Return the time in µs, the energy in mJ, and half the width of its interval."""
    us = sum(count * _figure_of(row, "us") for count, row in rows)
    mj = sum(count * _figure_of(row, "mj") for count, row in rows)
    variance = 0.0
    for count, row in rows:
        parts = row.get("watts_of_parts", [])
        if len(parts) > 1:
            error = stdev(parts) / math.sqrt(len(parts)) / row["watts"]
            variance += (count * row["mj"] * error) ** 2
    return us, mj, 1.96 * math.sqrt(variance)


def plot(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return a Vega-Lite specification: energy against time, a point for each layer."""
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for layer in layers:
        mode, gflop = layer.conv.mode, layer.conv.flops / 1e9
        rows = {f"template, {mode}, {layer.conv.layout}": layer.kernels[0]}
        for layout, row in layer.cudnn.items():
            rows["cuDNN, float32" if mode == "3xtf32" else f"cuDNN, {mode}, {layout}"] = row
            if mode == "3xtf32" and "mj" in row:  # in its better layout
                break
        for title, row in rows.items():
            if "mj" in row:
                values[title, layer.name] = {
                    "kernel": title,
                    "µs for a GFLOP": _figure_of(row, "us") / gflop,
                    "mJ for a GFLOP": row["mj"] / gflop,
                }
    if not values:
        raise InputError("The trials have no energy: measure it with --seconds.")

    def axis(name: str) -> dict[str, Any]:
        return {"field": name, "type": "quantitative", "scale": {"type": "log", "nice": False}}

    looks = {"field": "kernel", "type": "nominal", "sort": None, "title": None}
    return {
        "title": f"Convolutions on one {layers[0].about['gpu']}: each point is a layer",
        "data": {"values": list(values.values())},
        "width": 520,
        "height": 400,
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.8},
        "encoding": {
            "x": axis("µs for a GFLOP"),
            "y": axis("mJ for a GFLOP"),
            "color": looks,
            "shape": looks,
        },
    }


def write_records(layers: Sequence[Layer], folder: Path) -> int:
    """Write the fastest kernels of bundled layers to record files; return the number of files."""
    some = [layer for layer in layers if layer.group != "drawn"]
    driver = next(one.about["driver"] for one in layers if "driver" in one.about)
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
            layer.about.get("driver", driver),
            {"gpuenergy": __version__},
            layer.about.get(
                "date", next(one.about["date"] for one in layers if "date" in one.about)
            ),
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
    print(f"38 convolutions of ResNet-50, one image:\n\n{network_table(layers)}\n")
    print(f"Our own kernels in float32:\n\n{own_table(layers, RECORDS)}\n")
    print("\n\n".join([*tables(layers), regret_table(layers)]))


if __name__ == "__main__":
    raise SystemExit(main())
