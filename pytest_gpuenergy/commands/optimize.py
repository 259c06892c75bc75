"""``gpuenergy optimize``: improves kernels by moves on their source, each verified before timed."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_clock_options,
    add_command,
    print_json,
    print_lines,
    tell,
)
from pytest_gpuenergy.search import (
    KEY_VARIABLE,
    MODEL,
    PRIOR,
    TIMEOUT_S,
    URL_VARIABLE,
    LlmSettings,
    Prices,
    url_in_environment,
)
from pytest_gpuenergy.support import InputError, UnavailableError, emulated_mark

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.engine import ClaimedGpus, Settings
    from pytest_gpuenergy.record import Metric
    from pytest_gpuenergy.search import (
        Endpoint,
        Evaluator,
        GraphExplorer,
        KernelFolder,
        KernelSpec,
        LlmMoves,
        SearchIdentity,
        SearchParameters,
        SearchState,
        VariantGain,
    )

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
    from pytest_gpuenergy.engine import Settings, claim_gpus
    from pytest_gpuenergy.support import interrupt_once, is_folder, watched

    found: list[tuple[KernelSpec, SearchState]] = []
    failed: list[str] = []
    with ExitStack() as stack:
        stack.callback(_report, found, arguments)  # whatever ends the search
        stack.enter_context(interrupt_once(stop := Event()))
        stack.enter_context(watched())  # a variant whose reference does not end never ends
        allowed = arguments.allow == "clocks"
        settings = Settings(arguments.powercap, arguments.smclock, allowed)
        gpus = claim_gpus(stack, arguments.gpus, settings, tell, "--gpus")
        endpoint = endpoint_of(arguments)
        stack.callback(endpoint.close)
        specs = [spec.on(emulated=gpus.devices[0].emulated) for spec in specs]
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
    """Return the specs whose kernels the GPU can run; one that is named ``alone`` is kept.

    Raises:
        InputError: the GPU can run none of them.
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
    from pytest_gpuenergy.engine import git_revision_of, run_info
    from pytest_gpuenergy.record import Metric, new_run_id
    from pytest_gpuenergy.search import KernelFolder, Search, SearchOptions, identity_of

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


_N = TypeVar("_N", int, float)


def add_llm_arguments(parser: ArgumentParser) -> None:
    """Add the options that concern language models."""
    parser.add_argument(
        "--no-llm", action="store_true", help="Rules only: ask no language model, send nothing"
    )
    parser.add_argument(
        "--llm-model",
        metavar="MODEL",
        default=MODEL,
        help=f"Asked for moves beside the rules, at the endpoint of {URL_VARIABLE} or with the key "
        f"of {KEY_VARIABLE}; kernels are sent there (default: {MODEL})",
    )
    parser.add_argument(
        "--llm-max-tokens",
        metavar="N",
        type=number(int, 0, 1 << 40),
        help="Of all questions and answers for a kernel, earlier runs included",
    )
    parser.add_argument(
        "--llm-max-usd",
        metavar="USD",
        type=number(float, 0.0, 1e6),
        help="Likewise in US dollars; needs --llm-usd-per-mtok",
    )
    parser.add_argument(
        "--llm-usd-per-mtok",
        metavar="INPUT,OUTPUT",
        type=_prices,
        help="Prices of a million tokens; without them money is not counted",
    )
    parser.add_argument(
        "--llm-timeout",
        metavar="S",
        type=number(float, 0.01, 86_400.0),
        default=TIMEOUT_S,
        help=f"Seconds to wait for a complete answer (default: {TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--llm-prior",
        metavar="GAIN",
        type=number(float, -20.0, 20.0),
        default=PRIOR,
        help=f"Gain to expect of a proposal, log of a speedup (default: {PRIOR})",
    )


def endpoint_of(arguments: Namespace) -> Endpoint:
    """Return the endpoint, disabled if no model is to be asked; tell which model is asked where.

    Raises:
        InputError: the settings cannot be used.
    """
    from pytest_gpuenergy.search import Endpoint

    url = url_in_environment()
    settings = LlmSettings(
        model=arguments.llm_model,
        url=url or "",
        max_tokens=arguments.llm_max_tokens,
        max_usd=arguments.llm_max_usd,
        prices=arguments.llm_usd_per_mtok,
        timeout_s=arguments.llm_timeout,
        prior=arguments.llm_prior,
    )
    if arguments.no_llm:
        return Endpoint(settings, "it is not to be asked (--no-llm)")
    if url is None:
        away = f"neither {KEY_VARIABLE} nor {URL_VARIABLE} is set"
        tell(f"{settings.model} is not asked for moves, because {away}: rules only.")
        return Endpoint(settings, away)
    try:
        endpoint = Endpoint(settings)
    except UnavailableError as error:
        tell(str(error))
        return Endpoint(settings, "the package openai is missing")
    tell(
        f"{settings.model} at {urlsplit(url).hostname or url} is asked for moves, and gets the "
        "kernels' sources; --no-llm searches without."
    )
    return endpoint


def proposals_for(endpoint: Endpoint, folder: KernelFolder, gpu: str) -> LlmMoves | None:
    """Return a model's proposals for a kernel, or None for a search without a model.

    A search that began without a model continues without one.

    Raises:
        InputError: earlier answers are damaged.
        OutputError: answers cannot be written.
    """
    from pytest_gpuenergy.search import FILE_NAME, AnswerLog, Consultant, LlmMoves
    from pytest_gpuenergy.support import is_there

    begins = folder.earlier is None or not folder.earlier.nodes
    if not is_there(folder.path / FILE_NAME) and not (begins and endpoint.enabled):
        return None
    consultant = Consultant(endpoint, AnswerLog(folder.path), tell)
    return LlmMoves(consultant, gpu, folder.event)


def number(kind: type[_N], least: _N, most: _N) -> Callable[[str], Any]:
    """Return a type for `ArgumentParser.add_argument`: numbers from ``least`` to ``most``."""

    def parse(text: str) -> _N:
        try:
            found = kind(text)
        except ValueError:
            found = None
        if found is None or not least <= found <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return found

    return parse


def _prices(text: str) -> Prices:
    parse = number(float, 0.0, 1e6)
    parts = text.split(",")
    if len(parts) != 2:
        raise ArgumentTypeError(f"{text!r} is not two prices in US dollars with a comma between")
    return Prices(parse(parts[0]), parse(parts[1]))


_MIN_GAIN = 0.02
_NCU_EVERY = 5


def add_strategy_arguments(parser: ArgumentParser) -> None:
    """Add the options that decide which states are tried."""
    parser.add_argument(
        "--min-pred-gain",
        metavar="FRACTION",
        type=number(float, 0.0, 1.0),
        help=f"Do not try what is predicted to gain less than this (default: {_MIN_GAIN})",
    )
    parser.add_argument(
        "--ncu-every",
        metavar="N",
        type=number(int, 0, 1_000_000),
        help="Profile every Nth variant with Nsight Compute where it works, to know what its time "
        f"is spent on; 0: never (default: {_NCU_EVERY})",
    )
    parser.add_argument(
        "--search-param",
        metavar="NAME=NUMBER",
        type=_setting,
        action="append",
        default=[],
        help="A parameter of the search, such as PUCT_C=1.5; repeatable",
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not NAME=NUMBER, such as PUCT_C=1.5")
    return name, value


def parameters_of(arguments: Namespace) -> SearchParameters:
    """Return the search parameters that the options set.

    Raises:
        InputError: a parameter is unknown, given twice, or out of bounds.
    """
    from pytest_gpuenergy.search import SearchParameters

    given = {"min_pred_gain": arguments.min_pred_gain, "ncu_every": arguments.ncu_every}
    settings: dict[str, str | float] = {
        name: value for name, value in given.items() if value is not None
    }
    for name, value in arguments.search_param:
        if name.lower() in settings:
            raise InputError(f"The search parameter {name.upper()} is given twice: give it once.")
        settings[name.lower()] = value
    return SearchParameters.of(settings)


@dataclass
class KernelStrategy:
    """The strategy of one kernel's search.

    Attributes:
        explorer: chooses the states to evaluate.
        finish: stores what later searches learn from this one; called after the search.
    """

    explorer: GraphExplorer
    finish: Callable[[], None]


def strategy_for(
    arguments: Namespace,
    spec: KernelSpec,
    devices: Sequence[Device],
    identity: SearchIdentity,
    folder: KernelFolder,
    llm: LlmMoves | None,
) -> KernelStrategy:
    """Return the strategy for a kernel, which uses what searches in ``--outdir`` have learned.

    Raises:
        InputError: the tactics with which the search began are damaged.
        OutputError: they cannot be written.
    """
    from pytest_gpuenergy.search import (
        BASELINE,
        MOVES,
        BottleneckPrior,
        CardModel,
        GraphExplorer,
        Guide,
        Profiler,
        SearchParameters,
        SearchTactics,
        tactics_at_start,
        tactics_from,
        write_tactics,
    )

    parameters = SearchParameters.of(identity.strategy)
    part = SearchTactics(
        kernel=spec.name,
        gpu=identity.gpu,
        emulated=identity.emulated,
        objective=identity.objective,
    )
    device = devices[0]
    tactics = tactics_at_start(arguments.outdir, folder.path, part, tell)
    prior = BottleneckPrior(spec, CardModel.of(device), identity.objective, parameters, tactics)
    # With several GPUs one would be profiled while it measures.
    profiles = not device.emulated and len(devices) == 1
    every = int(parameters.ncu_every) if profiles else 0
    guide = Guide(
        prior,
        lambda state: folder.place(BASELINE if state == spec.baseline.id else state),
        Profiler(every, device.uuid, device.name, spec.entry, tell),
        llm,
    )
    explorer = GraphExplorer(
        spec,
        MOVES if llm is None else (*MOVES, llm),
        seed=identity.seed,
        parameters=parameters,
        guide=guide,
    )

    def finish() -> None:
        found = tactics_from(spec.language, guide.observations(explorer.steps()))
        write_tactics(arguments.outdir, part, found, tell)

    return KernelStrategy(explorer, finish)


def claim_one(stack: ExitStack, gpus: str, place: int, settings: Settings) -> Device:
    """Claim only the GPU at index ``place`` of the list until the stack is closed."""
    from pytest_gpuenergy.engine import claim, gpu_names
    from pytest_gpuenergy.opening import open_device

    names = gpu_names(gpus, "--gpus")
    gpu, index = names[min(place, len(names) - 1)]
    device = stack.enter_context(open_device(gpu, index=index))
    claim(stack, device, settings, tell)
    return device


def evaluator_of(gpus: ClaimedGpus, spec: KernelSpec, objective: Metric, seed: int) -> Evaluator:
    """Return the evaluator of a spec's states on the claimed GPUs."""
    from pytest_gpuenergy.search import Bench, OwnProcess, TeamEvaluator

    benches = tuple(Bench(spec, device, objective, seed) for device in gpus.devices)
    if len(benches) == 1:
        return OwnProcess(benches[0])
    for device in gpus.devices:
        device.renew()  # so that no process of this one keeps a context on the GPU
    return TeamEvaluator(gpus.team, benches)


SUMMARY_JSON, SUMMARY_MD = "summary.json", "summary.md"


def sum_up(found: Sequence[tuple[KernelSpec, SearchState]], outdir: Path, *, printed: bool) -> None:
    """Write the gains of all searches together, and print them if there are several searches.

    Raises:
        OutputError: the summary cannot be written.
    """
    from pytest_gpuenergy.report import markdown_table
    from pytest_gpuenergy.search import summary_of, table_of, totals_of
    from pytest_gpuenergy.support import aligned, dump, write_atomically
    from pytest_gpuenergy.tuning import writing

    summary = summary_of(found)
    if summary is None:
        return
    head, *rows = table_of(summary)
    text = (0, len(head) - 2, len(head) - 1)
    page = [markdown_table(head, rows, text=text), "", *totals_of(summary), ""]
    for name, content in ((SUMMARY_JSON, dump(summary)), (SUMMARY_MD, "\n".join(page))):
        with writing(outdir / name):
            write_atomically(outdir / name, content)
    if printed and len(rows) > 1:
        print_lines([*aligned([head, *rows]), *totals_of(summary), f"  {outdir / SUMMARY_MD}"])
