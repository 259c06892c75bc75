"""The table and the plot of a validation run.

    pytest bench/validation --powercap current --validation-json validation.json
    python bench/validation/table.py validation.json
    python bench/validation/table.py validation.json --plot validation.svg

The plot, SVG or PNG depending on the file name, requires ``pip install vl-convert-python``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

from record import OURS, Attempt, Validated, Validation, read_validation

from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.report import draw
from pytest_gpuenergy.support import GpuEnergyError


def tables(validation: Validation) -> Iterator[str]:
    """Lines of Markdown: errors and durations of all protocols, then coverage of our intervals."""
    run = validation.run
    yield (
        f"{run['gpu_name']}{' (emulated)' if run['emulated'] else ''} at "
        f"{run['power_limit_w']:g} W, driver {run['software'].get('driver', 'unknown')}"
    )
    yield ""
    protocols = list(
        dict.fromkeys(one.protocol for kernel in validation.kernels for one in kernel.attempts)
    )
    yield f"| kernel | reference | GPU busy | {' | '.join(protocols)} |"
    yield f"|---|---:|---:|{'---:|' * len(protocols)}"
    for kernel in validation.kernels:
        by_name = {one.protocol: one for one in kernel.attempts}
        cells = [_error(kernel, by_name.get(name)) for name in protocols]
        busy = kernel.ours.busy
        yield (
            f"| {kernel.name} | {_reference(kernel)} | {'' if busy is None else f'{busy:.2%}'} "
            f"| {' | '.join(cells)} |"
        )
    yield ""
    yield "Each cell: error of energy, error of time, seconds used."
    yield ""
    yield from _coverage(validation.kernels)


def _reference(kernel: Validated) -> str:
    reference = kernel.reference
    return (
        f"{reference.energy_mj:.5g} mJ at {reference.power_w:.0f} W, "
        f"{reference.time_ms * 1e3:.5g} µs"
    )


def _error(kernel: Validated, attempt: Attempt | None) -> str:
    if attempt is None:
        return ""
    energy, time = (kernel.error(attempt, metric) for metric in ("energy", "time"))
    return f"{energy:+.2%}, {time:+.2%}, {attempt.seconds:.1f} s"


def _coverage(kernels: Sequence[Validated]) -> Iterator[str]:
    tested = [kernel for kernel in kernels if kernel.repeats]
    if not tested:
        yield "No kernel was repeated."
        return
    yield (
        "| kernel | reference's change | time between loadings | time | energy | EDP "
        "| energy's scatter | interval |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for kernel in tested:
        count = len(kernel.repeats)
        held = " | ".join(f"{kernel.covered(metric)} of {count}" for metric in METRICS)
        yield (
            f"| {kernel.name} | {kernel.reference.change:+.2%} | {_between_loadings(kernel)} "
            f"| {held} | {spread(kernel, 'energy'):.2%} | ±{_half_width(kernel):.2%} |"
        )
    count = sum(len(kernel.repeats) for kernel in tested)
    for metric in METRICS:
        covered = sum(kernel.covered(metric) for kernel in tested)
        pooled = math.sqrt(fmean(spread(kernel, metric) ** 2 for kernel in tested))
        yield ""
        yield (
            f"{metric}: {covered} of {count} intervals hold the reference ({covered / count:.1%}); "
            f"root mean square of the errors {pooled:.3%}, "
            f"standard deviation between items of a kernel {between_items(tested, metric):.3%}"
        )
    items = [one for kernel in tested for one in kernel.repeats]
    yield ""
    mean_s = fmean(one.seconds for one in items)
    yield f"An item took {mean_s:.2f} s on average, verification included."


def spread(kernel: Validated, metric: Metric) -> float:
    """Root mean square of the repeats' errors relative to the reference, as a fraction."""
    return math.sqrt(fmean(kernel.error(one, metric) ** 2 for one in kernel.repeats))


def between_items(kernels: Sequence[Validated], metric: Metric) -> float:
    """Standard deviation of our items about their kernel's mean, pooled over repeated ``kernels``.

    As a fraction. Includes the first item as well as the repeats; the reference is not used.
    """
    squares, degrees = 0.0, 0
    for kernel in kernels:
        errors = [kernel.error(one, metric) for one in (kernel.ours, *kernel.repeats)]
        squares += variance(errors) * len(kernel.repeats)
        degrees += len(kernel.repeats)
    return math.sqrt(squares / degrees)


def _between_loadings(kernel: Validated) -> str:
    times_ms = [part.time_ms for part in kernel.reference.parts]
    return f"{stdev(times_ms) / fmean(times_ms):.3%}" if len(times_ms) > 1 else ""


def _half_width(kernel: Validated) -> float:
    spans = [one.intervals["energy"] for one in kernel.repeats if one.intervals]
    return fmean((span.high - span.low) / 2 for span in spans) / kernel.reference.energy_mj


def plot(validation: Validation) -> dict[str, Any]:
    """A Vega-Lite specification: error of energy against seconds used, a mark for each attempt."""
    rows = [
        {
            "kernel": kernel.name,
            "protocol": one.protocol,
            "seconds": one.seconds,
            "error": 100 * abs(kernel.error(one, "energy")),
        }
        for kernel in validation.kernels
        for one in kernel.attempts
    ]
    run = validation.run
    name = f"{run['gpu_name']}{' (emulated)' if run['emulated'] else ''}"
    error = {
        "field": "error",
        "type": "quantitative",
        "title": "error of the energy of a launch, absolute (%)",
        "scale": {"type": "symlog", "constant": 0.1},
        "axis": {"values": [0, 0.1, 1, 10, 100, 1000], "format": "~r"},
    }
    seconds = {
        "field": "seconds",
        "type": "quantitative",
        "title": "seconds used",
        "scale": {"type": "log"},
    }
    names = sorted({row["protocol"] for row in rows}, key=lambda name: (name != OURS, name))
    # The same domain everywhere, for a single legend.
    protocol = {"field": "protocol", "type": "nominal", "scale": {"domain": names}}
    return {
        "title": f"Energy of a launch against steady running, {name}",
        "data": {"values": rows},
        "width": 480,
        "height": 320,
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85},
                "encoding": {
                    "x": seconds,
                    "y": error,
                    "color": protocol,
                    "shape": protocol,
                },
            },
            {
                "data": {"values": [{"limit": 1}]},
                "mark": {"type": "rule", "strokeDash": [4, 4]},
                "encoding": {"y": {"field": "limit", "type": "quantitative"}},
            },
        ],
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if the file cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("validation", type=Path, help="File written by --validation-json")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="Draw to this .svg or .png")
    arguments = parser.parse_args(words)
    try:
        validation = read_validation(arguments.validation)
        for line in tables(validation):
            print(line)
        if arguments.plot is not None:
            draw(plot(validation), arguments.plot)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
