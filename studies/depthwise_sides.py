"""The two sides of `depthwise.py`: our tuned kernels, and cuDNN."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parent / "peers"))

from cudnn_convolution import FORMATS, SEED, convolution, cudnn_settings, error_bound

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.engine import (
    Harness,
    Specification,
    Station,
    Subject,
    VerifiedCallable,
    cached_reference,
    describe_workload,
)
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.tuners import SearchSettings, Spaces, kernels_of, load_records
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    StationConfirmer,
    Tuner,
    TuneSettings,
    TuningGpus,
    find_records,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.workloads import Conv2d, Workload

OURS, CUDNN = "ours", "cudnn"
"""How the labels of a side begin."""


@dataclass(frozen=True)
class Search:
    """How a layer is tuned.

    Attributes:
        folder: of record files.
        trials: kernels to time.
        kernels: of those found, the number of the fastest to measure.
    """

    folder: Path
    trials: int
    kernels: int


def tuned(
    station: Station, workload: Conv2d, search: Search, stop: Event
) -> tuple[list[Kernel], dict[str, Any]]:
    """The fastest kernels of a search, and what is to be kept of it.

    Raises:
        InputError: no kernel runs.
        KeyboardInterrupt: ``stop`` was set.
    """
    with Spaces() as spaces:
        tuner = Tuner(
            gpus=TuningGpus((station.device,), (StationConfirmer(station, tell),)),
            make_space=spaces.of(TEMPLATE, station.device, SearchSettings(seed=0, threads=1)),
            folder=search.folder,
            settings=TuneSettings(
                search.trials, keep=search.kernels, energy=False, resume=True, best_only=True
            ),
            tell=tell,
            live=None,
            stop=stop,
        )
        began = time.monotonic()
        list(tuner.tune([workload]))
    file = load_records(find_records(search.folder, workload, variant=TEMPLATE))
    ranks = file.ranks[: search.kernels]
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
    station.device.make_current()
    found = []
    with contenders(kernels, workload) as launched:
        verified = {
            label: VerifiedCallable.of(function, (), specification)
            for label, function in launched.items()
        }
        for label, one in verified.items():
            found.append(one.measure(harness, describe_workload(workload), subject(label)))
    return found


def tell(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
