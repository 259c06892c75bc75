"""The kinds of workloads that can be named on a command line and stored in files.

Here a kind defines how its sizes are written, how to make a workload from them, and its bundled
networks. Each tuner defines how to compute it (`tvm.operators`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.conv2d_kind import Conv2dKind
from pytest_gpuenergy.workloads.gemm_kind import GemmKind
from pytest_gpuenergy.workloads.workload import Workload, is_plain_name


class WorkloadKind(Protocol):
    """A kind of workload.

    Attributes:
        name: as in `Workload.kind`.
        grammar: human-readable form of the text that `parse` accepts.
        example: a text that `parse` accepts.
        networks: bundled workloads, by the name of their network, which is unique across kinds.
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
        """The workload with the sizes in ``text``, named after them; None for another form.

        Raises:
            InputError: a size is out of range.
        """

    def text_of(self, workload: Workload) -> str:
        """The text from which `parse` makes such a workload, but for its name."""

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Workload:
        """The workload with a list of sizes, as in pyproject.toml.

        Raises:
            InputError: there are too few or too many, or one is out of range.
        """

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Workload:
        """The workload with `Workload.parameters` (without ``kind``), as read from a file.

        Raises:
            InputError: a parameter is missing, unknown or out of range.
        """


CONV2D: WorkloadKind = Conv2dKind()
"""The default kind, also of files written before there were others."""

KINDS: Mapping[str, WorkloadKind] = {kind.name: kind for kind in (CONV2D, GemmKind())}
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
    """Name, kind and parameters of ``workload`` as JSON values, for `from_parameters`.

    Raises:
        InputError: it is of a kind that cannot be stored.
    """
    if workload.kind not in KINDS:
        raise InputError(
            f"{workload.name} is of kind {workload.kind}, which cannot be stored in a file: "
            f"choose a workload of kind {' or '.join(KINDS)}."
        )
    return {"name": workload.name, **workload.parameters}


def from_parameters(parameters: Mapping[str, Any]) -> Workload:
    """The workload from which `to_parameters` came; without a ``kind`` it is a convolution.

    Raises:
        InputError: the name or kind cannot be used, or the parameters do not fit the kind.
    """
    rest = dict(parameters)
    name, kind = rest.pop("name", None), rest.pop("kind", CONV2D.name)
    if type(name) is not str or not is_plain_name(name):
        raise InputError(f"The workload's name {name!r:.40} cannot be used.")
    if type(kind) is not str:
        raise InputError(f"The workload's kind is {kind!r:.40} instead of a string.")
    return kind_named(kind).from_parameters(name, rest)
