"""Writes a recorded search space of our own, in the T4 form of the auto-tuning community.

    python studies/record_space.py space.json.gz

It has the choices of the template for float32 products (`gemm/simt.py`) for one product, with the
time that the template's own estimate gives for each on the emulated H200. No kernel was compiled or
run: compiling all of them for the host would take hours. The estimate was fitted to times of
H200s; it has the waves of blocks, the limits of shared memory and registers and the power limit of
the card, and so a landscape like that of a real one. It is deterministic, but changes with the
estimate: `studies/spaces` has what it was when strategies were compared.
"""

from __future__ import annotations

import gzip
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice
from pytest_gpuenergy.support import InputError, encode, write_atomically
from pytest_gpuenergy.tuners import SimtParameters
from pytest_gpuenergy.tuning import CardResources, card_resources
from pytest_gpuenergy.workloads import Gemm

PRODUCT = Gemm("1024", 1024, 1024, 1024)
CHOICES: dict[str, Sequence[int]] = {
    "tile_m": (32, 64, 96, 128, 256),
    "tile_n": (32, 64, 96, 128, 256),
    "tile_k": (8, 16, 32),
    "stages": (2, 3, 4),
    "thread_m": (4, 8),
    "thread_n": (4, 8),
    "slices": (1, 2, 4),
    "split": (1, 2, 3, 4),
}
"""``split`` is the number of blocks that compute a tile; the others are parameters of the
template."""
_MOST_THREADS = 1024
_LEAST_THREADS = 32


def results(gemm: Gemm, card: CardResources, clock_mhz: float) -> Iterator[dict[str, Any]]:
    """One for each choice that can be written as a kernel, in the order of `CHOICES`."""
    for values in itertools.product(*CHOICES.values()):
        configuration = dict(zip(CHOICES, values, strict=True))
        try:
            one = parameters(configuration, gemm)
        except InputError:  # warps do not fill the tile, or slices the step
            continue
        if _LEAST_THREADS <= one.threads <= _MOST_THREADS:
            yield result(configuration, time_ms(one, gemm, card, clock_mhz))


def parameters(configuration: dict[str, int], gemm: Gemm) -> SimtParameters:
    """Those of the template.

    Raises:
        InputError: no kernel can have them.
    """
    chosen = {name: value for name, value in configuration.items() if name != "split"}
    one = SimtParameters(**chosen, blocks=0)
    split = configuration["split"]
    return one if split == 1 else replace(one, blocks=split * one.tiles(gemm))


def time_ms(one: SimtParameters, gemm: Gemm, card: CardResources, clock_mhz: float) -> float | None:
    """The estimated time; None if no block fits on a multiprocessor."""
    if one.resident(gemm, card) == 0:
        return None
    return one.cycles(gemm, card) / (clock_mhz * 1e3)


def result(configuration: dict[str, int], estimated_ms: float | None) -> dict[str, Any]:
    """As T4 has it; correctness says nothing here."""
    if estimated_ms is None:
        return {
            "configuration": configuration,
            "times": {},
            "invalidity": "constraints",
            "correctness": 0,
        }
    measurement = {"name": "time", "value": float(f"{estimated_ms:.5g}"), "unit": "ms"}
    return {
        "configuration": configuration,
        "times": {},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [measurement],
        "objectives": ["time"],
    }


def document() -> dict[str, Any]:
    """The whole file."""
    with EmulatedDevice() as device:
        found = list(results(PRODUCT, card_resources(device), DEFAULT_PROFILE.max_clock_mhz))
    return {
        "schema_version": "1.0.0",
        "metadata": {
            "emulated": True,
            "device": f"emulated {DEFAULT_PROFILE.name}",
            "kernel": "cuda/gemm/simt.cu",
            "problem": "float32 product of 1024 x 1024 matrices, layout nn",
            "times": "estimated by SimtParameters.cycles at the highest clock; nothing was run",
            "script": "studies/record_space.py",
        },
        "results": found,
    }


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if the file cannot be written."""
    parser = study_parser(__doc__)
    parser.add_argument("path", type=Path, help="File to write; its name ends in .json.gz")
    arguments = parser.parse_args(words)
    content = encode(document())
    write_atomically(arguments.path, gzip.compress(content, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
