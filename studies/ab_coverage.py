"""How often the intervals of ``gpuenergy ab`` miss the true change, and how many rounds it takes.

    python studies/ab_coverage.py --runs 20000

Two kernels are measured alternately, ABBA, until the verdict is clear or there are no more rounds.
*Errors* are runs in which the interval misses the true change at any look. *Fixed* are those in
which Student's t over all rounds so far does, which is not valid with such a rule.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.gate import Looks, Verdict, decide
from pytest_gpuenergy.record import paired_log_ratio

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


def outcome(
    ratios: list[float], true: float, limit: float, tail: float, most: int
) -> tuple[bool, bool, int, Verdict]:
    """Whether planned looks and unplanned ones miss the truth, the rounds made, and the verdict."""
    looks = Looks.up_to(most)
    verdict, missed, done = Verdict.AMBIGUOUS, False, most
    for number in looks.rounds:
        found = looks.interval(ratios[:number], tail=tail)
        missed |= not found.low <= true <= found.high
        verdict, done = decide(found, limit), number
        if verdict is not Verdict.AMBIGUOUS:
            break
    fixed = False
    for number in looks.rounds:
        estimate = paired_log_ratio(ratios[:number], tail=tail)
        fixed |= not estimate.low <= true <= estimate.high
        if decide(estimate, limit) is not Verdict.AMBIGUOUS:
            break
    return missed, fixed, done, verdict


def row(
    name: str, rng: np.random.Generator, runs: int, sd: float, true: float, limit: float, most: int
) -> str:
    """A row of the table; ``sd`` is that of a turn, ``true`` the change, all as fractions."""
    tail = 0.01 / 2  # ten times what a gate of ten verdicts allows, so that errors can be counted
    turns = sd * NOISES[name](rng, runs, 2 * most)
    ratios = log_ratios(turns) + math.log1p(true)
    found = [outcome(one, math.log1p(true), limit, tail, most) for one in ratios.tolist()]
    missed, fixed = (100 * sum(one[k] for one in found) / runs for k in (0, 1))
    rounds = sum(one[2] for one in found) / runs
    decided = 100 * sum(one[3] is not Verdict.AMBIGUOUS for one in found) / runs
    cells = (f"{100 * sd:g} %", f"{true:+.1%}", f"{100 * limit:g} %", f"{missed:.2f} %")
    return " | ".join([name, *cells, f"{fixed:.2f} %", f"{rounds:.1f}", f"{decided:.1f} %"])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=16)
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    columns = (
        "noise | sd of a turn | change | limit | errors, 1 % allowed | fixed | rounds | decided"
    )
    print(f"| {columns} |\n|---|{'---:|' * 7}")
    for name in NOISES:
        for sd, true, limit in ((0.003, 0.0, 0.01), (0.003, 0.01, 0.01), (0.003, 0.02, 0.01)):
            print(f"| {row(name, rng, arguments.runs, sd, true, limit, arguments.rounds)} |")


if __name__ == "__main__":
    main()
