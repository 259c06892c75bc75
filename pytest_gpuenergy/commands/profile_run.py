"""What ``gpuenergy profile`` does, in the one process or in each of several ranks."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.commands.extract import write_results
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.replay import (
    ALONE,
    HOST,
    ClockError,
    Extraction,
    PowerSampler,
    Profiled,
    ProfileRecord,
    Prompt,
    device_word,
    extract,
    folder_of_rank,
    joined,
    load_program,
    profile_program,
    rank_of_process,
    unevenly_called,
    unique_calls,
    write_calls,
    write_power,
    write_profile,
)
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.replay import Exported


class ProfileRun(NamedTuple):
    """What a process of ``gpuenergy profile`` has written.

    Attributes:
        record: what was profiled.
        extraction: what is in the trace; of all ranks for the first one.
        exported: how the model was exported; None if it was not.
    """

    record: ProfileRecord
    extraction: Extraction
    exported: Exported | None


def profiled(arguments: Namespace, stack: ExitStack) -> ProfileRun:
    """Profile as this rank, and write its files; the first rank writes those of all.

    Args:
        arguments: of the command.
        stack: closes what has to stay open meanwhile.
    """
    tp, ranks, folder = arguments.tp, ALONE, arguments.out
    device, sampler = arguments.gpu_device, None
    if device != HOST:
        device, station = torch_device(device, stack, rank_of_process(tp), tp)
        sampler = PowerSampler(station.device)
    if tp > 1:
        ranks = stack.enter_context(joined(tp, device))
        folder = folder_of_rank(arguments.out, ranks.rank)
    program = load_program(
        arguments.model,
        dtype=arguments.dtype or "float16",
        attention=arguments.attention or "auto",
        seed=arguments.seed or 0,
        device=device,
        ranks=ranks,
    )
    prompt = _prompt(program.prompt, arguments)
    with sampler or nullcontext():
        done = profile_program(program, prompt, folder, device, arguments.runs, sampler, ranks)
    record, found = done.record, extract(folder, host=device == HOST)
    if sampler is not None:
        record, found = _with_power(sampler, done, found, folder)
    write_results(found, folder, record.model)
    _write_calls(found, done, folder)
    ranks.gathered(None)  # all have written
    if tp > 1 and ranks.rank == 0:
        write_profile(record, arguments.out)
        found = extract(arguments.out, host=device == HOST)
        write_results(found, arguments.out, record.model)
    exported = None
    if arguments.export is not None:
        from pytest_gpuenergy.replay import export_program

        exported = export_program(program, record, done.forms, device, arguments.export)
        record = replace(record, export=exported.file)
        write_profile(record, folder)
    return ProfileRun(record, found, exported)


def _prompt(default: Prompt, arguments: Namespace) -> Prompt:
    """What the user asks for; a function has no prompt."""
    if not default.tokens:
        return dataclasses.replace(default, seed=arguments.seed or 0)
    options = {
        "tokens": arguments.prompt_tokens,
        "new_tokens": arguments.new_tokens,
        "batch": arguments.batch,
        "seed": arguments.seed,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return dataclasses.replace(default, **given)


def _write_calls(found: Extraction, done: Profiled, folder: Path) -> None:
    calls = unique_calls(found.launches, done.forms)
    write_calls(calls, folder)
    if uneven := unevenly_called(calls, done.record.runs):
        tell(
            f"{uneven} of {len(calls)} unique calls were not made equally often in each run: "
            "accounts count those of the first."
        )


def _with_power(
    sampler: PowerSampler, done: Profiled, found: Extraction, folder: Path
) -> tuple[ProfileRecord, Extraction]:
    """The profile with the card's power samples, which are written; without them if there are none.

    Raises:
        OSError: a file cannot be written.
    """
    try:
        power, curve = sampler.placed(done.reads, found.clock)
    except ClockError as error:
        tell(f"The profile has no power samples. {error}")
        return done.record, found
    record = replace(done.record, power=power)
    write_power(curve, folder)
    write_profile(record, folder)
    return record, dataclasses.replace(found, power=curve)


def torch_device(spec: str, stack: ExitStack, rank: int = 0, count: int = 1) -> tuple[str, Station]:
    """PyTorch's name of a GPU, and its station, which is open for as long as ``stack`` is.

    Args:
        spec: the value of ``--gpu-device``.
        stack: closes the station.
        rank: of this process.
        count: how many ranks there are, see `pytest_gpuenergy.replay.ranks.device_word`.

    Raises:
        InputError: there is no such GPU, or it is an emulated one.
        DeviceError: it cannot be used or claimed.
    """
    word, index = device_word(spec, rank, count)
    gpu = stack.enter_context(open_device(word, index=index))
    ordinal = getattr(gpu, "ordinal", None)
    if ordinal is None:
        raise InputError(
            "PyTorch's kernels need a real GPU: the emulated one runs CUDA text only. Where there "
            "is none, gpuenergy profile --gpu-device cpu profiles operators on the host."
        )
    return f"cuda:{ordinal}", stack.enter_context(Station(gpu))
