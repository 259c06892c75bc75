"""The protocols of a search space: its candidates, and the form in which they are stored.

A space belongs to one workload. Its proposer makes batches of candidates. Each is a kernel with its
recipe: a text from which the space makes the same kernel again, and which the tuner does not
interpret. A recipe's form belongs to one of the tuners, whose names are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from pytest_gpuenergy import workloads

if TYPE_CHECKING:  # so that reading the names of the tuners is cheap
    from pytest_gpuenergy.kernels import Kernel
    from pytest_gpuenergy.support import KernelFault
    from pytest_gpuenergy.workloads import Workload

TunerName = Literal["template", "tvm"]
TUNER_NAMES: tuple[TunerName, ...] = get_args(TunerName)
TEMPLATE: TunerName = "template"
TVM: TunerName = "tvm"


def usual_tuner(workload: Workload) -> TunerName:
    """Return the tuner that is used for a workload unless another is asked for.

    Matrix products have templates, and so do convolutions in groups, in other modes and layouts or
    with a bias or ReLU; TVM tunes all others.
    """
    if isinstance(workload, workloads.Conv2d):
        return TVM if workload.is_plain and workload.shape.groups == 1 else TEMPLATE
    return TEMPLATE if isinstance(workload, workloads.Gemm) else TVM


@dataclass(frozen=True)
class Candidate:
    """A proposed kernel, or the reason why there is none, with its recipe."""

    recipe: str
    kernel: Kernel | KernelFault


@dataclass(frozen=True)
class Feedback:
    """The cost of a candidate in seconds (see `engine.cost_ms`); None if it failed."""

    recipe: str
    cost_s: float | None


class RecipeForm(Protocol):
    """The stored form of one tuner's recipes. They are data, never code.

    Attributes:
        tuner: the name of the tuner that writes them, as in `Origin.kind`.
        file_name: the name of the file in a folder of raw results that has a line for each trial.
        variant: distinguishes its record files from those of other tuners in the same folder.
    """

    @property
    def tuner(self) -> str: ...
    @property
    def file_name(self) -> str: ...
    @property
    def variant(self) -> str: ...

    def identity(self, recipe: str) -> str:
        """Return a key that is equal for recipes of the same kernel."""

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """Return the recipe as it is stored: with the time of its trial if the form includes one.

        ``time_ms`` is None for a trial that failed.
        """

    def time_ms(self, recipe: str) -> float:
        """Return the time in a stored recipe."""

    def line(self, recipe: str) -> str:
        """Return the recipe as a line of `file_name`."""

    def read(self, path: Path) -> list[str]:
        """Return the recipes of a file called `file_name`, in their order.

        Raises:
            InputError: it cannot be read, or is damaged.
        """

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """Check that a recipe of `file_name` is one that a search can have written.

        Args:
            recipe: as returned by `read`.
            ran: whether its trial ran; the search learns from those.

        Raises:
            FormError: it contains something else.
        """

    def check(self, value: object, workload: Workload) -> str:
        """Return the recipe in a record file, from its JSON value.

        Raises:
            FormError: it is not a recipe, or is for another workload or a trial that failed.
        """

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the members of a record file's header that name the toolchain and its target.

        Raises:
            FormError: one is missing or invalid.
        """


class Proposer(Protocol):
    """Makes candidates in the background, starting when it is created.

    Attributes:
        processes: the number of batches that are made at the same time.
    """

    @property
    def processes(self) -> int: ...

    def take(self, wanted: int, stop: Event) -> Sequence[Candidate]:
        """Return the next batch; wait for it until ``stop`` is set.

        Further batches are made meanwhile, unless this one has as many candidates as ``wanted``.
        The batch is empty if nothing more is found.

        Raises:
            InputError: the search failed.
            OutputError: a file of the search cannot be written.
        """

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Learn the costs of candidates."""

    def close(self) -> None:
        """Stop immediately. Idempotent."""


class SearchSpace(Protocol):
    """The kernels that are considered for one workload.

    Attributes:
        workload: the workload that they compute.
        form: the form of their recipes.
        effort: a phrase about the extent of the search, for the user.
    """

    @property
    def workload(self) -> Workload: ...
    @property
    def form(self) -> RecipeForm: ...
    @property
    def effort(self) -> str: ...

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> Proposer:
        """Start to make candidates.

        Args:
            folder: the folder of raw results, for the search's own files.
            known: returns the trials so far, including those of earlier searches in that folder.
        """

    def kernel(self, recipe: str) -> Kernel:
        """Return the kernel of a recipe.

        Raises:
            KernelFault: the recipe has none.
        """

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """Return what `RecipeForm.check_toolchain` reads, for a file with this recipe."""
