"""How ``gpuenergy optimize`` chooses states: its parameters, and what it expects of moves."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.commands.optimize_llm import number
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.search import (
        GraphExplorer,
        KernelFolder,
        KernelSpec,
        LlmMoves,
        SearchIdentity,
        SearchParameters,
    )

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
    """The parameters that were asked for.

    Raises:
        InputError: one is unknown, given twice, or out of bounds.
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
class Strategy:
    """The strategy of one kernel's search.

    Attributes:
        explorer: chooses the states.
        finish: has later searches learn from this one; called when it has ended.
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
) -> Strategy:
    """The strategy for a kernel, which knows what the searches in ``--outdir`` have learned.

    Raises:
        InputError: what it began with is damaged.
        OutputError: what it begins with cannot be written.
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

    return Strategy(explorer, finish)
