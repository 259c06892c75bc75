"""``gpuenergy profile``: a language model's inference under PyTorch's profiler."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentTypeError, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_lines
from pytest_gpuenergy.support.errors import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.engine.station import Station
    from pytest_gpuenergy.replay.programs import Prompt

_HOST = "cpu"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``profile``."""
    parser = add_command(
        subparsers,
        "profile",
        run,
        summary="Profile a language model's inference, and extract its kernels",
        description="Generates tokens once to warm up and once under PyTorch's profiler, and does "
        "what gpuenergy extract does with the trace. bloom-560m and vicuna-7b have their published "
        "configuration, and random weights unless transformers has their checkpoint in its cache; "
        "so has a folder with config.json alone. Of module:function, a call without arguments is "
        "profiled; an exported file is profiled for what it was exported for. Needs the extra "
        "replay.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy profile bloom-560m --out bloom/ --export bloom.pt
gpuenergy profile bloom.pt --out again/
gpuenergy profile mymodel:generate --out mine/
gpuenergy profile ./my-model --prompt-tokens 128 --new-tokens 8 --dtype bfloat16 --out mine/
""",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="bloom-560m, vicuna-7b, a folder, a name on the hub, module:function, or a file of "
        "--export",
    )
    numbers = (
        ("--prompt-tokens", 1024, "Tokens of each prompt"),
        ("--new-tokens", 32, "Tokens to generate"),
        ("--batch", 1, "Prompts at once"),
    )
    for name, default, what in numbers:
        parser.add_argument(
            name, metavar="N", type=_count, help=f"{what} (default: {default}, or as exported)"
        )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        help="Default: float16",
    )
    parser.add_argument(
        "--attention",
        choices=("auto", "sdpa", "eager"),
        help="Implementation of the attention (default: auto, which transformers chooses)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="Of tokens and random weights (default: 0)"
    )
    parser.add_argument(
        "--gpu-device",
        "--gpu",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, or a UUID; cpu profiles operators on the host (default: auto)",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="Folder to write to")
    parser.add_argument(
        "--export",
        metavar="FILE",
        type=Path,
        help="Also write the model by torch.export, for use without its Python code",
    )
    parser.add_argument("--json", action="store_true", help="Print a summary as JSON")


def run(arguments: Namespace) -> int:
    """Load, profile, extract, write, and print a summary."""
    from pytest_gpuenergy.commands.extract import write_results
    from pytest_gpuenergy.replay.calls import unique_calls, write_calls
    from pytest_gpuenergy.replay.extraction import extract
    from pytest_gpuenergy.replay.models import load_program
    from pytest_gpuenergy.replay.profiling import profile_program, write_profile
    from pytest_gpuenergy.replay.programs import check_packages
    from pytest_gpuenergy.replay.summary import json_document, terminal
    from pytest_gpuenergy.support.json_output import plain

    _check(arguments)
    check_packages(arguments.model)
    with ExitStack() as stack:
        device = arguments.gpu_device
        if device != _HOST:
            device, _ = torch_device(device, stack)
        program = load_program(
            arguments.model,
            dtype=arguments.dtype or "float16",
            attention=arguments.attention or "auto",
            seed=arguments.seed or 0,
            device=device,
        )
        prompt = _prompt(program.prompt, arguments)
        record, forms = profile_program(program, prompt, arguments.out, device)
        found = extract(arguments.out, host=device == _HOST)
        write_results(found, arguments.out, record.model)
        write_calls(unique_calls(found.launches, forms), arguments.out)
        exported = None
        if arguments.export is not None:
            from pytest_gpuenergy.replay.exporting import export_program

            exported = export_program(program, record, forms, device, arguments.export)
            record = replace(record, export=exported.file)
            write_profile(record, arguments.out)
    if arguments.json:
        document = {**json_document(found), "profile": plain(record), "folder": str(arguments.out)}
        if exported is not None:
            document["export"] = plain(exported)
        print_json(document)
        return 0
    lines = [
        f"{record.model}: {record.parameters / 1e6:.0f} million parameters, {record.weights} "
        f"weights, {record.dtype}, on {record.device}",
        *terminal(found),
        "",
        f"written to {arguments.out}",
    ]
    if exported is not None:
        lines.append(
            f"exported to {arguments.export}: {exported.same_calls} of {exported.calls} calls of "
            "operators are those of the model"
        )
    print_lines(lines)
    return 0


def _check(arguments: Namespace) -> None:
    """Refuse what would fail after the model has run, or have no effect.

    Raises:
        InputError: an exported file is asked for what it cannot do.
        ReportError: the file to export to cannot be written.
    """
    from pytest_gpuenergy.replay.programs import is_export
    from pytest_gpuenergy.report.views import check_writable

    if is_export(arguments.model):
        if arguments.export is not None:
            raise InputError(f"{arguments.model} is an exported file already: copy it.")
        if arguments.dtype is not None or arguments.attention is not None:
            raise InputError(
                f"{arguments.model} has the type and the attention that it was exported with: "
                "leave out --dtype and --attention."
            )
    if arguments.export is not None:
        check_writable(arguments.export, folder=False)


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


def torch_device(spec: str, stack: ExitStack) -> tuple[str, Station]:
    """PyTorch's name of a GPU, and its station, which is open for as long as ``stack`` is.

    Raises:
        InputError: there is no such GPU, or it is an emulated one.
        DeviceError: it cannot be used or claimed.
    """
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.engine.station import Station

    gpu = stack.enter_context(open_device(spec))
    ordinal = getattr(gpu, "ordinal", None)
    if ordinal is None:
        raise InputError(
            "PyTorch's kernels need a real GPU: the emulated one runs CUDA text only. Where there "
            "is none, gpuenergy profile --gpu-device cpu profiles operators on the host."
        )
    return f"cuda:{ordinal}", stack.enter_context(Station(gpu))


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 20:
        raise ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)
