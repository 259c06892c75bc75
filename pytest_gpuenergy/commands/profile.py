"""``gpuenergy profile``: a language model's inference under PyTorch's profiler."""

from __future__ import annotations

from argparse import Namespace

from pytest_gpuenergy import replay
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_schedule_options,
    chosen_batching,
    count,
    number,
    path_argument,
    print_json,
    print_lines,
    tell,
)
from pytest_gpuenergy.support import counted, plain

_SEEDS = 1 << 63


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``profile``."""
    parser = add_command(
        subparsers,
        "profile",
        run,
        summary=summary,
        description="Generates tokens once to warm up and once, or --runs times, under PyTorch's "
        "profiler, and does what gpuenergy extract does with the trace. On a real GPU, the card's "
        "power samples are put on the time axis of the trace. bloom-560m and vicuna-7b have their "
        "published configuration, and random weights unless transformers has their checkpoint in "
        "its cache; so has a folder with config.json alone. For module:function, a call without "
        "arguments is profiled; an exported file is profiled with the sizes that it was exported "
        "with. Needs the extra replay.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy profile vicuna-7b --tp 2 --out vicuna-tp2/
gpuenergy profile bloom-560m --out bloom/ --export bloom.pt
gpuenergy profile bloom.pt --out again/
gpuenergy profile bloom-560m --schedule requests.csv --out sizes/
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
            name, metavar="N", type=count, help=f"{what} (default: {default}, or as exported)"
        )
    parser.add_argument(
        "--runs",
        metavar="N",
        type=count,
        default=1,
        help="Times to run under the profiler, after once to warm up (default: 1)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        help="Type of the weights (default: float16)",
    )
    parser.add_argument(
        "--attention",
        choices=("auto", "sdpa", "eager"),
        help="Implementation of the attention (default: auto, which transformers chooses)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=number(int, 0, _SEEDS - 1),
        help="Seed of the tokens and of random weights (default: 0)",
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
        help="Number of this host's GPUs that share the model by tensor parallelism, each with a "
        "process, which torchrun may have started (default: 1)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=path_argument, required=True, help="Folder to write to"
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        type=path_argument,
        help="Also write the model by torch.export, for use without its Python code",
    )
    add_schedule_options(parser)
    parser.add_argument("--json", action="store_true", help="Print a summary as JSON")


def run(arguments: Namespace) -> int:
    """Profile, extract, write, and print a summary; with ``--tp``, in several processes."""
    options = replay.ProfileOptions(
        arguments.model,
        arguments.out,
        device=arguments.gpu_device,
        ranks=arguments.tp,
        runs=arguments.runs,
        dtype=arguments.dtype,
        attention=arguments.attention,
        seed=arguments.seed,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        batch=arguments.batch,
        export=arguments.export,
    )
    batching = chosen_batching(arguments)
    if arguments.schedule is not None:
        schedule = replay.read_schedule(arguments.schedule, batching)
        documents = []
        for size in replay.profile_sizes(options, schedule.served, tell):
            record = size.record
            tell(
                f"{record.model}, {record.batch} x {record.prompt_tokens} tokens: "
                f"{counted(len(size.extraction.launches), 'launch', 'launches')}"
            )
            documents.append({**replay.json_document(size.extraction), "profile": plain(record)})
        if arguments.json:
            print_json({"sizes": documents, "folder": str(arguments.out)})
        else:
            print_lines([f"{counted(len(documents), 'size')} written to {arguments.out}"])
        return 0
    code, found = replay.profile_model(options, arguments.command_line, tell)
    if found is None:
        return code
    record, exported = found.record, found.exported
    if arguments.json:
        document = {
            **replay.json_document(found.extraction),
            "profile": plain(record),
            "folder": str(arguments.out),
        }
        if exported is not None:
            document["export"] = plain(exported)
        print_json(document)
        return code
    each = f" on each of {record.ranks} GPUs" if record.ranks > 1 else ""
    lines = [
        f"{record.model}: {record.parameters / 1e6:.0f} million parameters{each}, "
        f"{record.weights} weights, {record.dtype}, on {record.device}",
        *replay.terminal(found.extraction),
        *([] if record.power is None else [record.power.sentence]),
        "",
        f"written to {arguments.out}",
    ]
    if exported is not None:
        lines.append(
            f"exported to {arguments.export}: {exported.same_calls} of {exported.calls} calls of "
            "operators are those of the model"
        )
    print_lines(lines)
    return code
