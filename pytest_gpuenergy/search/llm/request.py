"""The question to a language model about a state, and the form of its answer.

A question has the source, the contract and the performance of a state. It never has what a kernel
must not know: the inputs of a verification, their seeds, the expected outputs, or the elements of
inputs that a spec contains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from pytest_gpuenergy.kernels import argument_text
from pytest_gpuenergy.search.llm.endpoint import Message, Question
from pytest_gpuenergy.search.moves.move import Region
from pytest_gpuenergy.search.spec.kernel_spec import Constant, KernelSpec, LaunchPlan, State
from pytest_gpuenergy.search.spec.sizes import Size
from pytest_gpuenergy.search.spec.spec_checks import check_spec
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.search.validation.hidden_inputs import allows_other_sizes
from pytest_gpuenergy.search.validation.result import Result, SearchNode
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    KernelFault,
    decode,
    emulated_mark,
    encode,
)

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
"""The moves that a model may name, each with a description."""

_MAX_TRIED = 20
"""Number of evaluated variants that a question mentions, at most."""
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

_MAX_WHAT = 60
"""Characters of a change's description; a longer one is cut."""
_LAUNCH_FIELDS = {"cuda": ("block", "shared_bytes"), "triton": ("num_warps", "num_stages")}
"""The fields of a launch plan that only one language has."""


@dataclass(frozen=True)
class Context:
    """The facts about a state that a language model is told.

    Attributes:
        result: the result of its evaluation; None if there is none yet.
        regions: the estimated shares of the time by region, if there are any.
        tried: the variants that were evaluated, the latest last.
    """

    result: Result | None = None
    gpu: str = ""
    baseline_time_ms: float | None = None
    regions: Mapping[Region, float] = field(default_factory=dict)
    tried: Sequence[SearchNode] = ()


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
        f"The diff does not apply, because {why}. LlmAnswer the same request once more, with the "
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
        tried = [
            f"- {node.move} {node.what}: "
            f"{node.outcome if node.time_ms is None else f'{node.time_ms:.4g} ms'}"
            for node in context.tried[-_MAX_TRIED:]
        ]
        yield "\n".join(["Tried so far:", *tried])


def _contract(spec: KernelSpec) -> Iterator[str]:
    yield f"- arguments: {', '.join(map(argument_text, spec.arguments))}"
    for tensor in spec.tensors:
        shape = ", ".join(map(str, tensor.shape))
        strides = "" if tensor.strides is None else f", strides {list(tensor.strides)}"
        zeroed = tensor.role == "output" and tensor.init == "zeros"
        note = ", zeroed before each launch" if zeroed else ""
        note = ", restored before each launch" if tensor.role == "inout" else note
        yield f"- {tensor.role} {tensor.name}: {tensor.dtype}[{shape}]{strides}{note}"
    for scalar in spec.scalars:
        yield f"- scalar {scalar.name}: {scalar.dtype}, {scalar.value}"
    for number, sizes in enumerate(spec.sizes):
        if sizes:
            shown = ", ".join(f"{name}={value}" for name, value in sizes.items())
            yield f"- sizes {'measured and ' if number == 0 else ''}verified: {shown}"
    if allows_other_sizes(spec):
        yield "- sizes between these, which are not told, are verified too"
    tolerance = "by the rounding of float sums" if spec.tolerance is None else spec.tolerance
    yield f"- tolerance relative to an output's largest element: {tolerance}"
    yield f"- products summed for an output: {spec.reduction_length}"
    yield f"- tensor cores for float32: {'allowed' if spec.tensor_cores else 'refused'}"


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


class NamedConstant(Struct, frozen=True, forbid_unknown_fields=True):
    """A constant of the launch; an object, because a strict schema allows no arbitrary names."""

    name: str
    value: Constant


class LaunchUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    """The new values of a `LaunchPlan`'s fields; None for fields that do not change."""

    grid: tuple[Size, ...] | None = None
    block: tuple[int, ...] | None = None
    shared_bytes: Size | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    constants: tuple[NamedConstant, ...] | None = None


class LlmAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The proposal of a model.

    Attributes:
        move: the move of the vocabulary that it makes.
        what: the change in a few words.
        diff: a unified diff of the source; empty if the source does not change.
        source: the whole new source, in the answer to the second question.
        launch: the changes of the launch; None if there are none.
    """

    move: str
    what: str
    diff: str = ""
    source: str = ""
    launch: LaunchUpdate | None = None


def read_answer(text: str) -> LlmAnswer:
    """Read the text of a model's reply.

    Raises:
        FormError: the text is no JSON of this form; the message is a clause.
    """
    return decode(text, LlmAnswer, "the answer")


def updated_launch(state: State, update: LaunchUpdate | None, spec: KernelSpec) -> LaunchPlan:
    """Return the launch plan of a state after an update; None changes nothing.

    Constants that are not named do not change. Empty fields of the other language are ignored,
    because models tend to fill in everything. What cannot be used is a `FormError`.
    """
    update = update or LaunchUpdate()
    values = {name: getattr(update, name) for name in update.__struct_fields__}
    fields = {name: value for name, value in values.items() if value not in (None, ())}
    others = {
        name for of, names in _LAUNCH_FIELDS.items() if of != state.language for name in names
    }
    if wrong := sorted(others & fields.keys()):
        raise FormError(f"launch.{wrong[0]} does not exist for {state.language}")
    named = {constant.name: constant.value for constant in fields.pop("constants", ())}
    constants = {**state.launch.constants, **named}
    launch = replace(state.launch, **fields, constants=constants)
    try:
        check_spec(replace(spec, source=state.source, file="", launch=launch))
        for sizes in spec.sizes:
            kernel_of(spec, replace(state, launch=launch), sizes)
    except (InputError, KernelFault) as error:
        raise FormError(str(error).removesuffix(".")) from None
    return launch


def answer_schema(moves: Collection[str], *, whole: bool) -> dict[str, Any]:
    """Return the JSON Schema of an answer; all fields are required, for structured output.

    With ``whole``, an answer has the whole source instead of a diff.
    """
    size = {"type": ["integer", "string", "null"]}
    sizes = {"type": ["array", "null"], "items": {"type": ["integer", "string"]}}
    number = {"type": ["integer", "null"]}
    constant = _object(
        {"name": {"type": "string"}, "value": {"type": ["boolean", "integer", "number"]}}
    )
    launch = _object(
        {
            "grid": sizes,
            "block": {"type": ["array", "null"], "items": {"type": "integer"}},
            "shared_bytes": size,
            "num_warps": number,
            "num_stages": number,
            "constants": {"type": ["array", "null"], "items": constant},
        }
    )
    text = {"type": "string"}
    return _object(
        {
            "move": {"type": "string", "enum": list(moves)},
            "what": text,
            "source" if whole else "diff": text,
            "launch": {"anyOf": [launch, {"type": "null"}]},
        }
    )


def change_label(answer: LlmAnswer) -> str:
    """Return the change in a few words on one line."""
    words = " ".join(word for word in answer.what.split() if word.isprintable())
    return words if len(words) <= _MAX_WHAT else f"{words[: _MAX_WHAT - 3]}..."


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
