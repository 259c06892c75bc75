"""Tables and a plot of what models' energy went into, from reports of `gpuenergy replay`.

    python studies/replay_tables.py bloom/results/gpu_energy_report.json vicuna/results/...
    python studies/replay_tables.py *.json --residuals --plot joules.svg

``--residuals`` prints one line for each step instead: the energy measured at each level, how much
more energy and, in parentheses, GPU time is predicted, in bold where that is more than 3 or 2 %,
and the card, the date and the report. ``--intervals`` prints in how many accounts of each level
the residual is within the intervals of measurement and prediction. If several reports have a step
on the same kind of GPU, the last one counts. Figures of models that are divided among several GPUs
are sums over these. The plot, SVG or PNG depending on the file name, requires
``pip install vl-convert-python``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.replay import EAGER, EXCHANGES, GRAPH, LAYERS, Account, ReplayReport
from pytest_gpuenergy.report import draw, markdown_table
from pytest_gpuenergy.support import FormError, InputError, decode, read_bytes

_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "_grouped_mm")
_PRODUCTS += ("_int_mm",)
_ATTENTION = ("scaled_dot_product_attention", "softmax")
_COPIES = ("cat", "copy", "clone", "contiguous", "reshape", "flatten", "to")
_ORDER = (
    "products",
    "attention",
    "copies",
    "other calls",
    "exchanges",
    "neighbours",
    "links",
    "gaps",
)
_TERMS = ("temperature_mj", "clocks_mj", "neighbours_mj", "links_mj", "gaps_mj")
_LEVELS = (GRAPH, EAGER, LAYERS)
_CLOSES = 0.03, 0.02
"""How much energy and GPU time may be predicted too high or low."""
_LARGE_MJ = 10_000
"""The energy from which on a step is drawn on a scale of its own."""
_WIDTH = 560
_LARGEST_BYTES = 64 << 20


class Step(NamedTuple):
    """A step at a level, on all GPUs of a model.

    Attributes:
        model: its name, with the number of GPUs if there are several.
        gpu: what they are.
        size: batch x tokens of the prompt; empty for a function.
        source: the card, the date and the name of the report.
        accounts: one for each GPU.
    """

    model: str
    gpu: str
    step: str
    size: str
    source: tuple[str, str, str]
    accounts: tuple[Account, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """What it has in common with the same step at another level, or measured again."""
        return self.model, self.step, self.size

    @property
    def energy_error(self) -> float:
        """How much the predicted energy exceeds what was measured."""
        return self.sum_of("predicted_mj") / self.sum_of("energy_mj") - 1

    def sum_of(self, name: str) -> float:
        """The sum of an attribute of the accounts."""
        return sum(getattr(one, name) for one in self.accounts)

    @property
    def time_ms(self) -> float:
        """Of the GPU that takes longest."""
        return max(one.time_ms for one in self.accounts)

    @property
    def gpu_time_error(self) -> float | None:
        """How much the profiler's GPU time of calls and windows exceeds that in the model."""
        errors = [one.time_error for one in self.accounts if one.time_error is not None]
        return sum(errors) / len(errors) if len(errors) == len(self.accounts) else None


def load(path: Path) -> ReplayReport:
    """The report in a file.

    Raises:
        InputError: it is none, or one of another version.
    """
    content = read_bytes(path, "report", _LARGEST_BYTES)
    try:
        report = decode(content, ReplayReport)
    except FormError as error:
        raise InputError(f"{path} is no gpu_energy_report.json ({error}).") from None
    if report.schema_version != 1:
        raise InputError(
            f"{path} has schema version {report.schema_version}, but this release reads version 1: "
            "use the release that wrote it."
        )
    return report


def steps_of(report: ReplayReport, name: str = "") -> Iterator[Step]:
    """The steps of a report of this name at each level, in its order."""
    profile, run = report.profile, report.run
    ranks = f" on {profile.ranks} GPUs" if profile.ranks > 1 else ""
    model = Path(profile.model).name + ranks
    size = f"{profile.batch} x {profile.prompt_tokens}" if profile.prompt_tokens else ""
    source = (run.gpu_uuid[: len("GPU-01234567")], run.started[: len("2026-01-01")], name)
    for key in dict.fromkeys((one.cap, one.step, one.level) for one in report.accounts):
        accounts = tuple(one for one in report.accounts if (one.cap, one.step, one.level) == key)
        yield Step(model, run.gpu_name, profile.step_name(key[1]), size, source, accounts)


def latest(steps: Iterable[Step]) -> list[Step]:
    """Return the steps without those that a later report has, too."""
    steps = list(steps)
    sources = {(one.gpu, *one.key): one.source for one in steps}
    return [one for one in steps if sources[one.gpu, *one.key] == one.source]


def table(steps: Sequence[Step]) -> str:
    """A line of Markdown for each step."""
    rows = [
        (
            one.model,
            one.step,
            one.accounts[0].level,
            _with_interval(one, "energy_mj"),
            _with_interval(one, "kernels_mj"),
            *(_term(one, name) for name in _TERMS),
            _change(one.sum_of("residual_mj")),
            f"{one.energy_error:+.1%}",
            "" if one.gpu_time_error is None else f"{one.gpu_time_error:+.1%}",
            f"{one.time_ms:.4g}",
        )
        for one in steps
    ]
    header = ("model", "step", "level", "measured (mJ)", "calls")
    return markdown_table(
        (
            *header,
            *(name.removesuffix("_mj") for name in _TERMS),
            "residual",
            "predicted",
            "GPU time",
            "time (ms)",
        ),
        rows,
    )


def residuals(steps: Sequence[Step]) -> str:
    """A line of Markdown for each step of a model at all levels."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for one in steps:
        errors = (one.energy_error, one.gpu_time_error)
        energy, gpu_time = (
            "" if error is None else f"**{error:+.1%}**" if abs(error) > most else f"{error:+.1%}"
            for error, most in zip(errors, _CLOSES, strict=True)
        )
        key = (*one.key, *one.source)
        cell = f"{_with_interval(one, 'energy_mj')}, {energy}"
        level = one.accounts[0].level
        found.setdefault(key, {})[level] = f"{cell} ({gpu_time})" if gpu_time else cell
    rows = [
        (*key[:3], *(cells.get(level, "") for level in _LEVELS), *key[3:])
        for key, cells in found.items()
    ]
    return markdown_table(
        (
            "model",
            "step",
            "size",
            *(f"{level} (mJ)" for level in _LEVELS),
            "card",
            "date",
            "report",
        ),
        rows,
    )


def intervals(steps: Sequence[Step]) -> str:
    """A line of Markdown for each level: how often the residual is within the intervals."""
    found: dict[str, list[Account]] = {}
    for one in steps:
        level = one.accounts[0].level
        found.setdefault(level if level in _LEVELS else "modules", []).extend(one.accounts)

    def held(accounts: Sequence[Account], part: float) -> str:
        return str(sum(abs(one.residual_mj) <= part * one.room_mj for one in accounts))

    rows = [
        (level, str(len(own)), *(held(own, p) for p in (1, 0.5))) for level, own in found.items()
    ]
    return markdown_table(
        ("level", "accounts", "within the intervals", "within half of them"), rows
    )


def _with_interval(one: Step, name: str) -> str:
    half_width = one.sum_of(f"{name}_half_width")
    return f"{one.sum_of(name):.{_digits(half_width)}f} ±{half_width:.{_digits(half_width)}f}"


def _term(one: Step, name: str) -> str:
    half_width = one.sum_of(f"{name}_half_width")
    spread = f" ±{half_width:.{_digits(half_width)}f}" if half_width else ""
    return _change(one.sum_of(name)) + spread


def _change(value: float) -> str:
    return f"{value:+.{_digits(value)}f}"


def _digits(value: float) -> int:
    return 0 if abs(value) >= 10 else 1


def plot(steps: Sequence[Step]) -> dict[str, Any]:
    """What each step as a graph took its energy for, and what was measured."""
    whole = [one for one in steps if one.accounts[0].level == GRAPH]
    parts = [
        {"step": _group(one), "row": _row(one), "part": part, "joules": mj / 1e3}
        for one in whole
        for part, mj in _parts(one)
    ]
    measured = [
        {
            "step": _group(one),
            "row": _row(one),
            "joules": one.sum_of("energy_mj") / 1e3,
            "low": (one.sum_of("energy_mj") - one.sum_of("energy_mj_half_width")) / 1e3,
            "high": (one.sum_of("energy_mj") + one.sum_of("energy_mj_half_width")) / 1e3,
        }
        for one in whole
    ]
    groups = sorted(dict.fromkeys(map(_group, whole)))
    return {"vconcat": [_bars(group, parts, measured) for group in groups]}


def _group(one: Step) -> str:
    """The title of the bars of like steps, since small ones would not be seen beside large ones."""
    return f"{one.step}, {'more' if one.sum_of('energy_mj') > _LARGE_MJ else 'less'} than 10 J"


def _row(one: Step) -> str:
    size = f", {one.size}" if one.size else ""
    return f"{one.model}{size}, {one.gpu.removeprefix('NVIDIA ').partition(' ')[0]}"


def _bars(step: str, parts: Sequence[Any], measured: Sequence[Any]) -> dict[str, Any]:
    row = {"field": "row", "type": "nominal", "title": None, "sort": None}
    row["axis"] = {"labelLimit": 320}
    line = {"data": {"values": [one for one in measured if one["step"] == step]}}
    return {
        "title": f"{step}: bars are what was predicted, the tick what was measured",
        "width": _WIDTH,
        "height": {"step": 26},
        "layer": [
            {
                "data": {"values": [one for one in parts if one["step"] == step]},
                "mark": "bar",
                "encoding": {
                    "x": {"field": "joules", "type": "quantitative", "title": "energy (J)"},
                    "y": row,
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "title": None,
                        "sort": list(_ORDER),
                        "scale": {"scheme": "tableau10", "domain": list(_ORDER)},
                    },
                    "order": {"field": "order", "type": "quantitative"},
                },
                "transform": [
                    {"calculate": f"indexof({list(_ORDER)!r}, datum.part)", "as": "order"}
                ],
            },
            {
                **line,
                "mark": {"type": "tick", "color": "black", "thickness": 2},
                "encoding": {"x": {"field": "joules", "type": "quantitative"}, "y": row},
            },
            {
                **line,
                "mark": {"type": "rule", "color": "black"},
                "encoding": {
                    "x": {"field": "low", "type": "quantitative"},
                    "x2": {"field": "high"},
                    "y": row,
                },
            },
        ],
    }


def _parts(one: Step) -> Iterator[tuple[str, float]]:
    """The energy of each part; where a term is negative, all others are shortened alike."""
    sums = dict.fromkeys(_ORDER, 0.0)
    for account in one.accounts:
        for part in account.parts:
            sums[_kind(part.operator)] += part.energy_mj
        sums["links"] += account.links_mj
        sums["neighbours"] += max(0.0, account.neighbours_mj)
        sums["gaps"] += max(0.0, account.gaps_mj)
    shortened = one.sum_of("predicted_mj") / sum(sums.values())
    yield from ((kind, shortened * energy_mj) for kind, energy_mj in sums.items())


def _kind(operator: str) -> str:
    namespace, _, rest = operator.partition(".")
    name = rest.partition(".")[0]
    if namespace == EXCHANGES:
        return "exchanges"
    for kind, names in (("products", _PRODUCTS), ("attention", _ATTENTION), ("copies", _COPIES)):
        if name in names:
            return kind
    return "other calls"


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if a report cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("reports", type=Path, nargs="+", help="Files gpu_energy_report.json")
    parser.add_argument("--residuals", action="store_true", help="Print how accounts close")
    parser.add_argument("--intervals", action="store_true", help="Print how often these hold")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="Draw to this .svg or .png")
    arguments = parser.parse_args(words)
    steps = latest(step for path in arguments.reports for step in steps_of(load(path), path.stem))
    lines = residuals if arguments.residuals else intervals if arguments.intervals else table
    print(lines(steps))
    if arguments.plot is not None:
        draw(plot(steps), arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
