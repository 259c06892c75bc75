"""How well gains of moves are predicted, from searches that were made.

    gpuenergy optimize bench/search/kernels --no-llm --objective edp --gpus emulated:h200
    python bench/predicted_gains.py out

For each variant that was evaluated, and the state that it was made from: the logarithm of the gain
in the objective that was found, and the mean that the model of bottlenecks predicts, without what
searches have learned from one another. Given are Spearman's rank correlation of the two with a 95 %
bootstrap interval over variants, the standard deviation of their difference, and of the variants
that gained more than ``--good`` how many would have been left out for a predicted gain below 2 %.

Variants that ended in a failure do not count, nor do gains and losses by more than a factor of 50.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.emulated.profiles import DEFAULT_PROFILE, PROFILES
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.search.control import read_control
from pytest_gpuenergy.search.folder import BASELINE, SPEC_JSON, STATE_JSON, VARIANTS
from pytest_gpuenergy.search.move import Application
from pytest_gpuenergy.search.moves import MOVES
from pytest_gpuenergy.search.parameters import SearchParameters
from pytest_gpuenergy.search.priors.card import Card
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.search_state import SearchState, read_state
from pytest_gpuenergy.search.spec_file import read_spec
from pytest_gpuenergy.search.state import State
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes

_RESAMPLES = 2000
_LARGEST = math.log(50)
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Pair:
    """A gain, as logarithms.

    Attributes:
        found: by the search.
        mean: that the model predicts.
        expected: the improvement to expect.
    """

    found: float
    mean: float
    expected: float


def pairs_of(folder: Path) -> list[Pair]:
    """The gains in the folder of one kernel's search.

    Raises:
        InputError: it is not that, or damaged.
    """
    search = read_state(folder / STATE_JSON)
    spec = read_spec(folder / SPEC_JSON)
    prior = BottleneckPrior(spec, _card(search), search.identity.objective, SearchParameters())
    moves = {move.name: move for move in MOVES}
    states = {node.id: _evaluated(folder, search, node.id) for node in search.nodes}
    found = []
    for node in search.nodes:
        move = moves.get(node.move)
        if node.parent is None or move is None:
            continue
        (before, result), (after, other) = states[node.parent], states[node.id]
        application = Application(node.move, node.what, after)
        mean = prior.counted_gain(before, result, after)
        expected = prior.gain(before, result, move, application)
        if result.cost and other.cost and mean is not None and expected is not None:
            found.append(Pair(math.log(result.cost / other.cost), mean, expected))
    return [pair for pair in found if abs(pair.found) <= _LARGEST]


def _card(search: SearchState) -> Card:
    identity = search.identity
    profiles = [one for one in PROFILES.values() if one.name == identity.gpu]
    return Card([*profiles, DEFAULT_PROFILE][0], identity.power_limit_w)


def _evaluated(folder: Path, search: SearchState, state: str) -> tuple[State, Result]:
    first = search.nodes[0].id
    place = folder / (BASELINE if state == first else f"{VARIANTS}/{state}")
    path = place / "result.json"
    try:
        result = decode(read_bytes(path, "result", _LARGEST_BYTES), Result)
    except FormError as error:
        raise InputError(f"The result {path} cannot be used, because {error}.") from None
    return read_control(place / "control.json").state, result


def ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Ranks from 0 on; equal values have the mean of theirs."""
    array = np.asarray(values)
    return np.array([(array < one).sum() + ((array == one).sum() - 1) / 2 for one in array])


def spearman(pairs: Sequence[Pair]) -> float:
    """Spearman's rank correlation of what was found and predicted; 0 where either is constant."""
    found, mean = (ranks([getattr(pair, name) for pair in pairs]) for name in ("found", "mean"))
    if found.std() == 0 or mean.std() == 0:
        return 0.0
    return float(np.corrcoef(found, mean)[0, 1])


def interval(pairs: Sequence[Pair], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of `spearman`."""
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(len(pairs), size=len(pairs)) for _ in range(_RESAMPLES))
    low, high = np.quantile([spearman([pairs[k] for k in some]) for some in drawn], (0.025, 0.975))
    return float(low), float(high)


def row(name: str, pairs: Sequence[Pair], good: float) -> list[str]:
    """A line of the table."""
    low, high = interval(pairs)
    deviation = float(np.std([pair.found - pair.mean for pair in pairs]))
    gained = [pair for pair in pairs if 1 - math.exp(-pair.found) > good]
    left_out = sum(1 - math.exp(-pair.expected) < 0.02 for pair in gained)
    return [
        *(name, str(len(pairs)), f"{spearman(pairs):.2f} ({low:.2f} to {high:.2f})"),
        *(f"{deviation:.2f}", f"{left_out} of {len(gained)}"),
    ]


def rows(outdir: Path, good: float) -> Iterator[list[str]]:
    """A line for each kernel of a folder with three variants or more."""
    for folder in sorted((outdir / "kernels").glob("_*")):
        pairs = pairs_of(folder)
        if len(pairs) >= 3:
            yield row(folder.name.removeprefix("_"), pairs, good)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if the folder cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outdir", type=Path, help="As --outdir of gpuenergy optimize")
    parser.add_argument("--good", type=float, default=0.02, help="A fraction (default: 0.02)")
    arguments = parser.parse_args(words)
    try:
        found = list(rows(arguments.outdir, arguments.good))
        if not found:
            raise InputError(f"{arguments.outdir} has no search with three variants or more.")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    head = ["kernel", "variants", "rank correlation", "deviation", "good ones left out"]
    print(markdown_table(head, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
