"""``search_state.json``: the graph that a search has explored so far, and where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.trust.result import Gain, Node
from pytest_gpuenergy.support import (
    FormError,
    InputError,
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
