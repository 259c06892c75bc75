"""Runs a language model under PyTorch's profiler, with annotations for phases and layers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuenergy.devices import stop_tracing_at_exit
from pytest_gpuenergy.replay.calls import CallForm
from pytest_gpuenergy.replay.clocks import CLOCK, ClockRead
from pytest_gpuenergy.replay.power import POWER_CSV
from pytest_gpuenergy.replay.profile_folder import (
    TRACE,
    ProfileRecord,
    write_profile,
)
from pytest_gpuenergy.replay.programs import Program, Prompt
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.replay.trace import write_trace
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.power import PowerSampler


_READS = 32
"""Of the host's clock at the beginning, and at the end."""


class Profiled(NamedTuple):
    """A program that has been profiled.

    Attributes:
        record: what it is, and with what.
        forms: of each call of an operator, by its number.
        reads: of the host's clock, each within an annotation `CLOCK` of the trace.
    """

    record: ProfileRecord
    forms: list[CallForm]
    reads: list[ClockRead]


def profile_program(
    program: Program,
    prompt: Prompt,
    folder: Path,
    device: str,
    runs: int = 1,
    sampler: PowerSampler | None = None,
    ranks: Ranks = ALONE,
) -> Profiled:
    """Run once to warm up, and then under the profiler; write the trace and what it is of.

    Args:
        program: to run.
        prompt: what for.
        folder: to write ``trace.json.gz`` and ``profile.json`` to; made if need be.
        device: PyTorch's name of it.
        runs: under the profiler.
        sampler: collects the card's power samples already.
        ranks: that run it together.

    Raises:
        InputError: it was exported for another prompt.
        DeviceError: the device's memory is too small.
        ReportError, OSError: a file cannot be written.
    """
    import torch
    from torch.profiler import record_function

    from pytest_gpuenergy.replay.capture import CallRecorder

    folder.mkdir(parents=True, exist_ok=True)
    steps = max(1, prompt.new_tokens)
    try:
        with torch.inference_mode(), layers_annotated(program):
            inputs = program.inputs(prompt, device)
            program.run(inputs, steps)  # libraries choose and allocate
            recorder = CallRecorder(program.modules)
            settle(device)
            ranks.gathered(None)  # so that all begin together
            with profiler_on(device) as profiler:
                reads = _read_clocks()
                with recorder:
                    for number in range(runs):
                        with record_function(f"run {number}"):
                            program.run(inputs, steps)
                settle(device)
                reads += _read_clocks()
                if sampler is not None:  # while the card has them: the profiler takes its time
                    sampler.finish(reads[-1].host_ns)
    except InputError:
        raise
    except Exception as error:  # a function may raise anything
        raise DeviceError(_failure(program, prompt, device, error)) from None
    (folder / POWER_CSV).unlink(missing_ok=True)  # of another trace
    write_trace(profiler, folder / TRACE)
    weights = [one for module in program.modules.values() for one in module.parameters()]
    record = ProfileRecord(
        model=program.name,
        weights=program.weights,
        attention=program.attention,
        dtype=program.dtype,
        parameters=sum(one.numel() for one in weights),
        layers=len(program.layers),
        prompt_tokens=prompt.tokens,
        new_tokens=prompt.new_tokens,
        batch=prompt.batch,
        seed=prompt.seed,
        device=_name(device),
        torch=torch.__version__,
        transformers=_version("transformers"),
        rank=ranks.rank,
        ranks=ranks.count,
        runs=runs,
    )
    write_profile(record, folder)
    return Profiled(record, recorder.forms, reads)


def _read_clocks() -> list[ClockRead]:
    from torch.profiler import record_function

    found = []
    for _ in range(_READS):
        with record_function(CLOCK):
            found.append(ClockRead(time.time_ns(), time.monotonic_ns()))
    return found


def _failure(program: Program, prompt: Prompt, device: str, error: Exception) -> str:
    import torch

    reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    size = f"a batch of {prompt.batch} and {prompt.tokens} tokens" if prompt.new_tokens else ""
    what, advice = (f" with {size}", "a smaller --batch or --prompt-tokens") if size else ("", "")
    if isinstance(error, torch.OutOfMemoryError) or "t allocate memory" in reason:
        return (
            f"{program.name} does not fit into the memory of {device}{what}: give "
            f"{advice or 'it less to do'}."
        )
    return (
        f"{program.name} failed on {device}{what} ({reason}): "
        f"{'give another model or size' if size else 'mend it'}."
    )


def profiler_on(device: str) -> Any:
    """PyTorch's profiler of what the host and ``device`` do; a context manager."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
        stop_tracing_at_exit()
    return profile(activities=activities, record_shapes=True, acc_events=True)


def settle(device: str) -> None:
    """Wait until ``device`` has finished."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@contextmanager
def layers_annotated(program: Program) -> Iterator[None]:
    """Let each layer run within an annotation such as ``layer 3``."""
    from torch.profiler import record_function

    hooks = []
    for number, layer in enumerate(program.layers):
        open_ones: list[Any] = []

        def enter(*_: Any, number: int = number, open_ones: list[Any] = open_ones) -> None:
            open_ones.append(record_function(f"layer {number}"))
            open_ones[-1].__enter__()

        def leave(*_: Any, open_ones: list[Any] = open_ones) -> None:
            open_ones.pop().__exit__(None, None, None)

        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
