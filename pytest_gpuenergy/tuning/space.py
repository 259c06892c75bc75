"""What the tuner asks of a search space: candidates, and the form in which it keeps them.

A space is of one workload. Its proposer makes batches of candidates, each a kernel and its recipe:
a text from which the space makes the same kernel again, and which means nothing to the tuner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import KernelFault
from pytest_gpuenergy.workloads.workload import Workload


@dataclass(frozen=True)
class Candidate:
    """A proposed kernel, or why there is none, and its recipe."""

    recipe: str
    kernel: Kernel | KernelFault


@dataclass(frozen=True)
class Feedback:
    """What a candidate costs: seconds (`engine.objective.cost_ms`), or None when it failed."""

    recipe: str
    cost_s: float | None


class RecipeForm(Protocol):
    """How recipes of one kind are kept. They are data, never code.

    Attributes:
        tuner: who writes them, as in `Origin.kind`.
        file_name: of the file in a folder of raw results that has a line for each trial.
    """

    @property
    def tuner(self) -> str: ...
    @property
    def file_name(self) -> str: ...

    def identity(self, recipe: str) -> str:
        """What is the same for recipes of the same kernel."""

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """The recipe as it is kept: with the time of its trial if the form has room for it.

        ``time_ms`` is None for a trial that failed.
        """

    def time_ms(self, recipe: str) -> float:
        """The time in a recipe that is kept."""

    def line(self, recipe: str) -> str:
        """The recipe as a line of `file_name`."""

    def read(self, path: Path) -> list[str]:
        """The recipes of such a file, in their order.

        Raises:
            InputError: it cannot be read, or is damaged.
        """

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """See that a recipe of `file_name` is one that a search can have written.

        Args:
            recipe: as `read` gives it.
            ran: whether its trial ran; the search learns from those.

        Raises:
            FormError: it holds something else.
        """

    def check(self, value: object, workload: Workload) -> str:
        """The recipe that is ``value`` in a record file, a JSON value.

        Raises:
            FormError: it is none, is of another workload, or of a trial that failed.
        """

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those members of a record file's header that say what its recipes are for and made with.

        Raises:
            FormError: one is missing or is not what it should be.
        """


class Proposer(Protocol):
    """Makes candidates in the background, from the moment that there is one.

    Attributes:
        processes: how many batches are made at the same time.
    """

    @property
    def processes(self) -> int: ...

    def take(self, wanted: int, stop: Event) -> Sequence[Candidate]:
        """The next batch; waits for it, while ``stop`` is not set.

        Batches after it are made meanwhile, unless it has as many candidates as are ``wanted``.
        It is empty when nothing more is found.

        Raises:
            InputError: the search failed.
            OutputError: a file of the search cannot be written.
        """

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Take note of what candidates cost."""

    def close(self) -> None:
        """End at once what is under way. Idempotent."""


class SearchSpace(Protocol):
    """Where kernels of one workload are looked for.

    Attributes:
        workload: what they compute.
        form: of their recipes.
        effort: what the search takes and does, for people.
    """

    @property
    def workload(self) -> Workload: ...
    @property
    def form(self) -> RecipeForm: ...
    @property
    def effort(self) -> str: ...

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> Proposer:
        """Begin to make candidates.

        Args:
            folder: of raw results, for files of the search's own.
            known: the trials of earlier searches in that folder, and those so far.
        """

    def kernel(self, recipe: str) -> Kernel:
        """The kernel of a recipe.

        Raises:
            KernelFault: there is none.
        """

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """What `RecipeForm.check_toolchain` reads, for a record file with this recipe."""
