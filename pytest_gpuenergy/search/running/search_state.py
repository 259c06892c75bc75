"""``search_state.json``: the graph that a search has explored so far, and where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from pytest_gpuenergy.record import Interval, Metric
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    Outcome,
    decode,
    encode,
    read_bytes,
    schema_version,
    shown,
)

STATE_VERSION = 1
"""``schema_version`` of the files written and read here."""

_T = TypeVar("_T")
_LARGEST_BYTES = 256 << 20


class Identity(Struct, frozen=True, kw_only=True):
    """What a search must have in common with the one that it continues.

    Attributes:
        spec: hash of the kernel spec and its source.
        gpu: the GPU's name.
        emulated: whether it is an emulated one.
        power_limit_w: that the card enforces; None if it does not say.
        sm_clock_mhz: to which its SMs are locked; None if they are not.
        objective: what is minimized.
        seed: of the search.
        strategy: parameters of what chooses the states, see `SearchParameters`.
    """

    spec: str
    gpu: str
    emulated: bool
    power_limit_w: float | None
    objective: Metric
    seed: int
    strategy: dict[str, float] = {}
    sm_clock_mhz: int | None = None

    @property
    def settings(self) -> str:
        """What the card is set to, as a clause: `` under 450 W at 1500 MHz``."""
        limit = "" if self.power_limit_w is None else f" under {self.power_limit_w:g} W"
        return limit + ("" if self.sm_clock_mhz is None else f" at {self.sm_clock_mhz} MHz")


class Node(Struct, frozen=True, kw_only=True):
    """A state that was evaluated.

    Attributes:
        id: of the state.
        parent: the id of the state from which it was reached; None of the baseline.
        move: by which it was reached.
        what: the place and the parameters of the move.
        outcome: ``correct``, or why it is refused.
        cost: the objective, in ms, mJ or mJ ms; None if it is refused.
        time_ms: of one launch.
    """

    id: str
    parent: str | None
    move: str = ""
    what: str = ""
    outcome: Outcome
    cost: float | None
    time_ms: float | None


class TurnFigures(Struct, frozen=True, kw_only=True):
    """What one turn of a comparison measured; what the card does not report is None.

    Attributes:
        round: from 1 on.
        side: what was measured.
        time_ms: of one launch.
        energy_mj: of one launch.
        power_w: mean.
        seconds: for which it was measured, without the heat-up.
        temperature_c: mean.
        effective_sm_clock_mhz: mean clock of an SM.
        memory_clock_mhz: at the end.
        event_reasons: NVML's bits, of all moments.
        flags: what makes the figures doubtful.
    """

    round: int
    side: Literal["baseline", "variant"]
    time_ms: float
    energy_mj: float
    power_w: float
    seconds: float = 0.0
    temperature_c: float | None = None
    effective_sm_clock_mhz: float | None = None
    memory_clock_mhz: int | None = None
    event_reasons: int = 0
    flags: tuple[str, ...] = ()


class Gain(Struct, frozen=True, kw_only=True):
    """How a variant compares with the baseline when both are measured alternately.

    Attributes:
        id: of the variant.
        accepted: whether it is better in the objective, by the whole interval.
        rounds: how often each was measured.
        ended_early: whether there were fewer rounds than usual, because a gain that could be
            claimed was out of reach.
        candidates: among which the variant was the best; the intervals are the wider the more.
        ratios: by metric, the variant's figure divided by the baseline's, with an interval.
        ratio_intervals: of these; each contains the true ratio with a probability of at least 99 %,
            also where a part of what differs between sessions lasts through one.
        baseline: by metric, the baseline's figure, in ms, mJ or mJ ms.
        variant: likewise of the variant.
        reasons: why an interval is wider than the scatter of the rounds.
        message: why there are no figures, if there are none.
        unclaimed: whether that is because an emulated GPU's model was not compared with a real card
            for kernels of this kind.
        turns: in the order in which they were measured; of ``comparison.json`` only.
    """

    id: str
    accepted: bool
    rounds: int
    ended_early: bool = False
    candidates: int = 1
    ratios: dict[Metric, float] = {}
    ratio_intervals: dict[Metric, Interval] = {}
    baseline: dict[Metric, float] = {}
    variant: dict[Metric, float] = {}
    reasons: tuple[str, ...] = ()
    message: str = ""
    unclaimed: bool = False
    turns: tuple[TurnFigures, ...] = ()


class SearchState(Struct, frozen=True, kw_only=True):
    """A search of one kernel.

    Attributes:
        identity: of the search.
        width: how many variants are evaluated at the same time: the number of GPUs with which the
            search began. It goes on with that number on any other, because it chooses the same
            variants only then.
        builds: variants evaluated, the baseline excepted.
        nodes: in the order of their evaluation, the baseline first.
        incumbent: the id of the best state: by its cost so far, at the end by `gains`.
        finished: whether the search has ended by itself or by its budget.
        gains: of the best variants, the best by its cost first, until one is accepted.
        graph: of the states, with the actions, values and visits of the strategy. A search that is
            continued builds it again from the results.
        schema_version: of this file.
    """

    identity: Identity
    width: int = 1
    builds: int = 0
    nodes: tuple[Node, ...] = ()
    incumbent: str | None = None
    finished: bool = False
    gains: tuple[Gain, ...] = ()
    graph: GraphRecord | None = None
    schema_version: int = STATE_VERSION


def identity_of_spec(spec: KernelSpec) -> str:
    """A hash of a spec with its source."""
    return hashlib.sha256(encode(spec)).hexdigest()


def read_state(path: Path) -> SearchState:
    """Read a ``search_state.json``.

    Raises:
        InputError: it cannot be read.
    """
    what = "state of a search"
    content = read_bytes(path, what, _LARGEST_BYTES)
    with _usable(path, what):
        version = schema_version(content)
        if version != STATE_VERSION:
            raise FormError(
                f"its schema_version is {shown(version)}, but this gpuenergy reads {STATE_VERSION}"
            )
        return decode(content, SearchState)


def read_lines(path: Path, what: str, kind: type[_T], largest_bytes: int) -> list[_T]:
    """The records of a search in a file with one a line; messages call it ``what``.

    Raises:
        InputError: it cannot be read.
    """
    content = read_bytes(path, what, largest_bytes)
    with _usable(path, what):
        return [decode(line, kind) for line in content.splitlines()]


@contextmanager
def _usable(path: Path, what: str) -> Iterator[None]:
    """Raise an `InputError` that names the file where its content does not have its form."""
    try:
        yield
    except FormError as error:
        raise InputError(
            f"The {what} {path} cannot be used, because {error}: name another --outdir."
        ) from None
