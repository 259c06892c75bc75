"""Moves, which are ways to rewrite a kernel, and the base class of those that edit its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from msgspec import Struct

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.text_checks import understood
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.source.edits import Edit, apply_edits
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, LaunchPlan, State

Region = Literal[
    "compute",  # arithmetic
    "gmem",  # global memory
    "sfu",  # special functions
    "atomics",
    "smem",  # shared memory
    "overlap",  # waiting that other work could hide
]
"""The resources that a kernel may spend its time on."""
REGIONS: tuple[Region, ...] = get_args(Region)


class Application(Struct, frozen=True):
    """One place and way in which a move applies to a state.

    Attributes:
        move: the name of the move.
        what: the place and the parameters, in a few words that are unique among the applications
            of this move to a state.
        state: the state that results.
    """

    move: str
    what: str
    state: State


class Move(Protocol):
    """A way to rewrite kernels.

    The rewritten kernels need not all be correct, because each is verified, but most should be.
    None may be the same as the original.

    Attributes:
        name: the name of the move, as in the documentation.
        languages: the languages that it can rewrite.
        relieves: the regions whose time it may cut.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterable[Application]:
        """Return all applications to a state, in an order that depends on the state alone."""
        ...


@dataclass(frozen=True)
class TextChange:
    """A new source text or launch plan for a kernel.

    Attributes:
        what: the place and the parameters of the change, as in `Application`.
        source: the new text.
        launch: the new launch plan.
    """

    what: str
    source: str
    launch: LaunchPlan

    @classmethod
    def of(
        cls,
        kernel: CudaKernel | TritonFunction,
        what: str,
        edits: Iterable[Edit],
        launch: LaunchPlan | None = None,
    ) -> TextChange:
        """Return the change by edits of a kernel's text and, if given, to another launch plan."""
        return cls(what, apply_edits(kernel.text.source, edits), launch or kernel.launch)


class SourceMove:
    """A `Move` that parses a kernel's text and edits it.

    A subclass overrides `on_cuda`, `on_triton` or both.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Yield the applications whose results `understood` accepts; none if it refuses the state.

        Raises:
            UnavailableError: tree-sitter is needed and not installed.
        """
        kernel = understood(state, spec) if state.language in self.languages else None
        if kernel is None:
            return
        seen = {state.id}
        changes = self.on_cuda(kernel) if isinstance(kernel, CudaKernel) else self.on_triton(kernel)
        for change in changes:
            result = State(state.language, change.source, change.launch)
            if result.id not in seen and understood(result, spec) is not None:
                seen.add(result.id)
                yield Application(self.name, change.what, result)

    def on_cuda(self, kernel: CudaKernel) -> Iterable[TextChange]:
        """Return all ways to change a CUDA kernel."""
        del kernel
        return ()

    def on_triton(self, kernel: TritonFunction) -> Iterable[TextChange]:
        """Return all ways to change a Triton kernel."""
        del kernel
        return ()
