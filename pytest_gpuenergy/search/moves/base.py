"""What all moves on source text have in common: they read a kernel before they change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_gpuenergy.search.moves.move import Application, Region
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.triton_function import TritonFunction
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, LaunchPlan, State


@dataclass(frozen=True)
class Rewrite:
    """A new source text or launch plan for a kernel.

    Attributes:
        what: the place and the parameters of the change, as in `Application`.
        source: the new text.
        launch: the new launch plan.
    """

    what: str
    source: str
    launch: LaunchPlan


class SourceMove:
    """A `Move` that understands a kernel's text before it changes it.

    A subclass overrides `on_cuda`, `on_triton` or both.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Yield the changes whose result is understood again; none if the text is not.

        Raises:
            UnavailableError: tree-sitter is needed and not installed.
        """
        if state.language not in self.languages:
            return
        changes: Iterable[Rewrite] = ()
        if state.language == "cuda" and (cuda := CudaKernel.of(state, spec)) is not None:
            changes = self.on_cuda(cuda)
        elif state.language == "triton" and (triton := TritonFunction.of(state, spec)) is not None:
            changes = self.on_triton(triton)
        kind = CudaKernel if state.language == "cuda" else TritonFunction
        seen = {state.id}
        for change in changes:
            result = State(state.language, change.source, change.launch)
            if result.id not in seen and kind.of(result, spec) is not None:
                seen.add(result.id)
                yield Application(self.name, change.what, result)

    def on_cuda(self, kernel: CudaKernel) -> Iterable[Rewrite]:
        """Return all ways to change a CUDA kernel."""
        del kernel
        return ()

    def on_triton(self, kernel: TritonFunction) -> Iterable[Rewrite]:
        """Return all ways to change a Triton kernel."""
        del kernel
        return ()
