"""How often a search claims a gain that is none, and how often it finds one, by simulation.

    python bench/false_winners.py --runs 4000

A search evaluates candidates once each, one after another, and takes the best. The best of many
equals looks better than it is, and a card that drifts favours late or early candidates. So the
winner is measured again, alternately with the baseline, and only that counts. The simulation knows
which gains are true. A claim is an interval of 95 % that lies on the side of a gain altogether, so
that 2.5 % of false claims are expected of an interval that holds.

``as searched`` claims from the figures of the search itself, with the deviation between sessions
that the gate assumes; ``alternately`` claims from the rounds, as `gpuenergy ab` does
(`record/ratio.py`); ``allowing for what lasts`` widens that interval by the part of the deviation
between sessions that rounds of one session may not show. The scatter is that of the project's
intervals: see `Noise`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gate_simulation import TRIAL_SD_ENERGY, TRIAL_SD_TIME

from pytest_gpuenergy.energy.statistics import estimate
from pytest_gpuenergy.record.estimate import WANDER
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.ratio import Sample, log_ratio, paired_log_ratio
from pytest_gpuenergy.record.repeatability import SAME_BOARD_SD
from pytest_gpuenergy.report.tables import markdown_table
from pytest_gpuenergy.support.errors import InputError

TAIL = 0.025
TURN_TRIALS = 3
"""In each turn of a round, as in `ab/rounds.py`."""
TRIAL_SD = {
    Metric.TIME: TRIAL_SD_TIME,
    Metric.ENERGY: TRIAL_SD_ENERGY,
    Metric.EDP: math.hypot(TRIAL_SD_TIME, TRIAL_SD_ENERGY),
}

Figures = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations.

    Attributes:
        search: of a candidate's figure in the search.
        turn: of the figure of one turn of a round.
        lasting: of what a kernel keeps in all rounds of one session, and has otherwise in another.
            Rounds cannot show it.
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

        A figure of the search is that of one trial in a session of its own. A turn is a loading of
        its own, with a few trials. What deviates between sessions and is not of the loading lasts,
        if ``lasting``.
        """
        session, loading, trial = SAME_BOARD_SD[metric], WANDER[metric], TRIAL_SD[metric]
        rest = math.sqrt(max(0.0, session**2 - loading**2))
        turn = math.hypot(loading, trial / math.sqrt(TURN_TRIALS))
        lasts = rest if lasting else 0.0
        return cls(math.hypot(session, trial), turn, lasts, rest, drift, heavy_tails)

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
        searched: the figures of the search claim a gain of the winner.
        alternately: the rounds do.
        widened: they do with an interval that allows for what lasts.
        right: so does the latter, and the winner is the candidate that has the true gain.
    """

    searched: float
    alternately: float
    widened: float
    right: float


def simulate(
    rng: np.random.Generator,
    noise: Noise,
    *,
    candidates: int,
    rounds: int,
    gain: float,
    runs: int,
) -> Claims:
    """Search, and measure the winner again.

    Args:
        rng: the source of randomness.
        noise: of all figures.
        candidates: that are evaluated, after the baseline.
        rounds: in which winner and baseline are measured again.
        gain: of one candidate, as a fraction: it needs 1 / (1 + gain) of the baseline. The others
            equal the baseline.
        runs: number of searches.
    """
    counts = np.zeros(4)
    for _ in range(runs):
        true = np.zeros(1 + candidates)
        true[rng.integers(1, candidates + 1)] = -math.log1p(gain)
        common = noise.drifted(rng, 0.0, len(true))
        figures = true + common + noise.draw(rng, noise.search, len(true))
        winner = 1 + int(np.argmin(figures[1:]))
        searched = _searched(float(figures[0]), float(figures[winner]), noise)
        ratios = _ratios(rng, noise, float(common[-1]), float(true[winner]), rounds)
        again = paired_log_ratio(ratios, tail=TAIL).high < 0
        widened = estimate(ratios, known_variance=2 * noise.allowance**2).high < 0
        counts += (searched, again, widened, widened and gain > 0 and true[winner] < 0)
    return Claims(*(counts / runs).tolist())


def _searched(base: float, winner: float, noise: Noise) -> bool:
    samples = [Sample(math.exp(figure), 0.0, math.inf) for figure in (base, winner)]
    return log_ratio(*samples, session_sd=noise.search, tail=TAIL).high < 0


def _ratios(
    rng: np.random.Generator, noise: Noise, start: float, true: float, rounds: int
) -> list[float]:
    """ln(winner / baseline) of each round."""
    turns = noise.drifted(rng, start, 2 * rounds) + noise.draw(rng, noise.turn, 2 * rounds)
    lasting = noise.draw(rng, noise.lasting, 2)
    ratios = []
    for number in range(rounds):
        first, second = float(turns[2 * number]), float(turns[2 * number + 1])
        # The baseline is first in every other round.
        difference = second - first if number % 2 == 0 else first - second
        ratios.append(true + difference + float(lasting[1] - lasting[0]))
    return ratios


def table(
    seed: int,
    *,
    candidates: Sequence[int],
    gains: Sequence[float],
    rounds: int,
    drift: float,
    runs: int,
) -> str:
    """As Markdown, for time and EDP; each row from the same seed."""
    rows = []
    for metric in (Metric.TIME, Metric.EDP):
        for lasting in (False, True):
            noise = Noise.of(metric, drift=drift, lasting=lasting)
            for count in candidates:
                for gain in gains:
                    found = simulate(
                        np.random.default_rng(seed),
                        noise,
                        candidates=count,
                        rounds=rounds,
                        gain=gain,
                        runs=runs,
                    )
                    figures = (found.searched, found.alternately, found.widened, found.right)
                    cells = [_percent(value, runs) for value in figures]
                    kind = "lasts" if lasting else "differs between loadings"
                    right = cells[3] if gain else ""
                    rows.append([metric, kind, str(count), f"{gain:.0%}", *cells[:3], right])
    heads = (
        "metric, rest of the deviation, candidates, true gain, as searched, alternately, "
        "allowing for what lasts, and the right one"
    )
    return markdown_table(heads.split(", "), rows)


def _percent(share: float, runs: int) -> str:
    """With the half width of its 95 % interval (A. Agresti and B. Coull, 1998)."""
    count = runs + 4
    centre = (share * runs + 2) / count
    return f"{share:.1%} ±{1.96 * math.sqrt(centre * (1 - centre) / count):.1%}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 if an option cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000, help="Searches for each row")
    parser.add_argument("--candidates", default="10,50", help="Of a search")
    parser.add_argument("--gains", default="0,2,5", help="Of one candidate, percent")
    parser.add_argument("--rounds", type=int, default=10, help="Of winner and baseline")
    parser.add_argument(
        "--drift", type=float, default=0.1, help="Between neighbouring evaluations, percent"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(words)
    try:
        if arguments.runs < 1 or arguments.rounds < 2:
            raise InputError("A simulation needs --runs of at least 1 and --rounds of at least 2.")
        print(
            table(
                arguments.seed,
                candidates=[round(x) for x in _numbers("--candidates", arguments.candidates, 1)],
                gains=[x / 100 for x in _numbers("--gains", arguments.gains, 0)],
                rounds=arguments.rounds,
                drift=arguments.drift / 100,
                runs=arguments.runs,
            )
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


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
