"""Counts how many wrong kernels of the corpus are found, and how many right ones are refused.

    python bench/corpus.py
    python bench/corpus.py --against allclose,sanitizer --device auto
    python bench/corpus.py --set 4,5 --kind tail,race
    python bench/corpus.py --family softmax --family gemm
    python bench/corpus.py --json corpus.json --resume

``verify`` is this project's verification; ``--against`` adds other judges: ``allclose``, three
standard normal inputs with the tolerances of KernelBench, and ``sanitizer``, the four tools of
compute-sanitizer, which needs a GPU. A kernel that does not compile on the device, or is not
finished after ``--limit-s``, is not judged and counts for nothing. ``--resume`` judges what the
file lacks, and keeps and counts all verdicts in it on kernels that the corpus still has.

The kernels and their kinds are described in ``bench/corpus/README.md``. Exit code 1 if the share of
wrong kernels found by ``verify`` is below ``--at-least``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import Queue, get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

from corpus_judges import SANITIZER, Judges
from entries import CorpusError, Entry, kinds, read_corpus, sets

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, EmulatedDevice, HostRunner
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    termination_as_interrupt,
    write_atomically,
)

JUDGES = ("verify", "allclose", "sanitizer")
MOST_ON_A_CARD = 8
"""Processes that share a card: each has a CUDA context of some 500 MB."""
WRITES_EVERY_S = 2.0
"""How often the verdicts are written: the whole file takes 70 ms for two thousand."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says of an entry of the corpus.

    Attributes:
        name, kind, right: of the entry.
        digest: of what ran.
        judge: one of `JUDGES`.
        device: the GPU's name, ``emulated`` before that of an emulated one.
        ending: ``refused``, ``passed`` or ``not judged``.
        why: the judge's message.
        seconds: wall time.
    """

    name: str
    kind: str
    right: bool
    digest: str
    judge: str
    device: str
    ending: str
    why: str
    seconds: float


def digest_of(entry: Entry) -> str:
    """Return a hash of what an entry runs and of what it must compute."""
    return hashlib.sha256(repr(entry).encode()).hexdigest()[:16]


def judged(
    work: Sequence[tuple[str, Entry]],
    folder: Path,
    *,
    emulated: bool,
    jobs: int,
    seed: int,
    limit_s: float,
) -> Iterator[Verdict]:
    """Yield the verdicts as they come, from ``jobs`` processes."""
    context = get_context("spawn")
    cards: Queue[int] = context.Queue()
    for card in range(jobs):
        cards.put(card)
    settings = (cards, folder, emulated, seed, limit_s)
    with ProcessPoolExecutor(jobs, context, _start, settings) as pool:
        try:
            for done in as_completed([pool.submit(_judged_here, *one) for one in work]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


_here: list[tuple[str, Judges]] = []
"""The device's name and the judges of a process."""


def _start(cards: Queue[int], folder: Path, emulated: bool, seed: int, limit_s: float) -> None:
    if emulated:
        runner = HostRunner(folder, jobs=1)
        device = EmulatedDevice(DEFAULT_PROFILE, cards.get(), runner=runner)
        name = f"emulated {device.name}"
    else:
        device = open_device("auto")
        name = device.name
    _here.append((name, Judges(device, folder, seed=seed, limit_s=limit_s)))


def _judged_here(judge: str, entry: Entry) -> Verdict:
    name, judges = _here[0]
    began_s = time.monotonic()
    said = judges(judge, entry)
    seconds = round(time.monotonic() - began_s, 2)
    about = (entry.name, entry.kind, entry.right, digest_of(entry))
    return Verdict(*about, judge, name, said.ending, said.why, seconds)


def table(verdicts: Sequence[Verdict]) -> str:
    """Return, for each judge, a table by kind and set, totals, and names of what was misjudged."""
    parts = []
    width = max(len(verdict.kind) for verdict in verdicts)
    set_of = {family: name for name, families in sets().items() for family in families}
    for judge in JUDGES:
        own = [verdict for verdict in verdicts if verdict.judge == judge]
        if not own:
            continue
        lines = [
            f"{judge} on {own[0].device}",
            f"{'':{width}}  wrong  found  right  refused  not judged",
        ]
        lines += [
            _row(kind, [v for v in own if kind in (v.kind, "all")], width)
            for kind in [*sorted({verdict.kind for verdict in own}), "all"]
        ]
        by_set: dict[str, list[Verdict]] = {name: [] for name in sets()}
        for verdict in own:
            by_set[set_of[verdict.name.partition("/")[0]]].append(verdict)
        lines += [_row(f"set {name}", chosen, width) for name, chosen in by_set.items() if chosen]
        wrong, found, right, refused = counts(own)
        if wrong:
            lines.append(f"{found} of {wrong} wrong kernels found: {100 * found / wrong:.1f} %")
        if right:
            lines.append(
                f"{refused} of {right} right kernels refused: {100 * refused / right:.1f} %"
            )
        for title, chosen in {
            "wrong, not found": [v for v in own if not v.right and v.ending == "passed"],
            "right, refused": [v for v in own if v.right and v.ending == "refused"],
            "not judged": [v for v in own if v.ending == "not judged"],
        }.items():
            told = [f"  {v.name} ({v.kind}){_line(v.why)}" for v in chosen]
            lines += [f"{title}:", *sorted(told)] if told else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def counts(verdicts: Iterable[Verdict]) -> tuple[int, int, int, int]:
    """Return the numbers of wrong kernels, found ones, right kernels and refused ones."""
    count = Counter((v.right, v.ending) for v in verdicts if v.ending != "not judged")
    found, refused = count[False, "refused"], count[True, "refused"]
    return found + count[False, "passed"], found, refused + count[True, "passed"], refused


def _row(kind: str, own: Sequence[Verdict], width: int) -> str:
    wrong, found, right, refused = counts(own)
    none = sum(verdict.ending == "not judged" for verdict in own)
    return f"{kind:{width}}  {wrong:5}  {found:5}  {right:5}  {refused:7}  {none or '':>10}"


def _line(text: str) -> str:
    shown = " ".join(text.split())
    return f": {shown if len(shown) <= 160 else f'{shown[:157]}...'}" if shown else ""


def chosen_entries(arguments: argparse.Namespace) -> list[Entry]:
    """Return the entries that the command line asks for.

    Raises:
        InputError: it names a kind or family that there is none of, or leaves nothing.
    """
    known = {"kind": {**kinds(), "base": ""}, "set": sets()}
    for option, choices in known.items():
        if unknown := set(getattr(arguments, option)) - set(choices):
            raise InputError(
                f"There is no {option} {', '.join(sorted(unknown))}: "
                f"give some of {', '.join(choices)}."
            )
    families = [*arguments.family, *(one for name in arguments.set for one in sets()[name])]
    try:
        entries = read_corpus(families)
    except CorpusError as error:
        raise InputError(str(error)) from None
    if arguments.every < 1:
        raise InputError(f"--every {arguments.every} takes no kernel: give 1 or more.")
    entries = [one for one in entries if not arguments.kind or one.kind in arguments.kind]
    entries = [one for one in entries if arguments.only in one.name][:: arguments.every]
    if not entries:
        raise InputError("No kernel of the corpus is left by these options.")
    return entries


def read_verdicts(path: Path) -> list[Verdict]:
    """Read what an earlier run has written.

    Raises:
        InputError: the file cannot be read or is something else.
    """
    try:
        return [Verdict(**one) for one in json.loads(path.read_text())["verdicts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} was not written by this command ({error}): give --json another name."
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Run the judges; return the exit code.

    Raises:
        GpuEnergyError: the options or the device do not allow it.
    """
    judges = ["verify", *arguments.against]
    if unknown := set(judges) - set(JUDGES):
        raise InputError(f"--against {', '.join(unknown)}: give allclose, sanitizer or both.")
    emulated = arguments.device == "emulated"
    if "sanitizer" in judges and (emulated or shutil.which(SANITIZER) is None):
        raise InputError(f"--against sanitizer needs an NVIDIA GPU and {SANITIZER} on PATH.")
    if arguments.resume and arguments.json is None:
        raise InputError("--resume continues a file: give --json as well.")
    entries = chosen_entries(arguments)
    verdicts: list[Verdict] = []
    written_s = time.monotonic()
    if arguments.resume and arguments.json.exists():
        current = {(entry.name, digest_of(entry)) for entry in read_corpus()}
        verdicts = [v for v in read_verdicts(arguments.json) if (v.name, v.digest) in current]
    known = {(verdict.judge, verdict.name) for verdict in verdicts}
    kept = len(verdicts)
    work = [(j, e) for j in judges for e in entries if (j, e.name) not in known]
    cores = len(os.sched_getaffinity(0))
    jobs = arguments.jobs or (cores if emulated else min(cores, MOST_ON_A_CARD))
    with (
        contextlib.suppress(KeyboardInterrupt),  # what has been judged is reported
        termination_as_interrupt(),
        tempfile.TemporaryDirectory(prefix="corpus-") as name,
    ):
        # What an earlier version of verification has passed must not count.
        os.environ["GPUENERGY_CACHE"] = os.environ["GPUENERGY_STATE"] = name
        for verdict in judged(
            work,
            Path(name),
            emulated=emulated,
            jobs=min(jobs, max(1, len(work))),
            seed=arguments.seed,
            limit_s=arguments.limit_s,
        ):
            verdicts.append(verdict)
            if sys.stderr.isatty():
                total = len(work) + kept
                print(f"\r{len(verdicts)} of {total}", end="", file=sys.stderr, flush=True)
            if arguments.json is not None and time.monotonic() - written_s > WRITES_EVERY_S:
                _write(arguments.json, verdicts, arguments.seed)
                written_s = time.monotonic()
    if not verdicts:
        raise InputError("Nothing was judged.")
    if arguments.json is not None:
        _write(arguments.json, verdicts, arguments.seed)
    print(f"\n{table(verdicts)}")
    wrong, found, *_ = counts(v for v in verdicts if v.judge == "verify")
    return int(bool(wrong) and 100 * found / wrong < arguments.at_least)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _write(path: Path, verdicts: Sequence[Verdict], seed: int) -> None:
    told = {"seed": seed, "verdicts": [asdict(verdict) for verdict in verdicts]}
    write_atomically(path, json.dumps(told, indent=1) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", choices=("emulated", "auto"), default="emulated", help="%(default)s"
    )
    for option, what in {
        "--against": "other judges: allclose,sanitizer",
        "--kind": "kinds of faults",
        "--family": "computations",
        "--set": "sets of families",
    }.items():
        parser.add_argument(
            option, action="extend", type=_words, default=[], metavar="LIST", help=what
        )
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose names contain it")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth kernel")
    parser.add_argument("--seed", type=int, default=20, help="of the last inputs (%(default)s)")
    parser.add_argument("--jobs", type=int, default=0, help="processes")
    parser.add_argument("--limit-s", type=float, default=90.0, help="for a kernel (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--json", type=Path, help="where to write the verdicts as well")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts in --json")
    try:
        return run(parser.parse_args(words))
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
