"""What all moves on source text have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_gpuenergy.search.moves.move import Application, Region
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, LaunchPlan, State


@dataclass(frozen=True)
class Change:
    """A new text or launch plan; ``what`` as in `Application`."""

    what: str
    source: str
    launch: LaunchPlan


def not_understood(spec: KernelSpec) -> str:
    """A sentence if moves that parse a text leave that of the baseline alone; else empty.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    kind = CudaKernel if spec.language == "cuda" else TritonKernel
    if kind.of(spec.baseline, spec) is not None:
        return ""
    if spec.language == "cuda":
        why = CudaText.obstacle(spec.source, spec.entry) or "parameters other than the spec's"
    else:
        why = "parameters, decorators or statements other than a plain function's"
    is_macro = (
        spec.language == "cuda" and not spec.extract and ("macro" in why or "condition" in why)
    )
    hint = ' "extract": true in the spec, with a file, replaces macros.' if is_macro else ""
    return (
        f"The rules do not understand the text, because of {why}, and change the launch at most."
        f"{hint}"
    )


class SourceMove:
    """A `Move` that understands a kernel's text before it changes it.

    A subclass overrides `on_cuda`, `on_triton` or both.
    """

    name: str
    languages: frozenset[Language]
    relieves: frozenset[Region]

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Those whose result is understood again; none if the text is not.

        Raises:
            UnavailableError: tree-sitter is needed and not installed.
        """
        known = {state.id}
        for change in self._changes(state, spec):
            result = State(state.language, change.source, change.launch)
            if result.id not in known and self._is_understood(result, spec):
                known.add(result.id)
                yield Application(self.name, change.what, result)

    def _changes(self, state: State, spec: KernelSpec) -> Iterable[Change]:
        if state.language not in self.languages:
            return ()
        if state.language == "cuda":
            cuda = CudaKernel.of(state, spec)
            return () if cuda is None else self.on_cuda(cuda)
        triton = TritonKernel.of(state, spec)
        return () if triton is None else self.on_triton(triton)

    def _is_understood(self, state: State, spec: KernelSpec) -> bool:
        kind = CudaKernel if state.language == "cuda" else TritonKernel
        return kind.of(state, spec) is not None

    def on_cuda(self, kernel: CudaKernel) -> Iterable[Change]:
        """All ways to change a CUDA kernel."""
        del kernel
        return ()

    def on_triton(self, kernel: TritonKernel) -> Iterable[Change]:
        """All ways to change a Triton kernel."""
        del kernel
        return ()
