"""What a language model is told about a state: its source, its contract, and how it performs.

Never what a kernel must not know: the inputs of a verification, their seeds, what is expected of
them, or the elements of inputs that a spec contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import to_builtins

from pytest_gpuenergy.search.llm.answer import answer_schema
from pytest_gpuenergy.search.llm.protocol import Message, Question
from pytest_gpuenergy.search.move import Region
from pytest_gpuenergy.search.search_state import Node
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.spec.kernel_spec.kernel_spec import KernelSpec, TensorSpec
from pytest_gpuenergy.search.trust.hidden import has_others
from pytest_gpuenergy.search.trust.result import Result
from pytest_gpuenergy.support import emulated_mark, encode

VOCABULARY: Mapping[str, str] = {
    "enable_async_pipeline": "load the next tile while this one is used (cp.async, num_stages)",
    "vectorize_global_loads": "load or store 2, 4 or 8 adjacent elements at once where aligned",
    "switch_to_mma_or_wgmma": "compute products with tensor cores, if the contract allows them",
    "pad_tail_and_mask": "split off or mask the tail, so that the body needs no checks",
    "change_block_sizes": "another block, tile, grid, num_warps, or work per thread",
    "cache_policy_cg": "load what is used once past the L1 (__ldcg, cache_modifier='.cg')",
    "avoid_atomics_reduce": "reduce in registers, warps or shared memory before any atomic",
    "grouped_gemm_colmajor": "another order of blocks over tiles, so that they share the L2",
    "softmax_math_fusion": "fewer or cheaper special functions and passes, within the tolerance",
}
"""The moves that a model may name, with what each is."""

_TRIED = 20
"""Variants of which a model is told, at most."""
_SYSTEM = """\
You improve one GPU kernel by one small, certainly correct change. A variant is compiled, verified \
on all sizes with inputs that nobody knows, and only then measured; a wrong one is worth nothing. \
It must compute everything anew at each launch, for any input of the contract. The entry keeps its \
name and parameters. {language} Name one move of the vocabulary. `what` says in at most eight \
words what you changed. `diff` is a unified diff of exactly the source shown, with three lines of \
context copied literally; leave it empty to change the launch alone. `launch` has the fields of \
the launch plan that change, null for the rest; sizes are integers or expressions of sizes, \
constants, block_x, block_y and block_z with + - * // %, ceil_div, min and max."""
_OF_LANGUAGE = {
    "cuda": "It is CUDA C++ for NVRTC: only __global__ and __device__ functions, types and "
    "constants; no host code, no file-scope or static variables, no clock, no printf, no dynamic "
    "memory, no headers but CUDA's own for kernels. Constants of the launch plan are macros that "
    "are defined before the text.",
    "triton": "It is a Python module for Triton: imports of triton, triton.language and math, "
    "functions decorated with triton.jit, and literal constants; nothing else.",
}


@dataclass(frozen=True)
class Context:
    """What is known about a state.

    Attributes:
        result: of its evaluation; None if there is none yet.
        gpu: name of the GPU.
        baseline_time_ms: of the baseline.
        regions: shares of the time by what it is spent on, if there is a model of it.
        tried: variants that were evaluated, the latest last.
    """

    result: Result | None = None
    gpu: str = ""
    baseline_time_ms: float | None = None
    regions: Mapping[Region, float] = field(default_factory=dict)
    tried: Sequence[Node] = ()


def first_question(state: State, spec: KernelSpec, context: Context) -> Question:
    """Ask for a move and a diff."""
    system = _SYSTEM.format(language=_OF_LANGUAGE[state.language])
    user = "\n\n".join(_sections(state, spec, context))
    return Question(
        (Message("system", system), Message("user", user)), answer_schema(VOCABULARY, whole=False)
    )


def second_question(first: Question, answer: str, why: str) -> Question:
    """Ask for the whole source in place of a diff that does not apply."""
    again = (
        f"The diff does not apply, because {why}. Answer the same request once more, with the "
        "complete new source text in `source`."
    )
    return Question(
        (*first.messages, Message("assistant", answer), Message("user", again)),
        answer_schema(VOCABULARY, whole=True),
    )


def _sections(state: State, spec: KernelSpec, context: Context) -> Iterator[str]:
    yield f"Source ({state.language}, entry {spec.entry}):\n```\n{state.source.rstrip()}\n```"
    yield f"Launch plan: {encode(to_builtins(state.launch)).decode()}"
    yield "\n".join(["Contract:", *_contract(spec)])
    if performance := list(_performance(context)):
        yield "\n".join(["Measured so far:", *performance])
    lines = [f"- {name}: {what}" for name, what in VOCABULARY.items()]
    yield "\n".join(["Vocabulary of moves:", *lines])
    if context.tried:
        yield "\n".join(["Tried so far:", *map(_tried, context.tried[-_TRIED:])])


def _contract(spec: KernelSpec) -> Iterator[str]:
    yield f"- arguments: {', '.join(spec.arguments)}"
    yield from (f"- {_tensor(one)}" for one in spec.tensors)
    yield from (f"- scalar {one.name}: {one.dtype}, {one.value}" for one in spec.scalars)
    for number, sizes in enumerate(spec.sizes):
        if sizes:
            shown = ", ".join(f"{name}={value}" for name, value in sizes.items())
            yield f"- sizes {'measured and ' if number == 0 else ''}verified: {shown}"
    if has_others(spec):
        yield "- sizes between these, which are not told, are verified too"
    tolerance = "by the rounding of float sums" if spec.tolerance is None else spec.tolerance
    yield f"- tolerance relative to an output's largest element: {tolerance}"
    yield f"- products summed for an output: {spec.reduction_length}"
    yield f"- tensor cores for float32: {'allowed' if spec.tensor_cores else 'refused'}"


def _tensor(tensor: TensorSpec) -> str:
    shape = ", ".join(map(str, tensor.shape))
    strides = "" if tensor.strides is None else f", strides {list(tensor.strides)}"
    zeroed = tensor.role == "output" and tensor.init == "zeros"
    note = ", zeroed before each launch" if zeroed else ""
    note = ", restored before each launch" if tensor.role == "inout" else note
    return f"{tensor.role} {tensor.name}: {tensor.dtype}[{shape}]{strides}{note}"


def _performance(context: Context) -> Iterator[str]:
    result = context.result
    if context.gpu:
        yield f"- on {context.gpu}{emulated_mark(result is not None and result.emulated)}"
    if result is not None and result.time_ms is not None:
        yield f"- time of a launch: {result.time_ms:.4g} ms"
        if result.floor_ms:
            yield f"- least time by the card's peaks: {result.floor_ms:.4g} ms"
        if context.baseline_time_ms:
            yield f"- speedup over the baseline: {context.baseline_time_ms / result.time_ms:.3f}"
        if result.energy_mj is not None:
            yield f"- energy of a launch: {result.energy_mj:.4g} mJ at {result.power_w:.4g} W"
        yield f"- minimized: {result.objective.label}"
    for region, share in sorted(context.regions.items(), key=lambda pair: -pair[1]):
        yield f"- {region}: {share:.0%} of the time, estimated"


def _tried(node: Node) -> str:
    ended = node.outcome if node.time_ms is None else f"{node.time_ms:.4g} ms"
    return f"- {node.move} {node.what}: {ended}"
