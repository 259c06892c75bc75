"""``search_state.json``: what a search has evaluated, its graph and its gains."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.validation.result import SearchNode, VariantGain
from pytest_gpuenergy.support import encode, read_record

STATE_VERSION = 1
"""The ``schema_version`` of the files that this version reads and writes."""

_MAX_BYTES = 256 << 20
"""Size of a ``search_state.json``."""


class SearchIdentity(Struct, frozen=True, kw_only=True):
    """What a search must have in common with the one that it continues.

    Attributes:
        spec: the hash of the kernel spec with its source.
        gpu: the name of the GPU.
        emulated: whether the GPU is emulated.
        power_limit_w: the power limit that the card enforces; None if it reports none.
        sm_clock_mhz: the clock to which the SMs are locked; None if they are not.
        objective: the metric that the search minimizes.
        seed: the seed of the search.
        strategy: the parameters of the strategy, see `SearchParameters`.
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
        """The settings of the card, as a clause such as `` under 450 W at 1500 MHz``."""
        limit = "" if self.power_limit_w is None else f" under {self.power_limit_w:g} W"
        return limit + ("" if self.sm_clock_mhz is None else f" at {self.sm_clock_mhz} MHz")


class SearchState(Struct, frozen=True, kw_only=True):
    """A search of one kernel.

    Attributes:
        identity: the identity of the search.
        width: the number of variants that are evaluated at the same time, which is the number of
            GPUs with which the search began. A search that continues on other GPUs keeps this
            number, because it chooses the same variants only then.
        builds: the number of evaluated variants, without the baseline.
        nodes: the states in the order of their evaluation, the baseline first.
        incumbent: the id of the best state: first by its cost, and at the end by `gains`.
        finished: whether the search has tried everything or spent its budget.
        gains: the gains of the best variants, the best by its cost first, until one is accepted.
        graph: the graph of the states, with the actions, values and visits of the strategy. A
            search that is continued builds it again from the results.
        schema_version: the version of this file's form.
    """

    identity: SearchIdentity
    width: int = 1
    builds: int = 0
    nodes: tuple[SearchNode, ...] = ()
    incumbent: str | None = None
    finished: bool = False
    gains: tuple[VariantGain, ...] = ()
    graph: GraphRecord | None = None
    schema_version: int = STATE_VERSION


def identity_of_spec(spec: KernelSpec) -> str:
    """Return a hash of a spec with its source."""
    return hashlib.sha256(encode(spec)).hexdigest()


def read_state(path: Path) -> SearchState:
    """Read a ``search_state.json``.

    Raises:
        InputError: the file cannot be read.
    """
    return read_record(
        path,
        "state of a search",
        SearchState,
        _MAX_BYTES,
        version=STATE_VERSION,
        remedy="name another --outdir",
    )
