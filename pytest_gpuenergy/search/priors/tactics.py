"""``global_tactic_graph.json``: what moves have gained against each bottleneck, in all kernels.

Each search has a part of this file and replaces it when it ends, so a search that is continued does
not count twice. A search learns from the parts of the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.moves.move import Region
from pytest_gpuenergy.search.spec.kernel_spec import Language
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode_versioned,
    dump,
    is_there,
    lock,
    open_file,
    read_bytes,
    shown,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

TACTICS_VERSION = 1
"""The ``schema_version`` of the files that this version reads and writes."""
GLOBAL_TACTICS, TACTICS = "global_tactic_graph.json", "tactics.json"
_MAX_BYTES = 64 << 20
"""Size of a file of tactics."""
_MAX_GAIN = 1000.0
"""Logarithm of a speedup; a larger one in a file cannot be right."""

Observation = tuple[str, Region, float | None]
"""A move, the bottleneck of the state before it, and the logarithm of its gain or None."""


class Tactic(Struct, frozen=True, forbid_unknown_fields=True):
    """The gains of a move against a bottleneck.

    Attributes:
        language: the language of the kernels.
        move: the name of the move.
        bottleneck: the region on which the states before the move spent most of their time.
        count: the number of its correct results.
        mean: the mean of the natural logarithms of their gains.
        spread: the standard deviation of these logarithms.
        failures: the number of its results that are not correct.
    """

    language: Language
    move: str
    bottleneck: Region
    count: int
    mean: float
    spread: float
    failures: int = 0


class SearchTactics(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The experience of one search with moves.

    Attributes:
        kernel: the name of the kernel.
        gpu: the name of the GPU.
        emulated: whether the GPU is emulated.
        objective: the metric that the search minimized.
        tactics: the gains of its moves.
    """

    kernel: str
    gpu: str
    emulated: bool
    objective: Metric
    tactics: tuple[Tactic, ...] = ()

    def teaches(self, other: SearchTactics) -> bool:
        """Return whether its gains say something about those of another search."""
        mine = (self.gpu, self.emulated, self.objective)
        return mine == (other.gpu, other.emulated, other.objective)


class TacticGraph(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
        parts: what each search has learned.
        schema_version: the version of the file's form.
    """

    parts: tuple[SearchTactics, ...] = ()
    schema_version: int = TACTICS_VERSION


def summarize_observations(
    language: Language, observations: Iterable[Observation]
) -> tuple[Tactic, ...]:
    """Return the tactics that sum up the observations of one search, ordered by their names."""
    return pool_tactics(
        Tactic(language, move, bottleneck, 0, 0.0, 0.0, failures=1)
        if gain is None
        else Tactic(language, move, bottleneck, 1, gain, 0.0)
        for move, bottleneck, gain in observations
    )


def pool_tactics(tactics: Iterable[Tactic]) -> tuple[Tactic, ...]:
    """Combine the tactics of several searches into one per language, move and bottleneck."""
    groups: defaultdict[tuple[Language, str, Region], list[Tactic]] = defaultdict(list)
    for tactic in tactics:
        groups[tactic.language, tactic.move, tactic.bottleneck].append(tactic)
    combined = []
    for key, group in sorted(groups.items(), key=lambda pair: pair[0]):
        count = sum(tactic.count for tactic in group)
        failures = sum(tactic.failures for tactic in group)
        mean = math.fsum(tactic.count * tactic.mean for tactic in group) / max(1, count)
        squares = math.fsum(
            tactic.count * (tactic.spread**2 + (tactic.mean - mean) ** 2) for tactic in group
        )
        spread = math.sqrt(squares / max(1, count))
        combined.append(Tactic(*key, count, mean, spread, failures))
    return tuple(combined)


def initial_tactics(
    outdir: Path, folder: Path, part: SearchTactics, tell: Callable[[str], None]
) -> tuple[Tactic, ...]:
    """Return what other searches had learned when a search began, even if it is continued now.

    Args:
        outdir: the folder of all searches.
        folder: the folder of this search, which keeps a copy.
        part: this search, without tactics.
        tell: called with a sentence if a file is damaged and renamed.

    Raises:
        InputError: the copy of this search is damaged.
        OutputError: the copy cannot be written.
    """
    kept = folder / TACTICS
    if is_there(kept):
        try:
            return _read_graph(kept).parts[0].tactics
        except (FormError, IndexError) as error:
            raise InputError(
                f"What the search began with, {kept}, cannot be used ({error}): name another "
                "--outdir."
            ) from None
    with _lock(outdir):
        parts = [other for other in _usable(outdir, tell).parts if other.teaches(part)]
    others = [other for other in parts if other.kernel != part.kernel]
    tactics = pool_tactics(tactic for other in others for tactic in other.tactics)
    with writing(kept):
        graph = TacticGraph(parts=(replace(part, tactics=tactics),))
        write_atomically(kept, dump(graph), durable=True)
    return tactics


def write_tactics(
    outdir: Path, part: SearchTactics, tactics: tuple[Tactic, ...], tell: Callable[[str], None]
) -> None:
    """Replace the part of a search by what it has learned.

    Raises:
        OutputError: the file cannot be written.
    """
    path = outdir / GLOBAL_TACTICS
    with _lock(outdir), writing(path):
        others = [
            other
            for other in _usable(outdir, tell).parts
            if other.kernel != part.kernel or not other.teaches(part)
        ]
        parts = sorted([*others, replace(part, tactics=tactics)], key=lambda each: each.kernel)
        write_atomically(path, dump(TacticGraph(parts=tuple(parts))), durable=True)


@contextmanager
def _lock(outdir: Path) -> Iterator[None]:
    """Lock the file against other processes."""
    path = outdir / f".{GLOBAL_TACTICS}.lock"
    with writing(path), open(path, "a", opener=open_file) as file:
        lock(file.fileno())
        yield


def _usable(outdir: Path, tell: Callable[[str], None]) -> TacticGraph:
    """Read the file; return nothing if there is none, or if it is damaged, and then rename it."""
    path = outdir / GLOBAL_TACTICS
    if not is_there(path):
        return TacticGraph()
    try:
        return _read_graph(path)
    except FormError as error:
        damaged = path.with_suffix(".damaged.json")
        with writing(damaged):
            path.replace(damaged)
        tell(f"{path} cannot be used, because {error}: it is kept as {damaged.name}.")
        return TacticGraph()


def _read_graph(path: Path) -> TacticGraph:
    content = read_bytes(path, "list of tactics", _MAX_BYTES)
    graph = decode_versioned(content, TacticGraph, TACTICS_VERSION)
    for tactic in (tactic for part in graph.parts for tactic in part.tactics):
        possible = abs(tactic.mean) <= _MAX_GAIN and 0 <= tactic.spread <= _MAX_GAIN
        if min(tactic.count, tactic.failures) < 0 or not possible:
            raise FormError(f"no gains of {shown(tactic.move)} can be like that")
    return graph
