"""Our depthwise convolutions against cuDNN: time and energy of each such layer of MobileNet.

    python studies/depthwise.py --json depthwise.json
    python studies/depthwise.py --json depthwise.json --layers dw01,dw09 --trials 300
    python studies/depthwise.py --json depthwise.json --table

Each layer (one image, float32) is tuned for time with our templates. The fastest kernel found is
measured, and so is cuDNN, through PyTorch, with ``cudnn.benchmark``, for contiguous tensors and for
``channels_last``. All are captured in CUDA graphs and measured in one session and process,
one after the other, because a process that has launched from the host, as cuDNN's choice of an
algorithm does, launches more slowly afterwards. What is compared is the fastest of each side.
Results are written after each layer, and layers that the file has are not measured again: the same
command continues an interrupted run.

Without PyTorch or on the emulated GPU only our kernels are measured, and the table says why.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from depthwise_results import Results, load, table
from depthwise_sides import Search, measured, missing_reason, tell, tuned
from study_command import study_parser

from pytest_gpuenergy.engine import Station, open_station
from pytest_gpuenergy.support import GpuEnergyError, InputError, KernelFault, plain
from pytest_gpuenergy.workloads import Conv2d

# Height and width of the input, channels, stride; windows are 3 x 3, padded by 1.
_MOBILENET_V1 = (
    (112, 32, 1),
    (112, 64, 2),
    (56, 128, 1),
    (56, 128, 2),
    (28, 256, 1),
    (28, 256, 2),
    (14, 512, 1),
    (14, 512, 2),
    (7, 1024, 1),
)
_MOBILENET_V2 = (
    (112, 32, 1),
    (112, 96, 2),
    (56, 144, 1),
    (56, 144, 2),
    (28, 192, 1),
    (28, 192, 2),
    (14, 384, 1),
    (14, 576, 1),
    (14, 576, 2),
    (7, 960, 1),
)
"""Depthwise layers at 224 x 224: MobileNets (Howard et al., 2017), table 1; MobileNetV2 (Sandler et
al., 2018), table 2."""
LAYERS = tuple(
    Conv2d.of(f"dw{number:02d}", 1, size, size, channels, channels, 3, 3, stride, 1, 1, channels)
    for number, (size, channels, stride) in enumerate(
        dict.fromkeys((*_MOBILENET_V1, *_MOBILENET_V2)), start=1
    )
)
_TRIALS = 128


def run(arguments: argparse.Namespace, stop: Event) -> dict[str, Any]:
    """Measure the layers, and return the content of the file."""
    end_s = time.monotonic() + (arguments.limit_s or math.inf)
    longest_s = 0.0
    with open_station(arguments.gpu_device) as station:
        results = Results(arguments.json, _about(station))
        reason = missing_reason(station)
        search = Search(arguments.out, arguments.trials, arguments.kernels)
        harness = station.harness()
        for workload in arguments.layers:
            if workload.name in results:
                continue
            if stop.is_set():
                raise KeyboardInterrupt
            began = time.monotonic()
            if began + longest_s > end_s:
                tell(f"{workload.name} and what follows it: not within --limit-s")
                break
            try:
                kernels, found = tuned(station, workload, search, stop)
                measurements = measured(
                    station, harness, kernels, workload, alone=reason is not None
                )
            except (KernelFault, RuntimeError) as fault:  # PyTorch's and CuPy's, too
                tell(f"{workload.name}: {str(fault).strip().partition(chr(10))[0]}")
                continue
            failed = [m.error for m in measurements if not m.measured]
            flags = sorted({flag for m in measurements for flag in m.validity})
            notes = "; ".join([*filter(None, [reason]), *filter(None, failed), *flags])
            results.add(
                workload.name,
                {
                    "workload": dict(workload.parameters),
                    "search": found,
                    "notes": notes,
                    "measurements": [plain(m) for m in measurements],
                },
            )
            longest_s = max(longest_s, time.monotonic() - began)
            tell(f"{workload.name}: done in {time.monotonic() - began:.0f} s")
    return results.content


def _about(station: Station) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    software = {}
    for name in ("pytest-gpuenergy", "torch", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"):
        try:
            software[name] = version(name)
        except PackageNotFoundError:
            continue
    device = station.device
    return {
        "gpu": device.name,
        "uuid": device.uuid,
        "emulated": device.emulated,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": software,
        **device.describe(),
    }


def _layers(text: str) -> list[Conv2d]:
    known = {workload.name: workload for workload in LAYERS}
    names = [word.strip() for word in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not a layer: give some of {LAYERS[0].name} to {LAYERS[-1].name}"
        )
    return [known[name] for name in dict.fromkeys(names)]


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 30_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 30000")
    return int(text)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command: exit code 1 if layers are left, 2 if it cannot run."""
    from pytest_gpuenergy.support import interrupt_once

    parser = study_parser(__doc__)
    add = parser.add_argument
    add("--json", type=Path, required=True, metavar="PATH", help="File of results")
    add("--out", type=Path, metavar="DIR", help="Record files (default: beside --json)")
    add("--gpu-device", default="auto", metavar="DEVICE", help="As of gpuenergy (default: auto)")
    add(
        "--layers",
        type=_layers,
        default=list(LAYERS),
        metavar="LIST",
        help=f"Some of {LAYERS[0].name} to {LAYERS[-1].name} (default: all)",
    )
    add(
        "--trials",
        type=_positive,
        default=_TRIALS,
        metavar="N",
        help=f"Kernels to time for each layer (default: {_TRIALS})",
    )
    add(
        "--kernels",
        type=_positive,
        default=1,
        metavar="N",
        help="Of the kernels found, the number of the fastest to measure (default: 1)",
    )
    add("--limit-s", type=_positive, metavar="S", help="Begin no layer that would end later")
    add("--table", action="store_true", help="Measure nothing: print the table of --json")
    arguments = parser.parse_args(words)
    arguments.out = arguments.out or arguments.json.with_suffix(".records")
    stop = Event()
    try:
        if not arguments.table:
            with ExitStack() as stack:
                stack.enter_context(interrupt_once(stop))
                run(arguments, stop)
    except GpuEnergyError as error:
        tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        tell("interrupted; the same command continues")
    try:
        content = load(arguments.json)
    except InputError as error:
        tell(f"error: {error}")
        return 2
    print(table(content, LAYERS))
    left = [one.name for one in arguments.layers if one.name not in content["layers"]]
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
