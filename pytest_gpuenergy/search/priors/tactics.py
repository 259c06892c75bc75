"""``global_tactic_graph.json``: which moves have helped against which bottlenecks, in all kernels.

Each search of a kernel has a part of its own, which it replaces when it ends, so that a search that
is continued does not count twice. A search learns from the parts of the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.moves.move import Region
from pytest_gpuenergy.search.spec.kernel_spec import Language
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    dump,
    is_there,
    lock,
    open_file,
    read_bytes,
    schema_version,
    shown,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

TACTICS_VERSION = 1
"""``schema_version`` of the files written and read here."""
GLOBAL_TACTICS, TACTICS = "global_tactic_graph.json", "tactics.json"
_LARGEST_BYTES = 64 << 20


class Tactic(Struct, frozen=True, forbid_unknown_fields=True):
    """A move against a bottleneck.

    Attributes:
        language: of the kernels.
        move: its name.
        bottleneck: what the states that it was made to spent most of their time on.
        count: results of it that are correct.
        mean: of the natural logarithms of their gains.
        spread: standard deviation of these.
        failures: results that are not.
    """

    language: Language
    move: str
    bottleneck: Region
    count: int
    mean: float
    spread: float
    failures: int = 0


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one search has learned.

    Attributes:
        kernel: its name.
        gpu: the GPU's name.
        emulated: whether it is an emulated one.
        objective: what was minimized.
        tactics: what became of the moves.
    """

    kernel: str
    gpu: str
    emulated: bool
    objective: Metric
    tactics: tuple[Tactic, ...] = ()

    def is_like(self, other: Part) -> bool:
        """Whether both have searched for the same, so that one replaces the other."""
        return self.kernel == other.kernel and self.teaches(other)

    def teaches(self, other: Part) -> bool:
        """Whether its gains say something about those of another search."""
        return (self.gpu, self.emulated, self.objective) == (
            *(other.gpu, other.emulated, other.objective),
        )


class TacticGraph(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        parts: of all searches.
        schema_version: of this file.
    """

    parts: tuple[Part, ...] = ()
    schema_version: int = TACTICS_VERSION


Observation = tuple[str, Region, float | None]
"""A move, the bottleneck of the state that it was made to, and the logarithm of its gain; None for
a failure."""


def summary(language: Language, observations: Iterable[Observation]) -> tuple[Tactic, ...]:
    """What observations of one search amount to, in the order of their names."""
    gains: defaultdict[tuple[str, Region], list[float]] = defaultdict(list)
    failures: defaultdict[tuple[str, Region], int] = defaultdict(int)
    for move, bottleneck, gain in observations:
        if gain is None:
            failures[move, bottleneck] += 1
        else:
            gains[move, bottleneck].append(gain)
    keys = sorted({*gains, *failures})
    return tuple(
        Tactic(language, *key, len(gains[key]), *_moments(gains[key]), failures[key])
        for key in keys
    )


def _moments(gains: Sequence[float]) -> tuple[float, float]:
    if not gains:
        return 0.0, 0.0
    mean = math.fsum(gains) / len(gains)
    return mean, math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / len(gains))


def pooled(tactics: Iterable[Tactic]) -> tuple[Tactic, ...]:
    """Those of several searches together, one for each language, move and bottleneck."""
    groups: defaultdict[tuple[Language, str, Region], list[Tactic]] = defaultdict(list)
    for one in tactics:
        groups[one.language, one.move, one.bottleneck].append(one)
    return tuple(_together(groups[key]) for key in sorted(groups))


def _together(tactics: Sequence[Tactic]) -> Tactic:
    first, count = tactics[0], sum(one.count for one in tactics)
    failures = sum(one.failures for one in tactics)
    mean = math.fsum(one.count * one.mean for one in tactics) / max(1, count)
    squares = math.fsum(one.count * (one.spread**2 + (one.mean - mean) ** 2) for one in tactics)
    spread = math.sqrt(squares / max(1, count))
    return Tactic(first.language, first.move, first.bottleneck, count, mean, spread, failures)


def tactics_at_start(
    outdir: Path, folder: Path, part: Part, tell: Callable[[str], None]
) -> tuple[Tactic, ...]:
    """What a search has to know of the others: as they were when it began, also if continued.

    Args:
        outdir: of all searches.
        folder: of this one, where they are kept for it.
        part: of this one, without tactics.
        tell: called with a sentence if a file is damaged and set aside.

    Raises:
        InputError: what it began with is damaged.
        OutputError: it cannot be written.
    """
    kept = folder / TACTICS
    if is_there(kept):
        try:
            return _read(kept).parts[0].tactics
        except (FormError, IndexError) as error:
            raise InputError(
                f"What the search began with, {kept}, cannot be used ({error}): name another "
                "--outdir."
            ) from None
    with _held(outdir):
        others = [
            one
            for one in _usable(outdir, tell).parts
            if one.teaches(part) and not one.is_like(part)
        ]
    found = pooled(tactic for one in others for tactic in one.tactics)
    with writing(kept):
        write_atomically(kept, dump(TacticGraph(parts=(_with(part, found),))), durable=True)
    return found


def learn(
    outdir: Path, part: Part, tactics: tuple[Tactic, ...], tell: Callable[[str], None]
) -> None:
    """Replace a search's part by what it has learned.

    Raises:
        OutputError: the file cannot be written.
    """
    path = outdir / GLOBAL_TACTICS
    with _held(outdir), writing(path):
        others = [one for one in _usable(outdir, tell).parts if not one.is_like(part)]
        parts = sorted([*others, _with(part, tactics)], key=lambda one: one.kernel)
        write_atomically(path, dump(TacticGraph(parts=tuple(parts))), durable=True)


def _with(part: Part, tactics: tuple[Tactic, ...]) -> Part:
    return Part(
        kernel=part.kernel,
        gpu=part.gpu,
        emulated=part.emulated,
        objective=part.objective,
        tactics=tactics,
    )


@contextmanager
def _held(outdir: Path) -> Iterator[None]:
    """Keep other processes from the file meanwhile."""
    path = outdir / f".{GLOBAL_TACTICS}.lock"
    with writing(path), open(path, "a", opener=open_file) as file:
        lock(file.fileno())
        yield


def _usable(outdir: Path, tell: Callable[[str], None]) -> TacticGraph:
    """What the file has; nothing if there is none or it is damaged, which is then set aside."""
    path = outdir / GLOBAL_TACTICS
    if not is_there(path):
        return TacticGraph()
    try:
        return _read(path)
    except FormError as error:
        aside = path.with_suffix(".damaged.json")
        with writing(aside):
            path.replace(aside)
        tell(f"{path} cannot be used, because {error}: it is kept as {aside.name}.")
        return TacticGraph()


def _read(path: Path) -> TacticGraph:
    content = read_bytes(path, "list of tactics", _LARGEST_BYTES)
    version = schema_version(content)
    if version != TACTICS_VERSION:
        raise FormError(
            f"its schema_version is {shown(version)}, but this gpuenergy reads {TACTICS_VERSION}"
        )
    found = decode(content, TacticGraph)
    for tactic in (tactic for part in found.parts for tactic in part.tactics):
        if min(tactic.count, tactic.failures) < 0 or not _is_possible(tactic):
            raise FormError(f"no gains of {shown(tactic.move)} can be like that")
    return found


def _is_possible(tactic: Tactic) -> bool:
    return abs(tactic.mean) <= _LARGEST_GAIN and 0 <= tactic.spread <= _LARGEST_GAIN


_LARGEST_GAIN = 1000.0
