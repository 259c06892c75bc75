"""``gpuenergy optimize``: improves kernels by moves on their source, each verified before timed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    print_json,
    print_lines,
    tell,
)
from pytest_gpuenergy.commands.optimize_llm import (
    add_llm_arguments,
    endpoint_of,
    number,
    proposals_for,
)
from pytest_gpuenergy.commands.optimize_strategy import (
    add_strategy_arguments,
    parameters_of,
    strategy_for,
)
from pytest_gpuenergy.commands.setpoint_options import add_clock_options
from pytest_gpuenergy.support import InputError, emulated_mark

if TYPE_CHECKING:
    from pytest_gpuenergy.commands.gpus import ClaimedGpus
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.search import Endpoint, KernelSpec, SearchState, VariantGain

_BUILDS = 50


def add_parser(subparsers: Subparsers) -> None:
    """Add ``optimize``."""
    parser = add_command(
        subparsers,
        "optimize",
        run,
        summary="Improve kernels by moves on their source, each verified before it is timed",
        description="Each variant is verified on all sizes of its kernel spec with inputs that it "
        "cannot know, timed, and verified again. The best one is measured alternately with the "
        "baseline, and kept only if it is certainly better. Results are written to disk "
        "immediately, so an interrupted search can be continued with --resume. A spec is code: use "
        "only those that you trust.",
        example="""
gpuenergy optimize bench/search/kernels/softmax.json --outdir out --objective edp
gpuenergy optimize --input bench/search/kernels --gpus emulated:h200 --budget-builds 20
gpuenergy optimize --worker out/kernels/_softmax/baseline/control.json
""",
    )
    parser.add_argument(
        "spec", metavar="INPUT", type=Path, nargs="?", help="A kernel spec, or a folder of them"
    )
    parser.add_argument("--input", metavar="INPUT", type=Path, help="The same as an option")
    parser.add_argument(
        "--sources",
        metavar="DIR",
        type=Path,
        help="Checkout of the repository whose kernels the specs name (default: sources beside "
        "each spec)",
    )
    parser.add_argument(
        "--outdir", metavar="DIR", type=Path, default=Path("out"), help="Results (default: out)"
    )
    parser.add_argument(
        "--budget-builds",
        metavar="N",
        type=number(int, 0, 1_000_000),
        default=_BUILDS,
        help=f"Variants to evaluate for each kernel (default: {_BUILDS})",
    )
    add_strategy_arguments(parser)
    add_llm_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="Continue the searches in --outdir")
    parser.add_argument(
        "--gpus",
        metavar="LIST",
        default="auto",
        help="GPUs of one model, each auto, an index, a UUID, or emulated[:PROFILE][xN]; as many "
        "variants are evaluated at the same time (default: auto)",
    )
    parser.add_argument(
        "--powercap",
        metavar="CAP",
        default="current",
        help="One power limit to search under (default: current)",
    )
    add_clock_options(parser, several=False)
    parser.add_argument(
        "--objective",
        choices=("time", "energy", "edp"),
        default="time",
        help="What to minimize (default: time)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=number(int, 0, 1 << 32), default=0, help="Of the search"
    )
    parser.add_argument(
        "--worker",
        metavar="PATH",
        type=Path,
        help="Evaluate the variant of a control.json alone, and write runner_result.json beside it",
    )
    parser.add_argument(
        "--schema", metavar="PATH", type=Path, help="Write the JSON Schema of kernel specs"
    )
    parser.add_argument("--json", action="store_true", help="Print the outcome as JSON")


def run(arguments: Namespace) -> int:
    """Search each kernel, one after the other."""
    from pytest_gpuenergy.search import read_spec, spec_paths

    if arguments.schema is not None:
        from pytest_gpuenergy.report import write_view
        from pytest_gpuenergy.search import schema_document

        write_view(arguments.schema, schema_document())
    if arguments.worker is not None:
        return _run_worker(arguments)
    if arguments.spec is not None and arguments.input is not None:
        raise InputError("Name the kernel spec once: INPUT is the same as --input.")
    place = arguments.spec or arguments.input
    if place is None:
        if arguments.schema is not None:
            return 0
        raise InputError("Name a kernel spec, or a folder of them: gpuenergy optimize INPUT.")
    specs = [read_spec(path, arguments.sources) for path in spec_paths(place)]
    names = [spec.name for spec in specs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"Two kernel specs in {place} have the name {twice[0]}: rename one.")
    _search(arguments, specs, place)
    return 0


def _search(arguments: Namespace, specs: list[KernelSpec], place: Path) -> None:
    from pytest_gpuenergy.commands.optimize_gpus import claim_gpus
    from pytest_gpuenergy.engine import Settings
    from pytest_gpuenergy.support import interrupt_once, is_folder, watched

    found: list[tuple[KernelSpec, SearchState]] = []
    failed: list[str] = []
    with ExitStack() as stack:
        stack.callback(_report, found, arguments)  # whatever ends the search
        stack.enter_context(interrupt_once(stop := Event()))
        stack.enter_context(watched())  # a variant whose reference does not end never ends
        allowed = arguments.allow == "clocks"
        settings = Settings(arguments.powercap, arguments.smclock, allowed)
        gpus = claim_gpus(stack, arguments.gpus, settings)
        endpoint = endpoint_of(arguments)
        stack.callback(endpoint.close)
        specs = [one.on(emulated=gpus.devices[0].emulated) for one in specs]
        for spec in _runnable(specs, gpus.devices[0], alone=not is_folder(place)):
            if stop.is_set():
                raise KeyboardInterrupt
            try:
                found.append((spec, _search_one(arguments, spec, gpus, endpoint, stop)))
            except InputError as error:
                if len(specs) == 1:
                    raise
                tell(f"{spec.name}: not searched: {error}")
                failed.append(spec.name)
    if failed:
        raise InputError(
            f"{len(failed)} of {len(specs)} kernels could not be searched, for the reasons above: "
            f"{', '.join(failed)}."
        )


def _runnable(specs: list[KernelSpec], device: Device, *, alone: bool) -> list[KernelSpec]:
    """The specs of kernels that the GPU can run at all; one named ``alone`` is not left out.

    Raises:
        InputError: none is left.
    """
    from pytest_gpuenergy.search import refusal_of

    refusals = {spec.name: None if alone else refusal_of(spec, device) for spec in specs}
    for name, refusal in refusals.items():
        if refusal is not None:
            tell(f"{name}: skipped: {refusal}")
    left = [spec for spec in specs if refusals[spec.name] is None]
    if not left:
        raise InputError(
            f"{device.name} can run none of the {len(specs)} kernels, for the reasons above: name "
            "another GPU with --gpus."
        )
    return left


def _search_one(
    arguments: Namespace, spec: KernelSpec, gpus: ClaimedGpus, endpoint: Endpoint, stop: Event
) -> SearchState:
    from pytest_gpuenergy.commands.optimize_gpus import evaluator_of
    from pytest_gpuenergy.engine import git_revision_of, run_info
    from pytest_gpuenergy.record import Metric
    from pytest_gpuenergy.search import KernelFolder, Search, SearchOptions, identity_of
    from pytest_gpuenergy.support import new_run_id

    options = SearchOptions(
        arguments.budget_builds, arguments.gpus, arguments.powercap, arguments.smclock
    )
    words = {name: str(value) for name, value in vars(options).items()}
    device = gpus.devices[0]
    info = run_info(device, new_run_id(), words, git_revision=git_revision_of(Path.cwd()))
    evaluator = evaluator_of(gpus, spec, Metric(arguments.objective), arguments.seed)
    identity = identity_of(evaluator.bench, asdict(parameters_of(arguments)))
    with KernelFolder(arguments.outdir, spec, identity, resume=arguments.resume) as folder:
        llm = proposals_for(endpoint, folder, device.name)
        strategy = strategy_for(arguments, spec, gpus.devices, identity, folder, llm)
        search = Search(evaluator, folder, strategy.explorer, options, info, tell, stop, llm)
        found = search.run()
        strategy.finish()
        return found


def _run_worker(arguments: Namespace) -> int:
    from pytest_gpuenergy.commands.optimize_gpus import claim_one
    from pytest_gpuenergy.engine import Settings
    from pytest_gpuenergy.search import Bench, read_control, read_spec
    from pytest_gpuenergy.support import dump, plain, write_atomically
    from pytest_gpuenergy.tuning import writing

    control = read_control(arguments.worker)
    spec = read_spec(arguments.worker.parent / control.spec)
    with ExitStack() as stack:
        settings = Settings(control.powercap, control.smclock, arguments.allow == "clocks")
        device = claim_one(stack, control.gpus, control.place, settings)
        result = Bench(spec, device, control.objective, control.seed).evaluate(control.state)
    path = arguments.worker.parent / "runner_result.json"
    with writing(path):
        write_atomically(path, dump(result))
    if arguments.json:
        print_json(plain(result))
    else:
        cost = ""
        if result.cost is not None:
            unit = f"{result.objective.unit}{emulated_mark(result.emulated)}"
            cost = f", {result.cost:.4g} {unit}"
        steps = ", ".join(f"{step} {seconds:.3f} s" for step, seconds in result.steps_s.items())
        print_lines(
            [
                f"{result.id}: {result.message or result.outcome}{cost}",
                *([steps] if steps else []),
                f"written to {path}",
            ]
        )
    return 0 if result.cost is not None else 1


def _report(found: list[tuple[KernelSpec, SearchState]], arguments: Namespace) -> None:
    from pytest_gpuenergy.commands.optimize_summary import sum_up
    from pytest_gpuenergy.support import plain

    if arguments.json:
        print_json([{"kernel": spec.name, **plain(state)} for spec, state in found])
    else:
        for spec, state in found:
            print_lines(_summary(spec, state, arguments.outdir))
    sum_up(found, arguments.outdir, printed=not arguments.json)


def _summary(spec: KernelSpec, state: SearchState, outdir: Path) -> Iterator[str]:
    emulated = emulated_mark(state.identity.emulated)
    correct = sum(node.cost is not None for node in state.nodes) - 1
    yield (
        f"{spec.name} on {state.identity.gpu}{emulated}: {state.builds} variants, {correct} correct"
    )
    for gain in state.gains:
        yield f"  {_gain(gain)}"
    if any(gain.unclaimed for gain in state.gains):
        yield "  the baseline is kept"
    elif state.incumbent == spec.baseline.id:
        yield "  the baseline remains the best"
    yield f"  {outdir / 'kernels' / f'_{spec.name}' / 'best'}"


def _gain(gain: VariantGain) -> str:
    if gain.message:
        return f"{gain.id}: {gain.message}"
    parts = [
        f"{metric.label} x{gain.ratios[metric]:.3f} [{ends.low:.3f}, {ends.high:.3f}]"
        for metric, ends in gain.ratio_intervals.items()
    ]
    return f"{gain.id}: {', '.join(parts)}{'' if gain.accepted else ': not certainly better'}"
