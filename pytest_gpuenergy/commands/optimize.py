"""``gpuenergy optimize``: improves kernels by moves on their source, each verified before timed."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

from pytest_gpuenergy import engine, search, tuning
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_clock_options,
    add_command,
    add_schema_option,
    number,
    path_argument,
    print_json,
    print_lines,
    tell,
    write_text,
)
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    KEY_VARIABLE,
    URL_VARIABLE,
    LlmSettings,
    Prices,
    SearchParameters,
)
from pytest_gpuenergy.support import (
    InputError,
    dump,
    emulated_mark,
    interrupt_once,
    is_folder,
    plain,
    watched,
    write_atomically,
)

_BUILDS = 50


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``optimize``."""
    parser = add_command(
        subparsers,
        "optimize",
        run,
        summary=summary,
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
        "spec",
        metavar="INPUT",
        type=path_argument,
        nargs="?",
        help="A kernel spec, or a folder of them",
    )
    parser.add_argument("--input", metavar="INPUT", type=path_argument, help="The same as INPUT")
    parser.add_argument(
        "--sources",
        metavar="DIR",
        type=path_argument,
        help="Checkout of the repository whose kernels the specs name (default: sources beside "
        "each spec)",
    )
    parser.add_argument(
        "--outdir",
        metavar="DIR",
        type=path_argument,
        default=Path("out"),
        help="Folder to write results to (default: out)",
    )
    parser.add_argument(
        "--budget-builds",
        metavar="N",
        type=number(int, 0, 1_000_000),
        default=_BUILDS,
        help=f"Variants to evaluate for each kernel (default: {_BUILDS})",
    )
    _add_strategy_options(parser)
    _add_llm_options(parser)
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
        "--seed",
        metavar="N",
        type=number(int, 0, 1 << 32),
        default=0,
        help="Seed of the search's random choices (default: 0)",
    )
    parser.add_argument(
        "--worker",
        metavar="PATH",
        type=path_argument,
        help="Evaluate only the variant of this control.json; write runner_result.json beside it",
    )
    add_schema_option(parser, "kernel specs")
    parser.add_argument("--json", action="store_true", help="Print the outcome as JSON")


def run(arguments: Namespace) -> int:
    """Search each kernel, one after the other."""
    if arguments.schema is not None:
        write_text(search.schema_document(), arguments.schema)
    if arguments.worker is not None:
        return _run_worker(arguments)
    if arguments.spec is not None and arguments.input is not None:
        raise InputError("Name the kernel spec once: INPUT is the same as --input.")
    place = arguments.spec or arguments.input
    if place is None:
        if arguments.schema is not None:
            return 0
        raise InputError("Name a kernel spec, or a folder of them: gpuenergy optimize INPUT.")
    specs = [search.read_spec(path, arguments.sources) for path in search.spec_paths(place)]
    names = [spec.name for spec in specs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"Two kernel specs in {place} have the name {twice[0]}: rename one.")
    _search(arguments, specs, place)
    return 0


def _search(arguments: Namespace, specs: list[search.KernelSpec], place: Path) -> None:
    searched: list[tuple[search.KernelSpec, search.SearchState]] = []
    with ExitStack() as stack:
        stack.callback(_report, searched, arguments)  # whatever ends the search
        stack.enter_context(interrupt_once(stop := Event()))
        stack.enter_context(watched())  # a variant whose reference does not end never ends
        llm = LlmSettings(
            model=arguments.llm_model,
            max_tokens=arguments.llm_max_tokens,
            max_usd=arguments.llm_max_usd,
            prices=arguments.llm_usd_per_mtok,
            timeout_s=arguments.llm_timeout,
            prior=arguments.llm_prior,
        )
        named = [("min_pred_gain", arguments.min_pred_gain), ("ncu_every", arguments.ncu_every)]
        parameters = [(name, value) for name, value in named if value is not None]
        settings = search.KernelSearchSettings(
            outdir=arguments.outdir,
            budget=arguments.budget_builds,
            gpus=arguments.gpus,
            powercap=arguments.powercap,
            smclock=arguments.smclock,
            objective=Metric(arguments.objective),
            seed=arguments.seed,
            parameters=SearchParameters.of([*parameters, *arguments.search_param]),
            resume=arguments.resume,
        )
        limits = engine.Settings(arguments.powercap, arguments.smclock, arguments.allow == "clocks")
        gpus = engine.claim_gpus(stack, arguments.gpus, limits, tell, "--gpus")
        endpoint = search.connect(llm, refused=arguments.no_llm, tell=tell)
        stack.callback(endpoint.close)
        for spec, state in search.optimize_kernels(
            specs,
            gpus,
            settings,
            endpoint,
            named_alone=not is_folder(place),
            tell=tell,
            stop=stop,
        ):
            searched.append((spec, state))


def _run_worker(arguments: Namespace) -> int:
    control = search.read_control(arguments.worker)
    spec = search.read_spec(arguments.worker.parent / control.spec)
    names = engine.gpu_names(control.gpus, "--gpus")
    gpu, index = names[min(control.place, len(names) - 1)]
    with ExitStack() as stack:
        device = stack.enter_context(open_device(gpu, index=index))
        limits = engine.Settings(control.powercap, control.smclock, arguments.allow == "clocks")
        engine.claim(stack, device, limits, tell)
        result = search.SearchBench(spec, device, control.objective, control.seed).evaluate(
            control.state
        )
    path = arguments.worker.parent / "runner_result.json"
    with tuning.writing(path):
        write_atomically(path, dump(result))
    if arguments.json:
        print_json(plain(result))
    else:
        unit = f"{result.objective.unit}{emulated_mark(result.emulated)}"
        cost = "" if result.cost is None else f", {result.cost:.4g} {unit}"
        lines = [f"{result.id}: {result.message or result.outcome}{cost}"]
        if result.steps_s:
            steps = (f"{step} {seconds:.3f} s" for step, seconds in result.steps_s.items())
            lines.append(", ".join(steps))
        print_lines([*lines, f"written to {path}"])
    return 0 if result.cost is not None else 1


def _report(
    searched: list[tuple[search.KernelSpec, search.SearchState]], arguments: Namespace
) -> None:
    if arguments.json:
        print_json([{"kernel": spec.name, **plain(state)} for spec, state in searched])
    else:
        for spec, state in searched:
            print_lines(_outcome(spec, state, arguments.outdir))
    summary = search.summarize(searched)
    if summary is not None:
        path = search.write_summary(summary, arguments.outdir)
        if len(summary.kernels) > 1 and not arguments.json:
            print_lines([*search.summary_lines(summary), f"  {path}"])


def _outcome(spec: search.KernelSpec, state: search.SearchState, outdir: Path) -> Iterator[str]:
    emulated = emulated_mark(state.identity.emulated)
    correct = sum(node.cost is not None for node in state.nodes) - 1
    yield (
        f"{spec.name} on {state.identity.gpu}{emulated}: {state.builds} variants, {correct} correct"
    )
    for gain in state.gains:
        if gain.message:
            yield f"  {gain.id}: {gain.message}"
            continue
        ratios = ", ".join(
            f"{metric.label} x{gain.ratios[metric]:.3f} [{ends.low:.3f}, {ends.high:.3f}]"
            for metric, ends in gain.ratio_intervals.items()
        )
        yield f"  {gain.id}: {ratios}{'' if gain.accepted else ': not certainly better'}"
    if any(gain.unclaimed for gain in state.gains):
        yield "  the baseline is kept"
    elif state.incumbent == spec.baseline.id:
        yield "  the baseline remains the best"
    yield f"  {outdir / 'kernels' / f'_{spec.name}' / 'best'}"


def _add_llm_options(parser: ArgumentParser) -> None:
    """Add the options that concern language models."""
    parser.add_argument(
        "--no-llm",
        action="store_true",
        help="Use the rules only: ask no language model, and send nothing",
    )
    parser.add_argument(
        "--llm-model",
        metavar="MODEL",
        default=LlmSettings.model,
        help="Language model that proposes moves in addition to the rules; kernels are sent to the "
        f"endpoint of {URL_VARIABLE}, or to OpenAI with the key of {KEY_VARIABLE} (default: "
        f"{LlmSettings.model})",
    )
    parser.add_argument(
        "--llm-max-tokens",
        metavar="N",
        type=number(int, 0, 1 << 40),
        help="Limit on the tokens of all questions and answers for a kernel, including those of "
        "earlier runs",
    )
    parser.add_argument(
        "--llm-max-usd",
        metavar="USD",
        type=number(float, 0.0, 1e6),
        help="Limit on their cost in US dollars; needs --llm-usd-per-mtok",
    )
    parser.add_argument(
        "--llm-usd-per-mtok",
        metavar="INPUT,OUTPUT",
        type=_prices,
        help="Prices of a million tokens in US dollars (default: costs are not counted)",
    )
    parser.add_argument(
        "--llm-timeout",
        metavar="S",
        type=number(float, 0.01, 86_400.0),
        default=LlmSettings.timeout_s,
        help=f"Seconds to wait for a complete answer (default: {LlmSettings.timeout_s:g})",
    )
    parser.add_argument(
        "--llm-prior",
        metavar="GAIN",
        type=number(float, -20.0, 20.0),
        default=LlmSettings.prior,
        help="Gain to expect of a proposal, as the natural logarithm of a speedup (default: "
        f"{LlmSettings.prior})",
    )


def _prices(text: str) -> Prices:
    parse = number(float, 0.0, 1e6)
    parts = text.split(",")
    if len(parts) != 2:
        raise ArgumentTypeError(f"{text!r} is not two prices in US dollars with a comma between")
    return Prices(parse(parts[0]), parse(parts[1]))


def _add_strategy_options(parser: ArgumentParser) -> None:
    """Add the options that decide which states are tried."""
    parser.add_argument(
        "--min-pred-gain",
        metavar="FRACTION",
        type=number(float, 0.0, 1.0),
        help="Skip variants that are predicted to gain less than this "
        f"(default: {SearchParameters.min_pred_gain})",
    )
    parser.add_argument(
        "--ncu-every",
        metavar="N",
        type=number(int, 0, 1_000_000),
        help="Profile every Nth variant with Nsight Compute where it works, to know what its time "
        f"is spent on; 0: never (default: {SearchParameters.ncu_every:g})",
    )
    parser.add_argument(
        "--search-param",
        metavar="NAME=NUMBER",
        type=_setting,
        action="append",
        default=[],
        help="Set a parameter of the search, such as PUCT_C=1.5; may be repeated",
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not NAME=NUMBER, such as PUCT_C=1.5")
    return name, value
