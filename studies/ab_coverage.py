"""How often the intervals of ``gpuenergy ab`` miss the true change, and how many rounds it takes.

    python studies/ab_coverage.py --runs 20000

Two kernels are measured alternately, ABBA, until the verdict is clear or there are no more rounds.
*Lower* and *upper* are runs in which that end of the interval lies beyond the true change at any
look. *Fixed* are those in which Student's t over all rounds so far lies beyond it with its lower
end, which is not valid with such a rule.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.gate import Looks, Verdict, change_interval, decide
from pytest_gpuenergy.record import Metric, paired_log_ratio

Turns = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Turns]
"""Draws noise of unit standard deviation for each turn: (runs, turns)."""


def normal(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """Independent turns."""
    return rng.standard_normal((runs, turns))


def heavy(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, (runs, turns)) / math.sqrt(3)


def skewed(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """Exponential: now and then a turn takes much more."""
    return rng.exponential(1.0, (runs, turns)) - 1.0


def two_states(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """A card with two levels of power, which it leaves every tenth turn."""
    switches = rng.random((runs, turns)) < 0.1
    start = rng.integers(0, 2, (runs, 1))
    level = (start + switches.cumsum(axis=1)) % 2
    return 2.0 * level - 1.0 + 0.2 * rng.standard_normal((runs, turns))


def correlated(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """Autoregressive, with 0.9 from one turn to the next."""
    made = rng.standard_normal((runs, turns))
    for turn in range(1, turns):
        made[:, turn] = 0.9 * made[:, turn - 1] + math.sqrt(1 - 0.81) * made[:, turn]
    return made


def walk(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """A random walk."""
    return rng.standard_normal((runs, turns)).cumsum(axis=1)


def drift(rng: np.random.Generator, runs: int, turns: int) -> Turns:
    """A drift of a standard deviation each turn."""
    return rng.standard_normal((runs, turns)) + np.arange(turns)


NOISES: Mapping[str, Noise] = {
    "normal": normal,
    "Student's t, 3 degrees": heavy,
    "exponential": skewed,
    "two states": two_states,
    "autoregressive 0.9": correlated,
    "random walk": walk,
    "linear drift": drift,
}


def log_ratios(turns: Turns) -> Turns:
    """ln(B / A) of each round of turns in the order A B B A A B B A."""
    first, second = turns[:, 0::2], turns[:, 1::2]
    signs = np.where(np.arange(first.shape[1]) % 2 == 0, 1.0, -1.0)
    return signs * (second - first)


@dataclass(frozen=True)
class Outcome:
    """What became of one pair.

    Attributes:
        lower: whether the lower end was ever above the truth.
        upper: whether the upper end was ever below the truth.
        fixed: whether the lower end of Student's t over all rounds was ever above it.
        rounds: the rounds that were made.
        verdict: the last verdict.
    """

    lower: bool
    upper: bool
    fixed: bool
    rounds: int
    verdict: Verdict


def outcome(ratios: list[float], true: float, limit: float, alarm: float, most: int) -> Outcome:
    """Judge a pair at the planned looks; ``alarm`` is the chance of an error at the lower end."""
    looks = Looks.up_to(most)
    verdict, lower, upper, done = Verdict.AMBIGUOUS, False, False, most
    for number in looks.rounds:
        at = partial(looks.interval, ratios[:number])
        found = change_interval(at, alarm, (), Metric.EDP)
        lower |= found.low > true
        upper |= found.high < true
        verdict, done = decide(found, limit), number
        if verdict is not Verdict.AMBIGUOUS:
            break
    fixed = False
    for number in looks.rounds:
        estimate = change_interval(
            partial(paired_log_ratio, ratios[:number]), alarm, (), Metric.EDP
        )
        fixed |= estimate.low > true
        if decide(estimate, limit) is not Verdict.AMBIGUOUS:
            break
    return Outcome(lower, upper, fixed, done, verdict)


ALARM = 0.005
"""Twelve times what a gate of eight kernels allows for each verdict: errors can be counted."""


def row(
    name: str, rng: np.random.Generator, runs: int, sd: float, true: float, limit: float, most: int
) -> str:
    """A row of the table; ``sd`` is that of a turn, ``true`` the change, all as fractions."""
    turns = sd * NOISES[name](rng, runs, 2 * most)
    ratios = log_ratios(turns) + math.log1p(true)
    found = [outcome(one, math.log1p(true), limit, ALARM, most) for one in ratios.tolist()]
    shares = (
        fmean(one.lower for one in found),
        fmean(one.fixed for one in found),
        fmean(one.upper for one in found),
        fmean(one.verdict is Verdict.SAME for one in found),
        fmean(one.verdict is not Verdict.AMBIGUOUS for one in found),
    )
    lower, fixed, upper, same, decided = (f"{share:.2%}".replace("%", " %") for share in shares)
    rounds = f"{fmean(one.rounds for one in found):.1f}"
    cells = (f"{100 * sd:g} %", f"{true:+.1%}", f"{100 * limit:g} %", lower, fixed, upper)
    return " | ".join([name, *cells, rounds, same, decided])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=16)
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    columns = (
        "noise | sd of a turn | change | limit | lower, 0.5 % allowed | fixed | upper, 5 % allowed "
        "| rounds | SAME | decided"
    )
    print(f"| {columns} |\n|---|{'---:|' * 9}")
    for name in NOISES:
        for sd, true, limit in ((0.003, 0.0, 0.01), (0.003, 0.01, 0.01), (0.003, 0.02, 0.01)):
            print(f"| {row(name, rng, arguments.runs, sd, true, limit, arguments.rounds)} |")


if __name__ == "__main__":
    main()
