"""The part of ``gpuenergy optimize`` that concerns language models."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_gpuenergy.commands.command_line import tell
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
from pytest_gpuenergy.support import UnavailableError

if TYPE_CHECKING:
    from pytest_gpuenergy.search import Endpoint, KernelFolder, LlmMoves

_N = TypeVar("_N", int, float)


def add_llm_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
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
    """The endpoint, which is away from the beginning if it is not to be asked; says where it is.

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
    """The proposals for a kernel; None for a search that began, or begins, without a model.

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
    """A type of arguments: a number from ``least`` to ``most``."""

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
