"""Our depthwise convolutions against cuDNN: time and energy of each such layer of MobileNet.

    python bench/depthwise.py --json depthwise.json
    python bench/depthwise.py --json depthwise.json --layers dw01,dw09 --trials 300
    python bench/depthwise.py --json depthwise.json --table

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
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from threading import Event
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parent / "peers"))

from cudnn_convolution import FORMATS, SEED, convolution, cudnn_settings, error_bound

from pytest_gpuenergy.control.limits import enforced_setpoint
from pytest_gpuenergy.engine.callables import VerifiedCallable
from pytest_gpuenergy.engine.harness import Harness, Subject, describe_workload
from pytest_gpuenergy.engine.references import cached_reference
from pytest_gpuenergy.engine.results import Specification
from pytest_gpuenergy.engine.station import Station, open_station
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.ratio import log_ratio, sample
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError, KernelFault
from pytest_gpuenergy.support.files import is_file, write_atomically
from pytest_gpuenergy.support.json_input import convert
from pytest_gpuenergy.support.json_output import plain
from pytest_gpuenergy.tuners import Spaces, kernels_of, load_records
from pytest_gpuenergy.tuning.confirm import confirm_with
from pytest_gpuenergy.tuning.names import TEMPLATE
from pytest_gpuenergy.tuning.record_folders import find_records
from pytest_gpuenergy.tuning.tuner import Tuner, TuneSettings
from pytest_gpuenergy.tvm.settings import SearchSettings
from pytest_gpuenergy.workloads import Conv2d

if TYPE_CHECKING:
    from pytest_gpuenergy.workloads.workload import Workload

BENCH = "depthwise"
OURS, CUDNN = "ours", "cudnn"
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
_HEADER = (
    *("layer", "input", "stride", "ours µs", "cuDNN µs", "cuDNN / ours", "95 %"),
    *("ours mJ", "cuDNN mJ", "cuDNN / ours", "95 %", "notes"),
)
Layer = dict[str, Any]


class Results:
    """The file of results.

    Args:
        path: where it is; a file that is there is continued.
        about: the GPU, and versions.

    Raises:
        InputError: the file is of something else, or of another GPU.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self.content: dict[str, Any] = {"bench": BENCH, "about": dict(about), "layers": {}}
        if is_file(path):
            self.content = load(path)
            known = self.content["about"]
            if known["gpu"] != about["gpu"] or known["emulated"] != about["emulated"]:
                raise InputError(
                    f"{path} has results of {known['gpu']}, not of {about['gpu']}: give another "
                    "file to --json."
                )

    def __contains__(self, name: str) -> bool:
        return name in self.content["layers"]

    def add(self, name: str, layer: Layer) -> None:
        """Keep what was measured for a layer, on disk too."""
        self.content["layers"][name] = layer
        write_atomically(self._path, json.dumps(self.content, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """The content of a file of results.

    Raises:
        InputError: it is not one.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): give another file.") from None
    if not isinstance(content, dict) or content.get("bench") != BENCH:
        raise InputError(f"{path} is not a result of bench/depthwise.py: give another file.")
    return content


def tuned(
    station: Station, workload: Conv2d, arguments: argparse.Namespace, stop: Event
) -> tuple[list[Kernel], Layer]:
    """The fastest kernels of a search, and what is to be kept of it.

    Raises:
        InputError: no kernel runs.
        KeyboardInterrupt: ``stop`` was set.
    """
    with Spaces() as spaces:
        tuner = Tuner(
            device=station.device,
            make_space=spaces.of(TEMPLATE, station.device, SearchSettings(seed=0, threads=1)),
            folder=arguments.out,
            settings=TuneSettings(
                arguments.trials, keep=arguments.kernels, energy=False, resume=True, best_only=True
            ),
            confirm=confirm_with(station, energy=False, tell=_tell),
            tell=_tell,
            live=None,
            stop=stop,
        )
        began = time.monotonic()
        list(tuner.tune([workload]))
    file = load_records(find_records(arguments.out, workload, variant=TEMPLATE))
    ranks = file.ranks[: arguments.kernels]
    found = {
        "seconds": round(time.monotonic() - began, 1),
        "trials": file.trials_total,
        "valid": file.trials_valid,
        "recipes": [json.loads(file.record(rank).recipe) for rank in ranks],
    }
    return kernels_of(file, ranks), found


def missing_reason(station: Station) -> str | None:
    """Why cuDNN cannot be measured here, if so."""
    if station.device.emulated:
        return "cuDNN needs an NVIDIA GPU, and this one is emulated"
    try:
        import torch
    except ImportError:
        return "cuDNN is called through PyTorch, which is missing"
    if not torch.cuda.is_available() or not torch.backends.cudnn.is_available():
        return f"PyTorch {torch.__version__} has no CUDA or no cuDNN here"
    return None


def launcher(kernel: Kernel, workload: Workload) -> Callable[[], Any]:
    """A function that launches a kernel on the inputs of `SEED` and returns the output."""
    import cupy

    inputs = workload.make_inputs(SEED)
    arrays = {
        one.name: cupy.asarray(inputs[one.name])
        if one.name in inputs
        else cupy.empty(one.shape, one.dtype)
        for one in workload.tensors
    }
    (launch,) = kernel.launches
    module = cupy.RawModule(code=kernel.source, options=("-std=c++17",), backend="nvrtc")
    function = module.get_function(launch.entry)
    arguments = tuple(arrays[name] for name in launch.arguments)

    def launched() -> Any:
        function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)
        return arrays["output"]

    return launched


@contextmanager
def contenders(
    kernels: Sequence[Kernel], workload: Conv2d
) -> Iterator[dict[str, Callable[[], Any]]]:
    """What is launched by each side, in the order of the measurements, by label."""
    import torch

    with cudnn_settings(torch, "ieee"):
        ours = {
            f"{OURS}-{rank}": launcher(kernel, workload)
            for rank, kernel in enumerate(kernels, start=1)
        }
        theirs = {
            f"{CUDNN}-{name}": convolution(torch, workload, getattr(torch, attribute))
            for name, attribute in FORMATS.items()
        }
        pairs = zip(theirs.items(), ours.items(), strict=False)
        yield dict([*(one for pair in pairs for one in pair), *theirs.items(), *ours.items()])


def measured(
    station: Station, harness: Harness, kernels: Sequence[Kernel], workload: Conv2d, *, alone: bool
) -> list[Measurement]:
    """The measurements of a layer; if ``alone``, of our kernels only, in their own process."""
    enforced = enforced_setpoint(station.device)

    def subject(label: str) -> Subject:
        return Subject(f"{workload.name}-{label}", label, enforced=enforced)

    if alone:
        return [
            harness.measure_kernel(kernel, workload, subject(f"{OURS}-{rank}"))
            for rank, kernel in enumerate(kernels, start=1)
        ]
    reference = cached_reference(workload, SEED)["output"]
    specification = Specification(reference, error_bound(workload, "ieee"), workload)
    found = []
    with contenders(kernels, workload) as launched:
        verified = {
            label: VerifiedCallable.of(function, (), specification)
            for label, function in launched.items()
        }
        for label, one in verified.items():
            found.append(one.measure(harness, describe_workload(workload), subject(label)))
    return found


def best(layer: Layer, side: str) -> Measurement | None:
    """The fastest of a side's measurements that have figures."""
    found = [convert(one, Measurement) for one in layer["measurements"]]
    usable = [m for m in found if m.kernel.label.startswith(f"{side}-") and m.measured]
    return min(usable, key=lambda m: m.time_ms or math.inf, default=None)


def ratio(
    ours: Measurement | None, theirs: Measurement | None, metric: Metric
) -> tuple[float, float, float] | None:
    """The figure of cuDNN divided by ours, and its 95 % interval; None if one is missing."""
    samples = [sample(one, metric) if one else None for one in (ours, theirs)]
    if samples[0] is None or samples[1] is None:
        return None
    found = log_ratio(samples[0], samples[1], session_sd=0.0, tail=0.025)
    return math.exp(found.value), math.exp(found.low), math.exp(found.high)


def table(content: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows: list[list[str]] = []
    ratios: dict[Metric, list[float]] = {Metric.TIME: [], Metric.ENERGY: []}
    for workload in LAYERS:
        layer = content["layers"].get(workload.name)
        if layer is None:
            continue
        ours, theirs = best(layer, OURS), best(layer, CUDNN)
        cells = []
        for metric, name, scale, form in (
            (Metric.TIME, "time_ms", 1e3, ".2f"),
            (Metric.ENERGY, "energy_mj", 1.0, ".3f"),
        ):
            for one in (ours, theirs):
                value = getattr(one, name) if one else None
                cells.append("" if value is None else f"{value * scale:{form}}")
            found = ratio(ours, theirs, metric)
            ratios[metric] += [found[0]] if found else []
            cells += (
                [f"{found[0]:.2f}x", f"{found[1]:.2f} to {found[2]:.2f}"] if found else [""] * 2
            )
        s = workload.shape
        rows.append(
            [workload.name, f"{s.H} x {s.W} x {s.CI}", str(s.strides), *cells, layer["notes"]]
        )
    about = content["about"]
    title = f"{about['gpu']}{' (emulated)' if about['emulated'] else ''}, {about['started'][:10]}"
    software = ", ".join(f"{name} {version}" for name, version in about["software"].items())
    lines = [f"{title}, {software}.", "", markdown_table(_HEADER, rows, text=(0, 1, 11))]
    for metric, all_found in ratios.items():
        if all_found:
            lines += [
                "",
                f"{metric}: cuDNN / ours is {geometric_mean(all_found):.3f}x (geometric mean of "
                f"{len(all_found)}), {min(all_found):.3f}x at least.",
            ]
    return "\n".join(lines)


def run(arguments: argparse.Namespace, stop: Event) -> dict[str, Any]:
    """Measure the layers, and return the content of the file."""
    end_s = time.monotonic() + (arguments.limit_s or math.inf)
    longest_s = 0.0
    with open_station(arguments.gpu_device) as station:
        results = Results(arguments.json, _about(station))
        reason = missing_reason(station)
        harness = station.harness()
        for workload in arguments.layers:
            if workload.name in results:
                continue
            if stop.is_set():
                raise KeyboardInterrupt
            began = time.monotonic()
            if began + longest_s > end_s:
                _tell(f"{workload.name} and what follows it: not within --limit-s")
                break
            try:
                kernels, search = tuned(station, workload, arguments, stop)
                found = measured(station, harness, kernels, workload, alone=reason is not None)
            except KernelFault as fault:
                _tell(f"{workload.name}: {fault}")
                continue
            failed = [m.error for m in found if not m.measured]
            flags = sorted({flag for m in found for flag in m.validity})
            notes = "; ".join([*filter(None, [reason]), *filter(None, failed), *flags])
            results.add(
                workload.name,
                {
                    "workload": dict(workload.parameters),
                    "search": search,
                    "notes": notes,
                    "measurements": [plain(m) for m in found],
                },
            )
            longest_s = max(longest_s, time.monotonic() - began)
            _tell(f"{workload.name}: done in {time.monotonic() - began:.0f} s")
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


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
    from pytest_gpuenergy.support.signals import interrupt_once

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        _tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _tell("interrupted; the same command continues")
    try:
        content = load(arguments.json)
    except InputError as error:
        _tell(f"error: {error}")
        return 2
    print(table(content))
    left = [one.name for one in arguments.layers if one.name not in content["layers"]]
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
