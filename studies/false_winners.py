"""How often a search claims a gain that is none, and how often it finds one, by simulation.

    python studies/false_winners.py --runs 4000
    python studies/false_winners.py --smallest
    python studies/false_winners.py --spent --gains 0,0.5,1,2,3,4

A search evaluates candidates once each, one after another, and takes the best. The best of many
equals looks better than it is, and a card that drifts favours late or early candidates. So the best
few are measured again, alternately with the baseline, until one is better, and only that counts.
The simulation knows which gains are true. A claim is an interval that lies on the side of a gain
altogether; a false one is a claim of a candidate that equals the baseline.

``as searched`` claims from the figures of the search itself, with the deviation between sessions
that the gate assumes; ``alternately`` claims from the rounds, as `gpuenergy ab` does
(`record/ratio.py`), both with intervals of 95 %; ``as claimed`` is what `gpuenergy optimize` does
(`search/validation/gain.py`), which leaves variants out and ends comparisons early where no claim
can be expected; ``lost`` are the true gains that it would claim if it did not.

What lasts through the session is in the figures of the search and in those of
the rounds alike, so that the search selects by it. The scatter is that of the project's intervals:
see `Noise`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gate_simulation import TRIAL_SD_ENERGY, TRIAL_SD_TIME
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.record import (
    METRICS,
    WANDER,
    Metric,
    SessionMean,
    log_ratio,
    paired_log_ratio,
)
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search import (
    CONFIRMED,
    LASTING_SD,
    ROUNDS,
    is_out_of_reach,
    is_proven,
    is_worth_comparing,
    proven_change,
)
from pytest_gpuenergy.support import InputError

TAIL = 0.025
FOUND = 0.95
LARGEST_GAIN = 0.2
TURN_TRIALS = 3
"""In each turn of a round, as in `ab/rounds.py`."""
TRIAL_SD = {
    Metric.TIME: TRIAL_SD_TIME,
    Metric.ENERGY: TRIAL_SD_ENERGY,
    Metric.EDP: math.hypot(TRIAL_SD_TIME, TRIAL_SD_ENERGY),
}

_HEADS = ("metric", "rest of the deviation", "candidates")
_CLAIMS = ("as searched", "alternately", "as claimed", "claims that are false", "interval holds")
_SPENT = ("found", "lost", "claims that are false", "rounds", "rounds without ending early")

Figures = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations.

    Attributes:
        search: of a candidate's figure in the search, apart from what lasts.
        turn: of the figure of one turn of a round.
        lasting: of what a kernel keeps through a session, in the search and in all rounds, and has
            otherwise in another. Rounds cannot show it.
        allowance: for what lasts, in an interval that allows for it.
        drift: of the change that all kernels have in common, from one evaluation to the next. It
            adds up.
        heavy_tails: whether all but the drift has Student's t distribution with five degrees of
            freedom, instead of the normal distribution.
    """

    search: float
    turn: float
    lasting: float
    allowance: float
    drift: float
    heavy_tails: bool = False

    @classmethod
    def of(
        cls, metric: Metric, *, drift: float, lasting: bool = False, heavy_tails: bool = False
    ) -> Noise:
        """As the project's intervals have them.

        A figure of the search is that of one loading and one trial, and a turn is another loading
        with a few trials. What deviates between sessions and is not of the loading lasts through
        the session, if ``lasting``; otherwise it differs from one figure of the search to the next,
        and is not in the rounds.
        """
        loading, trial, rest = WANDER[metric], TRIAL_SD[metric], LASTING_SD[metric]
        turn = math.hypot(loading, trial / math.sqrt(TURN_TRIALS))
        lasts, differs = (rest, 0.0) if lasting else (0.0, rest)
        search = math.hypot(loading, trial, differs)
        return cls(search, turn, lasts, rest, drift, heavy_tails)

    def draw(self, rng: np.random.Generator, sd: float, count: int) -> Figures:
        """Deviations of so many figures."""
        if self.heavy_tails:
            return rng.standard_t(5, count) * math.sqrt(3 / 5) * sd
        return rng.standard_normal(count) * sd

    def drifted(self, rng: np.random.Generator, start: float, count: int) -> Figures:
        """What so many figures in a row have in common with those before and after."""
        return start + np.cumsum(rng.standard_normal(count)) * self.drift


@dataclass(frozen=True)
class Claims:
    """Fractions of the searches.

    Attributes:
        searched: the figures of the search claim a gain of the best candidate.
        alternately: the rounds do, of the first of the best for which they do.
        claimed: the same with the intervals of `gpuenergy optimize`.
        false: that candidate has no gain.
        holds: the interval of the best candidate contains its true gain, if it is measured again.
        lost: the gain would be claimed of the candidate that has it if all of the best were
            measured for all rounds, and is not.
        rounds: mean number of rounds of a search.
        all_rounds: what it would be then.
    """

    searched: float
    alternately: float
    claimed: float
    false: float
    holds: float
    lost: float
    rounds: float
    all_rounds: float

    @property
    def found(self) -> float:
        """The gain is claimed of the candidate that has it."""
        return self.claimed - self.false


def simulate(
    rng: np.random.Generator,
    noise: Noise,
    metric: Metric,
    *,
    candidates: int,
    rounds: int,
    gain: float,
    runs: int,
) -> Claims:
    """Search, and measure the best again.

    Args:
        rng: the source of randomness.
        noise: of all figures.
        metric: what they are figures of.
        candidates: that are evaluated, after the baseline.
        rounds: in which a candidate and the baseline are measured again.
        gain: of one candidate, as a fraction: it needs 1 / (1 + gain) of the baseline. The others
            equal the baseline.
        runs: number of searches.
    """
    counts = np.zeros(8)
    for _ in range(runs):
        true = np.zeros(1 + candidates)
        true[rng.integers(1, candidates + 1)] = -math.log1p(gain)
        lasting = true + noise.draw(rng, noise.lasting, len(true))
        common = noise.drifted(rng, 0.0, len(true))
        figures = lasting + common + noise.draw(rng, noise.search, len(true))
        best = 1 + np.argsort(figures[1:])[:CONFIRMED]
        searched = _searched(float(figures[0]), float(figures[best[0]]), noise)
        changes = [float(lasting[one] - lasting[0]) for one in best]
        ratios = [_ratios(rng, noise, float(common[-1]), change, rounds) for change in changes]
        again = any(paired_log_ratio(one, tail=TAIL).high < 0 for one in ratios)
        thorough = _claim(ratios, noise, candidates=candidates)
        quick = [float(figures[one] - figures[0]) for one in best]
        kept = next(
            (
                place
                for place, one in enumerate(quick)
                if not is_worth_comparing(one, metric, candidates=candidates)
            ),
            len(best),
        )
        shortened = [_shortened(one, noise, candidates) for one in ratios[:kept]]
        claim = _claim(shortened, noise, candidates=candidates)
        holds = True
        if shortened:
            found = proven_change(shortened[0], noise.allowance, candidates=candidates)
            holds = found.low <= true[best[0]] <= found.high
        false = claim.place is not None and not true[best[claim.place]] < 0
        right = thorough.place is not None and true[best[thorough.place]] < 0
        counts += (
            searched,
            again,
            claim.place is not None,
            false,
            holds,
            right and claim.place != thorough.place,
            claim.rounds,
            thorough.rounds,
        )
    return Claims(*(counts / runs).tolist())


class _Claim(NamedTuple):
    """Which of the best candidates is claimed, if any, and after how many rounds in all."""

    place: int | None
    rounds: int


def _claim(ratios: Sequence[Sequence[float]], noise: Noise, *, candidates: int) -> _Claim:
    """What is claimed after these rounds of each of the best, in this order."""
    spent = 0
    for place, one in enumerate(ratios):
        spent += len(one)
        if proven_change(one, noise.allowance, candidates=candidates).high < 0:
            return _Claim(place, spent)
    return _Claim(None, spent)


def _shortened(ratios: Sequence[float], noise: Noise, candidates: int) -> Sequence[float]:
    """The rounds until a claim is certain, or out of reach."""
    for count in range(1, len(ratios)):
        so_far = ratios[:count]
        if is_proven(so_far, noise.allowance, candidates=candidates) or is_out_of_reach(
            so_far, noise.allowance, rounds=len(ratios), candidates=candidates
        ):
            return so_far
    return ratios


def _searched(base: float, best: float, noise: Noise) -> bool:
    deviation = math.hypot(noise.search, noise.lasting)
    samples = [SessionMean(math.exp(figure), 0.0, math.inf) for figure in (base, best)]
    return log_ratio(*samples, session_sd=deviation, tail=TAIL).high < 0


def _ratios(
    rng: np.random.Generator, noise: Noise, start: float, change: float, rounds: int
) -> list[float]:
    """ln(candidate / baseline) of each round."""
    turns = noise.drifted(rng, start, 2 * rounds) + noise.draw(rng, noise.turn, 2 * rounds)
    ratios = []
    for number in range(rounds):
        first, second = float(turns[2 * number]), float(turns[2 * number + 1])
        # The baseline is first in every other round.
        difference = second - first if number % 2 == 0 else first - second
        ratios.append(change + difference)
    return ratios


def smallest_gain(
    seed: int,
    noise: Noise,
    metric: Metric,
    *,
    candidates: int,
    rounds: int,
    runs: int,
    step: float = 0.001,
) -> float:
    """The smallest gain, in steps, that is found in `FOUND` of the searches."""
    low, high = 0, round(LARGEST_GAIN / step)
    while high - low > 1:
        middle = (low + high) // 2
        found = simulate(
            np.random.default_rng(seed),
            noise,
            metric,
            candidates=candidates,
            rounds=rounds,
            gain=middle * step,
            runs=runs,
        ).found
        low, high = (low, middle) if found >= FOUND else (middle, high)
    return high * step


def table(
    seed: int,
    *,
    candidates: Sequence[int],
    gains: Sequence[float],
    rounds: int,
    drift: float,
    runs: int,
    heavy_tails: bool = False,
    spent: bool = False,
) -> str:
    """Claims of each kind, or what comparisons take, as Markdown; each row from the same seed."""
    rows = []
    for metric, kind, noise in _noises(drift, heavy_tails):
        for count in candidates:
            for gain in gains:
                found = simulate(
                    np.random.default_rng(seed),
                    noise,
                    metric,
                    candidates=count,
                    rounds=rounds,
                    gain=gain,
                    runs=runs,
                )
                cells = _cells_spent(found, runs) if spent else _cells(found, runs)
                rows.append([metric, kind, str(count), f"{gain:.1%}", *cells])
    return markdown_table([*_HEADS, "true gain", *(_SPENT if spent else _CLAIMS)], rows)


def _cells(found: Claims, runs: int) -> list[str]:
    shares = (found.searched, found.alternately, found.claimed, found.false, found.holds)
    return [_percent(one, runs) for one in shares]


def _cells_spent(found: Claims, runs: int) -> list[str]:
    shares = (found.found, found.lost, found.false)
    return [
        *(_percent(one, runs) for one in shares),
        f"{found.rounds:.1f}",
        f"{found.all_rounds:.1f}",
    ]


def smallest_table(
    seed: int,
    *,
    candidates: Sequence[int],
    rounds: int,
    drift: float,
    runs: int,
    heavy_tails: bool = False,
) -> str:
    """`smallest_gain` for each kind of noise, as Markdown."""
    rows = []
    for metric, kind, noise in _noises(drift, heavy_tails):
        for count in candidates:
            gain = smallest_gain(seed, noise, metric, candidates=count, rounds=rounds, runs=runs)
            rows.append([metric, kind, str(count), f"{gain:.1%}"])
    return markdown_table([*_HEADS, f"smallest gain found in {FOUND:.0%}"], rows)


def _noises(drift: float, heavy_tails: bool) -> Iterator[tuple[Metric, str, Noise]]:
    for metric in METRICS:
        for lasting in (False, True):
            kind = "lasts" if lasting else "differs between loadings"
            noise = Noise.of(metric, drift=drift, lasting=lasting, heavy_tails=heavy_tails)
            yield metric, kind, noise


def _percent(share: float, runs: int) -> str:
    """With the half width of its 95 % interval (A. Agresti and B. Coull, 1998)."""
    count = runs + 4
    centre = (share * runs + 2) / count
    return f"{share:.1%} ±{1.96 * math.sqrt(centre * (1 - centre) / count):.1%}"


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if an option cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="Searches for each row")
    parser.add_argument("--candidates", default="10,50", help="Of a search")
    parser.add_argument("--gains", default="0,2,5", help="Of one candidate, percent")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of winner and baseline")
    parser.add_argument(
        "--drift", type=float, default=0.1, help="Between neighbouring evaluations, percent"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heavy-tails", action="store_true", help="Draw from Student's t")
    parser.add_argument(
        "--smallest", action="store_true", help="Print the smallest gains that are found instead"
    )
    parser.add_argument(
        "--spent", action="store_true", help="Print rounds and gains lost by ending early instead"
    )
    arguments = parser.parse_args(words)
    if arguments.runs < 1 or arguments.rounds < 2:
        raise InputError("A simulation needs --runs of at least 1 and --rounds of at least 2.")
    candidates = [round(x) for x in _numbers("--candidates", arguments.candidates, 1)]
    gains = [x / 100 for x in _numbers("--gains", arguments.gains, 0)]
    found = partial(
        smallest_table
        if arguments.smallest
        else partial(table, gains=gains, spent=arguments.spent),
        arguments.seed,
        candidates=candidates,
        rounds=arguments.rounds,
        drift=arguments.drift / 100,
        runs=arguments.runs,
        heavy_tails=arguments.heavy_tails,
    )
    print(found())


def _numbers(option: str, text: str, least: float) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number <= 10000 for number in numbers):
        raise InputError(f"{option} {text!r:.40} are no numbers from {least:g} on: give 5,10.")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
