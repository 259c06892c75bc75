"""Tables, a plot and records from trials of `convolution_sweep.py`, and from reports of the bench.

    python studies/convolution_results.py TRIALS.json.gz [MORE.json.gz ...] [REPORT.json ...]
    python studies/convolution_results.py *.json.gz --plot energy.svg --records records
    python studies/convolution_results.py *.json.gz --page docs/notes/convolutions.md

Of the files, later ones replace what earlier ones have of a layer, mode and layout, and of cuDNN's
in each layout. In trials, cuDNN is
PyTorch's conv2d on the same card in the same process: in float32 without TF32 beside 3xtf32. Its
"other" layout is the one that the kernel does not have. Energy is that of a steady load. Reports
are those of ``pytest bench/test_conv2d.py``. Their measurements with flags are left out, unless
only the intervals are wide. Bundled kernels in float32 that they have replace the figures of record
files.

``--page`` updates the summary tables of a page: the comparison with cuDNN, the network and the
regret. All tables are printed, those of the layers too.

Regret is the time of the kernel that the estimate puts first, or of the best of its first three,
relative to the least time of the layer, less 1. The plot, SVG or PNG, requires
``pip install vl-convert-python``.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import geometric_mean, median, stdev
from typing import Any, Protocol, TypeVar

import numpy as np
from convolution_sweep import CARD, MODES
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy import __version__
from pytest_gpuenergy.record import WIDE_FLAGS, split_mode
from pytest_gpuenergy.report import Report, draw, load_report, markdown_table
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners import TEMPLATES, load_records
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name, find_records
from pytest_gpuenergy.workloads import CONV_LAYOUTS, OCCURRENCES, Conv2d, Conv2dShape, network

RECORDS = Path(__file__).resolve().parent.parent / "bench" / "records"
GROUPS = {
    "cases": ("case",),
    "ResNet and YOLO": ("resnet", "yolo"),
    "drawn": ("drawn",),
    "odd channels": ("odd",),
    "few channels": ("few",),
    "fresh": ("fresh",),
    "unseen": ("unseen",),
    "blind": ("blind",),
    "kinds": ("kind",),
    "new": ("new",),
    "last": ("last",),
    "final": ("final",),
    "further": ("further",),
    "in groups": ("group",),
}
"""The beginnings of the names of layers in a group."""
_BUNDLED = ("case", "resnet", "yolo")
_MOST_OF_FINAL, _LIMITED_W = 1.1, 650.0
"""The time of a launch under a steady load, relative to that in a short window, above which the
queue has run empty, so that such an energy is left out, unless the card draws so much: then its
clock is lower, because it is at its limit of 700 W."""
_LEADING = (
    ("3xtf32", "nchw", "own"),
    ("3xtf32", "nhwc", "better"),
    ("tf32", "nhwc", "own"),
    ("float16", "nhwc", "own"),
)
"""The modes and layouts of the leading table, each with the layout of cuDNN's (`Layer.ratio`)."""
_FASTER = 1.05
"""A kernel without energy has to be so much faster than one with, to be the best."""
_CUDNN = "cudnn"
"""The label of cuDNN's kernels in reports."""
_HALF_WIDTH = 1.96
"""Half the width of a 95 % interval in standard errors."""
_SIZES = [one.name for one in fields(Conv2dShape)]
_Key = tuple[str, str, str]
"""A mode, a layout and the name of a layer."""
_KEPT = 3
"""The kernels of a layer that records keep."""


class Judged(Protocol):
    """A convolution in one mode and layout whose kernels were timed."""

    conv: Conv2d

    @property
    def count(self) -> int:
        """The number of kernels."""

    def regret(self, first: int) -> float:
        """Return the regret of trying so many kernels, the first ones of the estimate."""


_Judged = TypeVar("_Judged", bound=Judged)


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
    def count(self) -> int:
        """The number of kernels."""
        return len(self.kernels)

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
        times = (row[name] for name in ("steady_us", "final_us", "us") if name in row)
        return float(next(times, math.nan))
    return float(row.get("mj", math.nan))


def read_layers(paths: Sequence[Path]) -> list[Layer]:
    """Return all layers of the files, in the order of modes, layouts and layers.

    Raises:
        InputError: a file has no trials, or is no report.
    """
    found: dict[_Key, Layer] = {}
    for path in paths:
        if path.suffix == ".json":
            read = _layers_of_report(load_report(path))
        else:
            try:
                read = _layers_of(json.loads(gzip.decompress(path.read_bytes())))
            except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError):
                raise InputError(f"{path} has no trials of convolutions: see --help.") from None
        for key, layer in read.items():
            before = found.get(key)
            if before is not None:
                if not layer.kernels or (_has_energy(before) and not _has_energy(layer)):
                    before.cudnn |= layer.cudnn if not layer.kernels else {}
                    continue
                layer.cudnn = {**before.cudnn, **layer.cudnn}
            found[key] = layer
    return sorted(
        (layer for layer in found.values() if layer.kernels and layer.cudnn),
        key=lambda one: (
            MODES.index(one.conv.mode),
            CONV_LAYOUTS.index(one.conv.layout),
            list(GROUPS).index(one.group),
            one.name,
        ),
    )


def _has_energy(layer: Layer) -> bool:
    """Return whether the energies of its best kernel and of cuDNN, if it is there, are known."""
    beside = any("mj" in row for row in layer.cudnn.values()) or not layer.cudnn
    return bool(layer.kernels) and "mj" in layer.kernels[0] and beside


def _layers_of(stored: dict[str, Any]) -> dict[_Key, Layer]:
    found: dict[_Key, Layer] = {}
    rows = [row for row in stored["rows"] if "missed" not in row]
    for row in rows:
        is_longer = row.get("steady_us", 0.0) > _MOST_OF_FINAL * row.get("final_us", math.inf)
        if is_longer and row["watts"] < _LIMITED_W:
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
        layer.kernels.sort(key=_standing)
    return found


def _standing(row: dict[str, Any]) -> tuple[bool, float]:
    """Return the place of a kernel: by its last time, in favour of one whose energy is known."""
    us = float(row.get("final_us", row["us"]))
    return "final_us" not in row, us if "mj" in row else _FASTER * us


def own_kernels(paths: Sequence[Path]) -> dict[Conv2dShape, tuple[float, float]]:
    """Return the times in µs and energies in mJ of our kernels in float32 that reports have."""
    found: dict[Conv2dShape, tuple[float, float]] = {}
    for path in paths:
        for conv, label, row in _measured(load_report(path)) if path.suffix == ".json" else ():
            if conv.mode == "float32" and label != _CUDNN:
                pair = (row["us"], row["mj"])
                found[conv.shape] = min(found.get(conv.shape, pair), pair)
    return found


def _measured(report: Report) -> Iterator[tuple[Conv2d, str, dict[str, float]]]:
    """Yield the convolutions of a report that have clean figures, with the label of the kernel."""
    for m in report.measurements:
        parameters = m.workload.parameters
        is_usable = m.time_ms and m.energy_mj and WIDE_FLAGS.issuperset(m.validity)
        if parameters.get("kind") != "conv2d" or not is_usable:
            continue
        name, mode, layout = split_mode(m.workload.name, parameters)
        sizes: Any = {k: v for k, v in parameters.items() if k in _SIZES}
        plain = Conv2d(name, Conv2dShape(**sizes))
        row = {"us": 1000 * m.time_ms, "mj": m.energy_mj}
        if (ends := m.energy_mj_ci95) is not None and ends.high is not None:
            row["mj_error"] = (ends.high - ends.low) / 2 / _HALF_WIDTH
        yield plain.varied(mode=mode, layout=layout or CONV_LAYOUTS[0]), m.kernel.label, row


def _layers_of_report(report: Report) -> dict[_Key, Layer]:
    """Return the layers of a report of the bench, with kernels, cuDNN or both."""
    about = {"gpu": report.run.gpu_name, "date": report.run.started[:10]}
    found: dict[_Key, Layer] = {}

    def layer_of(conv: Conv2d, mode: str, layout: str) -> Layer:
        name = conv.name.removesuffix(conv.suffix)
        varied = conv.varied(mode=mode, layout=layout)
        return found.setdefault((mode, layout, name), Layer(varied, about))

    for conv, label, row in _measured(report):
        if label == _CUDNN:  # beside the kernels of both layouts, as in trials
            mode = "3xtf32" if conv.mode == "float32" else conv.mode
            for layout in CONV_LAYOUTS:
                layer_of(conv, mode, layout).cudnn[conv.layout] = row
        elif conv.mode in MODES:
            layer_of(conv, conv.mode, conv.layout).kernels.append(row)
    for layer in found.values():
        layer.kernels.sort(key=lambda row: float(row["us"]))
    return found


def _conv_of(row: dict[str, Any], about: dict[str, Any]) -> Conv2d:
    suffixed: str = row["name"]
    name = next(n for n in about["layers"] if suffixed == n or suffixed.startswith(f"{n}_"))
    conv = Conv2d.of(name, *about["layers"][name])
    return conv.varied(mode=row["mode"], layout=row["layout"])


def _is_estimated(layer: Layer) -> bool:
    """Return whether the parameters of a layer's kernels are known: those of trials."""
    return all("numbers" in row for row in layer.kernels)


def by_mode(layers: Sequence[_Judged]) -> Iterator[tuple[str, list[_Judged]]]:
    """Yield the layers of each mode and layout, with a title."""
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
    shown = [group for group in GROUPS if any(layer.group == group for layer in layers)]
    for title, some in by_mode(layers):
        for other in ("own", "better"):
            groups = [[one for one in some if one.group == group] for group in shown]
            worst = min if figure == "us" else max
            cells = [
                _mean(group, lambda one, to=other: of_layer(one, to), worst) for group in groups
            ]
            rows.append([title, other, *cells])
    return markdown_table(("mode and layout", "cuDNN's layout", *shown), rows)


def lead_table(layers: Sequence[Layer]) -> str:
    """Return the comparisons that matter, of time and of energy, as one Markdown table.

    In `3xtf32`, the rival is what a user of each layout has: cuDNN's `float32` in NCHW, as users of
    PyTorch have it by default, and in its better layout. In other modes, it is cuDNN in the same
    mode and layout.
    """
    compared = [
        (f"`{mode}`, `{layout}`", other, some)
        for mode, layout, other in _LEADING
        if (some := [one for one in layers if (one.conv.mode, one.conv.layout) == (mode, layout)])
    ]
    rows = []
    for group in (g for g in GROUPS if any(layer.group == g for layer in layers)):
        cells = [group]
        for _, other, some in compared:
            own = [layer for layer in some if layer.group == group]
            cells += [
                _mean(own, lambda one, to=other: one.ratio("us", to), min),
                _mean(own, lambda one, to=other: 1 / one.ratio("mj", to), max),
            ]
        rows.append(cells)
    headers = [f"{title}: {figure}" for title, *_ in compared for figure in ("speed", "energy")]
    return markdown_table(("layers", *headers), rows)


def tables(layers: Sequence[Layer]) -> Iterator[tuple[str, str]]:
    """Yield a title and a Markdown table for each mode and layout."""
    for title, some in by_mode(layers):
        rows = []
        for layer in some:
            best = layer.kernels[0]
            own = layer.cudnn.get(layer.conv.layout, {})
            other = next((row for at, row in layer.cudnn.items() if at != layer.conv.layout), {})
            times = [_shown(_figure_of(row, "us"), ".1f") for row in (best, own, other)]
            joules = [_shown(_figure_of(row, "mj")) for row in (best, own, other)]
            ratios = [layer.ratio("us", "own"), layer.ratio("us", "other")]
            ratios += [1 / layer.ratio("mj", which) for which in ("own", "other")]
            errors = (_shown(row.get("error", math.nan), ".1e") for row in (best, own))
            speeds, energies = map(_ratio, ratios[:2]), map(_ratio, ratios[2:])
            rows.append([layer.name, *times, *speeds, *joules, *energies, *errors])
        header = (
            "layer",
            "kernel (µs)",
            "cuDNN",
            "other layout",
            "cuDNN / kernel",
            "other / kernel",
        )
        more = ("kernel (mJ)", "cuDNN", "other layout", "kernel / cuDNN", "kernel / other")
        more = (*more, "error of the kernel", "of cuDNN")
        yield title, markdown_table((*header, *more), rows)


def updated(page: str, tables: Sequence[str]) -> str:
    """Return a page in which each table replaces the one with the same header, if there is one."""
    lines = page.splitlines()
    for table in tables:
        header, *_ = rows = table.splitlines()
        if header in lines:
            at = lines.index(header)
            rest = itertools.dropwhile(lambda line: line.startswith("|"), lines[at:])
            lines = [*lines[:at], *rows, *rest]
    return "\n".join(lines) + "\n"


def _shown(value: float, form: str = ".3g") -> str:
    return "" if math.isnan(value) else format(value, form)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def regret_table(layers: Sequence[Judged]) -> str:
    """Return the regret by mode and layout, and of all, as a Markdown table."""

    def row(title: str, some: Sequence[Judged]) -> list[str]:
        figures = []
        for first in (1, 3):
            regrets = [layer.regret(first) for layer in some]
            figures += [f"{median(regrets):.1%}", f"{np.quantile(regrets, 0.9):.1%}"]
        return [title, str(len(some)), str(sum(layer.count for layer in some)), *figures]

    return markdown_table(
        (
            *("mode and layout", "convolutions", "kernels", "first: median", "worst decile"),
            *("best of three: median", "worst decile"),
        ),
        [*(row(title, some) for title, some in by_mode(layers)), row("all", layers)],
    )


def own_table(
    layers: Sequence[Layer],
    records: Path,
    measured: Mapping[Conv2dShape, tuple[float, float]] | None = None,
) -> str:
    """Return kernels in 3xtf32 beside the best bundled ones in float32, as a Markdown table.

    Args:
        layers: the layers.
        records: record files, with figures in float32 from other cards of the model.
        measured: the times in µs and energies in mJ of kernels in float32, where known.
    """
    rows, ratios = [], []
    for layer in layers:
        if layer.conv.mode != "3xtf32" or not layer.name.startswith(_BUNDLED):
            continue
        if (own := (measured or {}).get(layer.conv.shape) or _recorded(layer, records)) is None:
            continue
        us, mj = own
        best = layer.kernels[0]
        pair = [us / _figure_of(best, "us"), _figure_of(best, "mj") / mj]
        ratios.append((layer.conv.layout, pair))
        figures = (us, _figure_of(best, "us"))
        rows.append([layer.name, layer.conv.layout, *(f"{us:.1f}" for us in figures)])
        rows[-1] += [_ratio(ratio) for ratio in pair]
    for layout in CONV_LAYOUTS:
        if not (of_layout := [pair for at, pair in ratios if at == layout]):
            continue
        means = [_ratio(geometric_mean(column)) for column in zip(*of_layout, strict=True)]
        rows.append(["geometric mean", layout, "", "", *means])
    header = ("layer", "layout", "float32 (µs)", "3xtf32 (µs)", "float32 / 3xtf32")
    return markdown_table((*header, "energy of 3xtf32 / float32"), rows)


def _recorded(layer: Layer, records: Path) -> tuple[float, float] | None:
    """Return the time in µs and the energy in mJ of the bundled kernel in float32, if any."""
    plain = layer.conv.varied(mode="float32", layout="nchw")
    try:
        path = find_records(records, plain, layer.about["gpu"])
    except UnavailableError:  # there are none in float32
        return None
    measured = load_records(path).record(1).measured if path else None
    return None if measured is None else (1000 * measured.time_ms, measured.energy_mj)


def network_table(layers: Sequence[Layer]) -> str:
    """Return what ResNet-50 costs in each mode that has all of its layers, as a Markdown table.

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
        if "mj_error" in row:
            variance += (count * row["mj_error"]) ** 2
        elif len(parts) > 1:
            error = stdev(parts) / math.sqrt(len(parts)) / row["watts"]
            variance += (count * row["mj"] * error) ** 2
    return us, mj, _HALF_WIDTH * math.sqrt(variance)


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
        "title": f"Convolutions on {layers[0].about['gpu']}s: each point is a layer",
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


def write_records(layers: Sequence[Layer], folder: Path, *, drawn: bool = False) -> int:
    """Write the fastest kernels of trials to record files; return the number of files.

    Args:
        layers: the layers.
        folder: the folder of the files.
        drawn: whether those of drawn layers are written, too.
    """
    some = [layer for layer in layers if _is_estimated(layer)]
    if not drawn:
        some = [layer for layer in some if any(map(layer.name.startswith, _BUNDLED))]
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
    parser.add_argument("trials", nargs="+", type=Path, help="trials (.json.gz), reports (.json)")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw to this .svg or .png")
    parser.add_argument("--records", type=Path, metavar="DIR", help="write records to this folder")
    parser.add_argument("--page", type=Path, metavar="PATH", help="update its summary tables")
    parser.add_argument("--drawn", action="store_true", help="records of drawn layers, too")
    options = parser.parse_args(words)
    layers = read_layers(options.trials)
    if not layers:
        raise InputError("No layer has kernels and cuDNN: see --help.")
    if options.records:
        count = write_records(layers, options.records, drawn=options.drawn)
        print(f"{count} record files in {options.records}")
    lead, network_costs = lead_table(layers), network_table(layers)
    estimated = [layer for layer in layers if _is_estimated(layer)]
    regrets = regret_table(estimated) if estimated else ""
    if options.page:
        tables_of_page = [table for table in (lead, network_costs, regrets) if table]
        options.page.write_text(updated(options.page.read_text(), tables_of_page))
    if options.plot:
        draw(plot(layers), options.plot)
    print(f"{lead}\n")
    print(f"Time of cuDNN / time of the kernel:\n\n{summary(layers, 'us')}\n")
    print(f"Energy of the kernel / energy of cuDNN:\n\n{summary(layers, 'mj')}\n")
    print(f"53 convolutions of ResNet-50, one image:\n\n{network_costs}\n")
    own = own_table(layers, RECORDS, own_kernels(options.trials))
    print(f"Our own kernels in float32:\n\n{own}\n")
    print("\n\n".join(f"{title}:\n\n{table}" for title, table in tables(layers)))
    if regrets:
        print(f"\nRegret of the estimate:\n\n{regrets}")


if __name__ == "__main__":
    raise SystemExit(main())
