"""Runs a language model under PyTorch's profiler, with annotations for phases and layers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from pytest_gpuenergy.devices import stop_tracing_at_exit
from pytest_gpuenergy.replay.calls import CallForm
from pytest_gpuenergy.replay.clocks import CLOCK, ClockRead
from pytest_gpuenergy.replay.kernel_list import list_in
from pytest_gpuenergy.replay.power import POWER_CSV, PowerAlignment
from pytest_gpuenergy.replay.programs import Program, Prompt
from pytest_gpuenergy.replay.ranks import ALONE, Ranks, folder_of_rank
from pytest_gpuenergy.replay.trace import write_trace
from pytest_gpuenergy.support import (
    DeviceError,
    FormError,
    InputError,
    decode,
    dump,
    is_file,
    is_folder,
    read_bytes,
    write_atomically,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.power import PowerSampler

TRACE = "trace.json.gz"
TRACES = (TRACE, "trace.json")
"""Names under which a folder may have a trace; ours is the first."""
PROFILE_JSON = "profile.json"
HOST = "cpu"
"""The device of a profile of the host's operators."""
SCHEMA_VERSION = 1

_LARGEST_BYTES = 1 << 20
_MOST_RANKS = 1 << 10

_READS = 32
"""Of the host's clock at the beginning, and at the end."""


class ProfileRecord(Struct, frozen=True):
    """What was profiled, and with what; stands in ``profile.json``.

    Several ``ranks`` share a model, and ``parameters`` are those of this ``rank``.

    A function has no prompt, tokens or attention: its numbers of tokens are 0, and ``weights``,
    ``attention`` and ``dtype`` are ``own``.

    Attributes:
        runs: that were profiled, one after another.
        power: of the samples in ``power.csv``; None without them.
        export: the file that the model was exported to; empty if it was not.
    """

    model: str
    weights: str
    attention: str
    dtype: str
    parameters: int
    layers: int
    prompt_tokens: int
    new_tokens: int
    batch: int
    seed: int
    device: str
    torch: str
    transformers: str
    rank: int = 0
    ranks: int = 1
    schema_version: int = SCHEMA_VERSION
    runs: int = 1
    power: PowerAlignment | None = None
    export: str = ""

    @property
    def work(self) -> str:
        """What a step's time and energy depend on, in words."""
        return (
            f"{self.model}, {self.weights} weights of seed {self.seed}, {self.dtype}, "
            f"{self.attention} attention, {self.batch} prompts of {self.prompt_tokens} tokens, "
            f"rank {self.rank} of {self.ranks}, PyTorch {self.torch}, "
            f"transformers {self.transformers}"
        )

    def steps(self, decode: int) -> tuple[int, ...]:
        """The prefill, which is 0, and the decode step ``decode``, if any has been profiled.

        Raises:
            InputError: there are decode steps, but not this one.
        """
        last = max(0, self.new_tokens - 1)
        if last and not 0 < decode <= last:
            raise InputError(
                f"The profile of {self.model} has no decode step {decode}: give 1 to {last}."
            )
        return (0, decode) if last else (0,)

    def step_name(self, step: int) -> str:
        """The words for a step."""
        if not self.new_tokens:
            return "call"
        return "prefill" if step == 0 else f"decode step {step}"

    def tokens(self, step: int) -> int | None:
        """Of the prompts for the prefill, generated ones for a decode step; None for a function."""
        if not self.new_tokens:
            return None
        return self.batch * (self.prompt_tokens if step == 0 else 1)


def read_profile(folder: Path) -> ProfileRecord:
    """What a run's folder is the profile of.

    Raises:
        InputError: it has no profile, or a damaged one.
    """
    path = folder / PROFILE_JSON
    if not is_file(path):
        if list_in(folder) is not None:
            raise InputError(
                f"The folder {folder} has unique kernels and no {PROFILE_JSON}, without which the "
                "model that made their calls cannot be run again: profile it with gpuenergy "
                "profile MODEL, and replay that."
            )
        raise InputError(
            f"The folder {folder} has no {PROFILE_JSON}: name one that gpuenergy profile has "
            "written."
        )
    content = read_bytes(path, "profile", _LARGEST_BYTES)
    try:
        record = decode(content, ProfileRecord, "the profile")
        _check(record)
    except FormError as error:
        raise InputError(f"{path} is damaged ({error}): profile again.") from None
    if record.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {record.schema_version}, but this release reads version "
            f"{SCHEMA_VERSION}: use the release that wrote it, or profile again."
        )
    return record


def _check(record: ProfileRecord) -> None:
    if not 0 <= record.rank < record.ranks <= _MOST_RANKS:
        raise FormError(f"it is of rank {record.rank} of {record.ranks}")
    for name in ("prompt_tokens", "new_tokens", "batch"):
        if (number := getattr(record, name)) < 0:
            raise FormError(f"{name} is {number}")


def rank_folders(folder: Path) -> list[Path]:
    """The folders of the ranks, where several share the model; none for a single GPU.

    Raises:
        InputError: the folder's profile is damaged, or a rank's folder is missing.
    """
    found = list(takewhile(is_folder, (folder_of_rank(folder, rank) for rank in count())))
    is_ranks_own = not found and any(is_file(folder / name) for name in TRACES)
    if is_ranks_own or not is_file(folder / PROFILE_JSON):
        return found
    ranks = read_profile(folder).ranks
    if ranks == 1:  # an earlier profile may have left some
        return []
    if len(found) < ranks:
        raise InputError(
            f"{folder} is the profile of a model on {ranks} GPUs, and has no folder "
            f"{folder_of_rank(folder, len(found)).name}: profile again."
        )
    return found[:ranks]


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


def write_profile(record: ProfileRecord, folder: Path) -> None:
    """Write ``profile.json``.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(folder / PROFILE_JSON, dump(record))


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
