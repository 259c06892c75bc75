"""``gpuenergy profile``: a language model's inference under PyTorch's profiler."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import Subparsers, add_command, count, print_json, print_lines, tell
from pytest_gpuenergy.support.errors import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.engine.station import Station
    from pytest_gpuenergy.replay.extraction import Extraction
    from pytest_gpuenergy.replay.profiling import Profiled, ProfileRecord
    from pytest_gpuenergy.replay.sampling import PowerSampler

_HOST = "cpu"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``profile``."""
    parser = add_command(
        subparsers,
        "profile",
        run,
        summary="Profile a language model's inference, and extract its kernels",
        description="Generates tokens once to warm up and once, or --runs times, under PyTorch's "
        "profiler, and does what gpuenergy extract does with the trace. On a real GPU, the card's "
        "power samples are put on the time axis of the trace. bloom-560m and vicuna-7b have their "
        "published configuration, and random weights unless transformers has their checkpoint in "
        "its cache; so has a folder with config.json alone. Of module:function, a call without "
        "arguments is profiled. Needs the extra replay.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy profile mymodel:generate --out mine/
gpuenergy profile vicuna-7b --tp 2 --out vicuna-tp2/
gpuenergy profile ./my-model --prompt-tokens 128 --new-tokens 8 --dtype bfloat16 --out mine/
""",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="bloom-560m, vicuna-7b, a folder, a name on the hub, or module:function",
    )
    numbers = (
        ("--prompt-tokens", 1024, "Tokens of each prompt"),
        ("--new-tokens", 32, "Tokens to generate"),
        ("--batch", 1, "Prompts at once"),
        ("--runs", 1, "Times to run under the profiler, after once to warm up"),
    )
    for name, default, what in numbers:
        parser.add_argument(
            name, metavar="N", type=count, default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        default="float16",
        help="Default: float16",
    )
    parser.add_argument(
        "--attention",
        choices=("auto", "sdpa", "eager"),
        default="auto",
        help="Implementation of the attention (default: auto, which transformers chooses)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="Of tokens and random weights (default: 0)"
    )
    parser.add_argument(
        "--gpu-device",
        "--gpu",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, or a UUID, for --tp a list; cpu profiles operators on the host "
        "(default: auto)",
    )
    parser.add_argument(
        "--tp",
        metavar="N",
        type=count,
        default=1,
        help="GPUs of this host that share the model, tensor parallel, in N processes, which "
        "torchrun may have started (default: 1)",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="Folder to write to")
    parser.add_argument("--json", action="store_true", help="Print a summary as JSON")


def run(arguments: Namespace) -> int:
    """Load, profile, extract, write, and print a summary; with ``--tp``, in several processes."""
    from pytest_gpuenergy.replay.programs import check_packages, is_function
    from pytest_gpuenergy.replay.ranks import is_rank, run_ranks
    from pytest_gpuenergy.replay.summary import json_document, terminal
    from pytest_gpuenergy.support.json_output import plain

    check_packages(arguments.model)
    if arguments.tp > 1 and is_function(arguments.model):
        raise InputError(
            f"--tp divides language models, and {arguments.model} is a function: leave it out."
        )
    if arguments.tp > 1 and not is_rank():
        return run_ranks(arguments.words, arguments.tp, arguments.out)
    with ExitStack() as stack:
        record, found = _profiled(arguments, stack)
    if record.rank:
        return 0
    if arguments.json:
        print_json({**json_document(found), "profile": plain(record), "folder": str(arguments.out)})
        return 0
    each = f" on each of {record.ranks} GPUs" if record.ranks > 1 else ""
    print_lines(
        [
            f"{record.model}: {record.parameters / 1e6:.0f} million parameters{each}, "
            f"{record.weights} weights, {record.dtype}, on {record.device}",
            *terminal(found),
            *([] if record.power is None else [record.power.sentence]),
            "",
            f"written to {arguments.out}",
        ]
    )
    return 0


def _profiled(arguments: Namespace, stack: ExitStack) -> tuple[ProfileRecord, Extraction]:
    """Profile as this rank, and write its files; the first rank writes those of all.

    Returns:
        What was profiled, and what was found in the trace, of all ranks for the first one.
    """
    from pytest_gpuenergy.commands.extract import write_results
    from pytest_gpuenergy.replay.calls import unevenly_called, unique_calls, write_calls
    from pytest_gpuenergy.replay.extraction import extract
    from pytest_gpuenergy.replay.models import load_program
    from pytest_gpuenergy.replay.profiling import profile_program, write_profile
    from pytest_gpuenergy.replay.programs import Prompt, is_function
    from pytest_gpuenergy.replay.ranks import ALONE, folder_of_rank, joined, rank_of_process
    from pytest_gpuenergy.replay.sampling import PowerSampler

    prompt = Prompt(0, 0, 0, arguments.seed)
    if not is_function(arguments.model):
        prompt = Prompt(
            arguments.prompt_tokens, arguments.new_tokens, arguments.batch, arguments.seed
        )
    tp, ranks, folder = arguments.tp, ALONE, arguments.out
    device, sampler = arguments.gpu_device, None
    if device != _HOST:
        device, station = torch_device(device, stack, rank_of_process(tp), tp)
        sampler = PowerSampler(station.device)
    if tp > 1:
        ranks = stack.enter_context(joined(tp, device))
        folder = folder_of_rank(arguments.out, ranks.rank)
    program = load_program(
        arguments.model,
        dtype=arguments.dtype,
        attention=arguments.attention,
        seed=arguments.seed,
        device=device,
        ranks=ranks,
    )
    with sampler or nullcontext():
        profiled = profile_program(program, prompt, folder, device, arguments.runs, sampler, ranks)
    record = profiled.record
    found = extract(folder, host=device == _HOST)
    if sampler is not None:
        record, found = _with_power(sampler, profiled, found, folder)
    write_results(found, folder, record.model)
    calls = unique_calls(found.launches, profiled.forms)
    write_calls(calls, folder)
    if uneven := unevenly_called(calls, record.runs):
        tell(
            f"{uneven} of {len(calls)} unique calls were not made equally often in each run: "
            "accounts count those of the first."
        )
    ranks.gathered(None)  # all have written
    if tp > 1 and ranks.rank == 0:
        write_profile(record, arguments.out)
        found = extract(arguments.out, host=device == _HOST)
        write_results(found, arguments.out, record.model)
    return record, found


def _with_power(
    sampler: PowerSampler, profiled: Profiled, found: Extraction, folder: Path
) -> tuple[ProfileRecord, Extraction]:
    """The profile with the card's power samples, which are written; without them if there are none.

    Raises:
        OSError: a file cannot be written.
    """
    from msgspec.structs import replace

    from pytest_gpuenergy.replay.clocks import ClockError
    from pytest_gpuenergy.replay.power import write_power
    from pytest_gpuenergy.replay.profiling import write_profile

    try:
        power, curve = sampler.placed(profiled.reads, found.clock)
    except ClockError as error:
        tell(f"The profile has no power samples. {error}")
        return profiled.record, found
    record = replace(profiled.record, power=power)
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
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.engine.station import Station
    from pytest_gpuenergy.replay.ranks import device_word

    word, index = device_word(spec, rank, count)
    gpu = stack.enter_context(open_device(word, index=index))
    ordinal = getattr(gpu, "ordinal", None)
    if ordinal is None:
        raise InputError(
            "PyTorch's kernels need a real GPU: the emulated one runs CUDA text only. Where there "
            "is none, gpuenergy profile --gpu-device cpu profiles operators on the host."
        )
    return f"cuda:{ordinal}", stack.enter_context(Station(gpu))
