"""What a language model answers: one move, the change, and how the result is launched."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.spec.kernel_spec import Constant, LaunchPlan, Size, State
from pytest_gpuenergy.search.spec.kernel_spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.spec_checks import check_spec
from pytest_gpuenergy.search.spec.state_kernel import kernel_of
from pytest_gpuenergy.support import FormError, InputError, KernelFault, decode

_LONGEST_WHAT = 60
_OF_LANGUAGE = {"cuda": ("block", "shared_bytes"), "triton": ("num_warps", "num_stages")}


class NamedConstant(Struct, frozen=True, forbid_unknown_fields=True):
    """A constant of the launch; as an object, because schemas cannot leave names open."""

    name: str
    value: Constant


class LaunchUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a `LaunchPlan` that change; None of those that do not."""

    grid: tuple[Size, ...] | None = None
    block: tuple[int, ...] | None = None
    shared_bytes: Size | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    constants: tuple[NamedConstant, ...] | None = None


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """One proposal.

    Attributes:
        move: of the vocabulary.
        what: the change in a few words.
        diff: a unified diff of the source; empty if it stays.
        source: the whole new source, in the answer to the second question.
        launch: what changes of the launch.
    """

    move: str
    what: str
    diff: str = ""
    source: str = ""
    launch: LaunchUpdate | None = None


def read_answer(text: str) -> Answer:
    """Read what a model has written.

    Raises:
        FormError: it is no JSON of this form; the message is a clause.
    """
    return decode(text, Answer, "the answer")


def updated_launch(state: State, update: LaunchUpdate | None, spec: KernelSpec) -> LaunchPlan:
    """The launch plan of a state after an update; None changes nothing.

    Constants that are not named stay. Fields of the other language are left alone if they are
    empty, because models like to fill in everything.

    Raises:
        FormError: a field belongs to the other language, the source is no text, or the plan cannot
            be used with all sizes; the message is a clause.
    """
    update = update or LaunchUpdate()
    given = {name: getattr(update, name) for name in update.__struct_fields__}
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    others = {name for of, names in _OF_LANGUAGE.items() if of != state.language for name in names}
    if wrong := sorted(others & fields.keys()):
        raise FormError(f"launch.{wrong[0]} does not exist for {state.language}")
    named = {one.name: one.value for one in fields.pop("constants", ())}
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
    """The JSON Schema of an answer, as structured output requires it: all fields are there.

    Args:
        moves: the vocabulary.
        whole: whether it has the whole source instead of a diff.
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


def summary_of(answer: Answer) -> str:
    """The change in a few words on one line."""
    words = " ".join(word for word in answer.what.split() if word.isprintable())
    return words if len(words) <= _LONGEST_WHAT else f"{words[: _LONGEST_WHAT - 3]}..."


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
