"""How long calls take at each place in a model's layers, and alone, by PyTorch's profiler.

    python studies/call_places.py bench/profiles/bloom-560m --step 0

All layers make the same calls at the same places. Where the same call takes longer at one place
than at another, its neighbours there do that. The last column has all calls that launch the same
kernels, whatever their arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay import (
    LaunchForm,
    TraceLaunch,
    launches,
    profiled_gpu_us,
    read_calls,
    read_measurements,
    read_trace,
    replayed_key,
)
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError

_NAME = 40


def places(trace: Sequence[TraceLaunch], step: int) -> list[list[list[TraceLaunch]]]:
    """Return the launches of a step's calls in layers, by their place and then by layer.

    Raises:
        InputError: The layers do not make the same number of calls.
    """
    layers: dict[int, dict[int, list[TraceLaunch]]] = {}
    for launch in trace:
        if launch.step == step and launch.layer is not None and launch.call is not None:
            layers.setdefault(launch.layer, {}).setdefault(launch.call, []).append(launch)
    if len({len(calls) for calls in layers.values()}) != 1:
        raise InputError(f"Step {step} has no layers that make equally many calls.")
    return [
        list(place) for place in zip(*(calls.values() for calls in layers.values()), strict=True)
    ]


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if the profile cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("folder", type=Path, help="Folder of gpuenergy profile")
    parser.add_argument("--step", type=int, default=0)
    arguments = parser.parse_args(words)
    folder = arguments.folder
    measured: dict[str, Measurement] = {
        replayed_key(one): one for one in read_measurements(folder / "results/measurements.jsonl")
    }
    alone: dict[tuple[LaunchForm, ...], list[str]] = {}
    for call in read_calls(folder):
        found = measured.get(call.id)
        alone_us = None if found is None else profiled_gpu_us(found)
        if call.steps.get(arguments.step) and alone_us is not None:
            alone.setdefault(call.launches, []).append(f"{alone_us:.2f}")
    rows = []
    means_us, medians_us = 0.0, 0.0
    for number, place in enumerate(
        places(launches(read_trace(folder / "trace.json.gz")), arguments.step)
    ):
        times_us = [sum(launch.duration_us for launch in call) for call in place]
        means_us += len(times_us) * fmean(times_us)
        medians_us += len(times_us) * median(times_us)
        forms = tuple(map(LaunchForm.of, place[0]))
        rows.append(
            (
                str(number),
                str(place[0][0].dispatched),
                place[0][0].name[:_NAME].replace("|", "/"),
                f"{fmean(times_us):.2f}",
                ", ".join(alone.get(forms, [])),
            )
        )
    print(markdown_table(("place", "operator", "first kernel", "in the model (µs)", "alone"), rows))
    print(f"\nMeans over layers are {means_us / medians_us - 1:+.2%} above their medians.")


if __name__ == "__main__":
    sys.exit(main())
