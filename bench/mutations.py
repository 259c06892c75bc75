"""Puts faults into correct kernels, and counts how many of them verification finds.

    python bench/mutations.py --sample 200
    python bench/mutations.py --kernels own,case7 --ranks 1,13 --json mutations.json
    python bench/mutations.py --kernels softmax --sample 0

``--kernels`` takes names of workloads with bundled kernels, names of the kernels in
``bench/mutation_kernels``, ``own`` for all of these, and ``cases`` for case1 to case7. The mutants
run on the emulated GPU. Each has one fault (`mutation_operators`), and ends as one of these:

found        verification fails
survived     verification passes, but on other inputs an output differs from the original's
rounding     likewise, but by no more than a few rounding errors: the sums are added up differently
equivalent   verification passes, and all outputs are the original's, bit by bit
invalid      the text does not compile

The rate is the share of found mutants among those that are found or survive. The same ``--seed``
gives the same mutants. Exit code 1 if the rate is below ``--at-least``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import Queue, get_context
from pathlib import Path

from mutation_judge import ENDINGS, Judge, Verdict
from mutation_operators import Mutant, mutants
from mutation_subjects import OWN, Subject, bundled_subjects, own_subject

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice, HostRunner
from pytest_gpuenergy.support import (
    GpuEnergyError,
    encode,
    termination_as_interrupt,
    write_atomically,
)
from pytest_gpuenergy.workloads import CASES


def sample(subjects: Sequence[Subject], number: int, seed: int) -> list[tuple[Subject, Mutant]]:
    """``number`` mutants, as many of each subject as possible; all there are for 0."""
    share, more = divmod(number, len(subjects))
    drawn = []
    for index, subject in enumerate(subjects):
        wanted = share + (index < more) if number else sys.maxsize
        drawn += [(subject, mutant) for mutant in mutants(subject.kernel.source, wanted, seed)]
    return drawn


def judged(
    drawn: Sequence[tuple[Subject, Mutant]], folder: Path, *, jobs: int, timeout_s: float
) -> Iterator[Verdict]:
    """The verdicts in the order of the mutants, from ``jobs`` processes.

    Args:
        drawn: what `sample` gives.
        folder: for host programs.
        jobs: number of processes; 0: this one.
        timeout_s: of each run of a kernel.
    """
    if not jobs:
        with EmulatedDevice(runner=HostRunner(folder, jobs=1)) as device:
            judge = Judge(device, timeout_s)
            yield from (judge.verdict(subject, mutant) for subject, mutant in drawn)
        return
    context = get_context("spawn")
    cards: Queue[int] = context.Queue()
    for card in range(jobs):
        cards.put(card)
    with ProcessPoolExecutor(jobs, context, _start, (cards, folder, timeout_s)) as pool:
        yield from pool.map(_judged_here, drawn)


_here: list[Judge] = []
"""The judge of a process."""


def _start(cards: Queue[int], folder: Path, timeout_s: float) -> None:
    """Give this process a card of its own: none waits for another's."""
    device = EmulatedDevice(DEFAULT_PROFILE, cards.get(), runner=HostRunner(folder, jobs=1))
    _here.append(Judge(device, timeout_s))


def _judged_here(drawn: tuple[Subject, Mutant]) -> Verdict:
    return _here[0].verdict(*drawn)


def rate(verdicts: Iterable[Verdict]) -> float:
    """The share of mutants found, of those that compute something else; 1 if there are none."""
    count = Counter(verdict.ending for verdict in verdicts)
    relevant = count["found"] + count["survived"]
    return count["found"] / relevant if relevant else 1.0


def report(verdicts: Sequence[Verdict]) -> str:
    """A table of the endings by operator, the rate, and the mutants that verification missed."""
    width = max(len(verdict.operator) for verdict in verdicts)
    lines = ["".join([" " * width, *(f"{ending:>12}" for ending in ENDINGS)])]
    for name in [*sorted({verdict.operator for verdict in verdicts}), "all"]:
        count = Counter(v.ending for v in verdicts if name in (v.operator, "all"))
        lines.append("".join([f"{name:{width}}", *(f"{count[ending]:12}" for ending in ENDINGS)]))
    lines.append(f"\n{100 * rate(verdicts):.1f} % of the mutants that differ were found.")
    for ending in ("survived", "rounding"):
        missed = [verdict for verdict in verdicts if verdict.ending == ending]
        lines += [f"\n{ending}:"] if missed else []
        lines += [
            f"{v.subject}:{v.line}: {v.operator}: `{_line(v.before)}` -> `{_line(v.after)}`"
            f": {v.why}"
            for v in missed
        ]
    return "\n".join(lines)


def _line(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def find_subjects(names: str, ranks: Sequence[int] | None) -> list[Subject]:
    """The kernels that ``--kernels`` and ``--ranks`` name."""
    groups = {"own": list(OWN), "cases": list(CASES)}
    wanted = [name for word in names.split(",") for name in groups.get(word, [word])]
    return [
        subject
        for name in dict.fromkeys(wanted)
        for subject in ([own_subject(name)] if name in OWN else bundled_subjects(name, ranks))
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", default="own,cases", metavar="LIST", help="%(default)s")
    parser.add_argument("--ranks", help="of bundled kernels, such as 1,13; by default all")
    parser.add_argument("--sample", type=int, default=200, help="mutants; 0: all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout-s", type=float, default=20.0, help="of a run (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--json", type=Path, help="where to write the verdicts as well")
    arguments = parser.parse_args()
    ranks = [int(rank) for rank in arguments.ranks.split(",")] if arguments.ranks else None
    try:
        drawn = sample(find_subjects(arguments.kernels, ranks), arguments.sample, arguments.seed)
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    verdicts: list[Verdict] = []
    with (
        contextlib.suppress(KeyboardInterrupt),  # what has been judged is reported
        termination_as_interrupt(),
        tempfile.TemporaryDirectory(prefix="mutations-") as name,
    ):
        # What earlier versions of verification have passed must not count.
        os.environ["GPUENERGY_CACHE"] = os.environ["GPUENERGY_STATE"] = name
        for verdict in judged(
            drawn, Path(name), jobs=arguments.jobs, timeout_s=arguments.timeout_s
        ):
            verdicts.append(verdict)
            if sys.stderr.isatty():
                print(f"\r{len(verdicts)} of {len(drawn)}", end="", file=sys.stderr, flush=True)
    if not verdicts:
        print("error: no mutant was judged", file=sys.stderr)
        return 2
    print(f"\n{len(verdicts)} of {len(drawn)} mutants:\n{report(verdicts)}")
    if arguments.json is not None:
        told = {
            "seed": arguments.seed,
            "rate": rate(verdicts),
            "mutants": list(map(asdict, verdicts)),
        }
        write_atomically(arguments.json, encode(told))
    return int(100 * rate(verdicts) < arguments.at_least)


if __name__ == "__main__":
    sys.exit(main())
