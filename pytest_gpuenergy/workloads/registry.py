"""The kinds of workloads that can be named on a command line and kept in files.

What a kind is here: how its sizes are written, what makes a workload of them, and the networks that
we ship of it. How it is computed by a tuner is that tuner's own affair (`tvm.operators`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.conv2d_kind import Conv2dKind
from pytest_gpuenergy.workloads.workload import Workload, is_plain_name


class WorkloadKind(Protocol):
    """A kind of workload.

    Attributes:
        name: as in `Workload.kind`.
        grammar: the form of what `parse` understands, for people.
        example: something that it understands.
        networks: workloads that we ship, by the name of their network; no two kinds share a name.
    """

    @property
    def name(self) -> str: ...
    @property
    def grammar(self) -> str: ...
    @property
    def example(self) -> str: ...
    @property
    def networks(self) -> Mapping[str, tuple[Workload, ...]]: ...

    def parse(self, text: str) -> Workload | None:
        """The workload of the sizes in ``text``, called after them; None for another form.

        Raises:
            InputError: a size is out of range.
        """

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Workload:
        """The workload of a list of sizes, as in pyproject.toml.

        Raises:
            InputError: there are too few or too many, or one is out of range.
        """

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Workload:
        """The workload of `Workload.parameters` (without ``kind``), as read from a file.

        Raises:
            InputError: a parameter is missing, unknown or out of range.
        """


CONV2D: WorkloadKind = Conv2dKind()
"""What is meant where no kind is named, as in files from before there were others."""

KINDS: Mapping[str, WorkloadKind] = {kind.name: kind for kind in (CONV2D,)}
"""All kinds by name."""


def kind_named(name: str) -> WorkloadKind:
    """The kind called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        raise InputError(
            f"There is no kind of workload {name!r:.40}: choose one of {', '.join(KINDS)}."
        )
    return KINDS[name]


def to_parameters(workload: Workload) -> dict[str, Any]:
    """Name, kind and parameters of ``workload`` as JSON values, from which it can be made again.

    Raises:
        InputError: it is of a kind that only a program can make.
    """
    if workload.kind not in KINDS:
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}, which cannot be kept in a file: "
            f"choose a workload of the kind {' or '.join(KINDS)}."
        )
    return {"name": workload.name, **workload.parameters}


def from_parameters(parameters: Mapping[str, Any]) -> Workload:
    """The workload that `to_parameters` gave; without a ``kind`` it is a convolution.

    Raises:
        InputError: the name or the kind cannot be used, or the parameters are not of that kind.
    """
    rest = dict(parameters)
    name, kind = rest.pop("name", None), rest.pop("kind", CONV2D.name)
    if type(name) is not str or not is_plain_name(name):
        raise InputError(f"The workload's name is {name!r:.40}, which cannot be one.")
    if type(kind) is not str:
        raise InputError(f"The workload's kind is {kind!r:.40} instead of a text.")
    return kind_named(kind).from_parameters(name, rest)
