"""The form of a MetaSchedule record, ``[trace, run_secs, target, args_info]``. This needs no TVM.

TVM copies names from a trace into the CUDA text: a thread axis ``threadIdx.x + ([]{...}())`` would
be a program. Only the instructions, attributes and annotations are accepted that TVM's rules for
CUDA and `product_forms` write; TVM never sees others.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuenergy.support import FormError, positive, shown, typed
from pytest_gpuenergy.tuners.tvm.tvm_graph import is_index_map

FAILED_S = 1e9
"""A run time from which on a trial counts as failed (MetaSchedule writes 1e10)."""


def check_record(content: object) -> list[Any]:
    """Return ``content`` if it is a MetaSchedule record of a search for CUDA and nothing else.

    TVM receives only records that pass this check.

    Raises:
        FormError: names what is wrong.
    """
    parts = check_form(content)
    (instructions, decisions), _, target, _ = parts
    check_trace(instructions, decisions)
    check_target(target)
    return parts


def check_form(content: object) -> list[Any]:
    """Return ``content`` if it has the form of a MetaSchedule record of any search.

    Raises:
        FormError: names what is wrong.
    """
    parts = typed(content, list, "the record")
    if len(parts) != 4:
        raise FormError(f"the record has {len(parts)} parts instead of 4")
    trace, run_secs, target, args_info = parts
    trace = typed(trace, list, "the trace")
    if len(trace) != 2 or any(type(part) is not list for part in trace):
        raise FormError("the trace is not a pair of instructions and decisions")
    for number, instruction in enumerate(trace[0]):
        if type(instruction) is not list or len(instruction) != 4:
            raise FormError(f"instruction {number} of the trace is {shown(instruction)}")
    if not typed(run_secs, list, "run_secs"):
        raise FormError("run_secs is empty")
    for seconds in run_secs:
        positive(seconds, "a run time")
    if type(target) not in (dict, str):
        raise FormError(f"the target is {shown(target)}")
    for argument in typed(args_info, list, "args_info"):
        tensor_argument(argument)
    return parts


def is_failed(run_secs: Sequence[float]) -> bool:
    """Return whether these are the times of a trial that failed."""
    return max(run_secs) >= FAILED_S


def tensor_argument(argument: object) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape of an entry of ``args_info``.

    Raises:
        FormError: it is not a tensor.
    """
    parts = typed(argument, list, "an argument")
    if len(parts) != 3 or parts[0] != "TENSOR":
        raise FormError(f"an argument is {shown(argument)} instead of a tensor")
    sizes = typed(parts[2], list, "a tensor's shape")
    shape = tuple(typed(size, int, "a tensor's size") for size in sizes)
    return typed(parts[1], str, "a tensor's type"), shape


def compact(value: object) -> str:
    """Return a JSON value as text without blanks."""
    return json.dumps(value, separators=(",", ":"))


_LARGEST = (1 << 31) - 1
_MAX_KEYS = 16

THREAD_AXES = (
    *(f"{name}.{axis}" for name in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"),
    "vthread",
)
SCOPES = ("global", "shared", "shared.dyn", "local", "warp")

_MAX_INSTRUCTIONS = 4096
"""The most instructions of a trace; searches of convolutions write about a hundred."""
_MAX_ITEMS = 64
_MAX_UNROLLED = 4096

_GOOD: set[bytes] = set()
"""Instructions that have passed, as `marshal` writes them. The records of a case share most."""
_MAX_GOOD = 1 << 14


@dataclass(frozen=True)
class _RecordForm:
    """The values allowed in one place: a name for them, and a test for one."""

    what: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class _Kind:
    """The forms of an instruction's operands; ``rest`` is the form of inputs after ``inputs``."""

    inputs: tuple[_RecordForm, ...] = ()
    attributes: tuple[_RecordForm, ...] = ()
    rest: _RecordForm | None = None
    decision: _RecordForm | None = None


def check_trace(instructions: Sequence[Any], decisions: Sequence[Any]) -> None:
    """Check that a trace has only known instructions, with attributes and decisions of their types.

    Raises:
        FormError: names what is wrong, and the instruction (from 0).
    """
    if len(instructions) > _MAX_INSTRUCTIONS:
        raise FormError(
            f"the trace has {len(instructions)} instructions; at most {_MAX_INSTRUCTIONS} are "
            "accepted"
        )
    for number, instruction in enumerate(instructions):
        if (text := marshal.dumps(instruction)) in _GOOD:
            continue
        try:
            _check_instruction(*instruction)
        except FormError as error:
            raise FormError(f"instruction {number} of the trace {error}") from None
        if len(_GOOD) < _MAX_GOOD:
            _GOOD.add(text)
    if len(decisions) > len(instructions):
        raise FormError("the trace has more decisions than instructions")
    for decision in decisions:
        if type(decision) is not list or len(decision) != 2 or type(decision[0]) is not int:
            raise FormError(f"a decision of the trace is {shown(decision)}")
        number, value = decision
        if not 0 <= number < len(instructions):
            raise FormError(f"the trace decides instruction {number} of {len(instructions)}")
        name = instructions[number][0]
        form = _KINDS[name].decision
        if form is None or not form.fits(value):
            wanted = "none" if form is None else form.what
            raise FormError(
                f"instruction {number} of the trace ({name}) has the decision {shown(value)} "
                f"instead of {wanted}"
            )


def _check_instruction(name: object, inputs: object, attributes: object, outputs: object) -> None:
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FormError(f"is of the kind {shown(name)}, which no search for CUDA writes")
    if name == "Annotate":  # its input depends on the annotation
        key = attributes[0] if isinstance(attributes, list) and attributes else None
        value = _ANNOTATIONS.get(key, _NUMBER) if isinstance(key, str) else _NUMBER
        kind = _Kind((_PLACE, value), (_KEY,))
    for what, values, forms, rest in (
        ("input", inputs, kind.inputs, kind.rest),
        ("attribute", attributes, kind.attributes, None),
        ("output", outputs, (), _VARIABLE),
    ):
        if type(values) is not list or len(values) > _MAX_ITEMS:
            raise FormError(f"({name}) has {shown(values)} as its {what}s")
        if rest is not None:
            forms += (rest,) * (len(values) - len(forms))
        if len(values) != len(forms):
            raise FormError(f"({name}) has {len(values)} {what}s instead of {len(forms)}")
        for value, form in zip(values, forms, strict=True):
            if not form.fits(value):
                raise FormError(f"({name}) has the {what} {shown(value)} instead of {form.what}")


def _text(what: str, pattern: str) -> _RecordForm:
    compiled = re.compile(pattern, re.ASCII)
    return _RecordForm(what, lambda v: isinstance(v, str) and compiled.fullmatch(v) is not None)


def _one_of(what: str, choices: Sequence[str]) -> _RecordForm:
    known = frozenset(choices)
    return _RecordForm(
        f"{what} ({', '.join(choices)})", lambda v: isinstance(v, str) and v in known
    )


def _integer(what: str, least: int, most: int = _LARGEST) -> _RecordForm:
    return _RecordForm(what, lambda v: type(v) is int and least <= v <= most)


def _either(what: str, *forms: _RecordForm) -> _RecordForm:
    return _RecordForm(what, lambda v: any(form.fits(v) for form in forms))


def _list_of(what: str, form: _RecordForm, most: int = _MAX_ITEMS) -> _RecordForm:
    return _RecordForm(
        what, lambda v: type(v) is list and len(v) <= most and all(map(form.fits, v))
    )


_BLOCK = _text("a block", r"b\d{1,6}")
_LOOP = _text("a loop", r"l\d{1,6}")
_PLACE = _text("a block or a loop", r"[bl]\d{1,6}")
_SAMPLED = _text("a sampled number", r"v\d{1,6}")
_VARIABLE = _text("a variable", r"[blv]\d{1,6}")
_NAME = _text("a name", r"[A-Za-z_][\w.]{0,127}")
_INDEX = _integer("an index", 0, _MAX_ITEMS)
_POSITION = _integer("a position", -_MAX_ITEMS, _MAX_ITEMS)
_SIZE = _integer("a size", 0)
_FLAG = _RecordForm("a flag", lambda v: type(v) is bool or (type(v) is int and v in (0, 1)))
_PROBABILITY = _RecordForm("a probability", lambda v: type(v) in (int, float) and 0 <= v <= 1)
_NOTHING = _RecordForm("null", lambda v: v is None)
_MAP = _RecordForm("a map of indices", lambda v: isinstance(v, str) and is_index_map(v))
_AXIS = _one_of("a thread axis", THREAD_AXES)
_SCOPE = _one_of("a storage scope", SCOPES)
_FACTOR = _either("a factor", _SAMPLED, _SIZE, _text("None", "None"))
_SIZES = _list_of("a list of sizes", _SIZE)
_NUMBER = _either("a number", _SAMPLED, _SIZE)
_STAGES = _list_of("a list of stages", _integer("a stage", 0, _MAX_ITEMS))

_ANNOTATIONS = {
    "meta_schedule.cooperative_fetch": _NUMBER,
    "meta_schedule.thread_extent_high_inclusive": _NUMBER,
    "meta_schedule.thread_extent_low_inclusive": _NUMBER,
    "meta_schedule.tiling_structure": _text("the letters of tiles", r'"[SR]{1,16}"'),
    "meta_schedule.unroll_explicit": _NUMBER,
    "meta_schedule.unroll_implicit": _NUMBER,
    "pragma_auto_unroll_max_step": _integer("a number of steps", 0, _MAX_UNROLLED),
    "pragma_unroll_explicit": _FLAG,
    "software_pipeline_async_stages": _STAGES,
    "software_pipeline_order": _STAGES,
    "software_pipeline_stage": _STAGES,
}
_KEY = _one_of("an annotation", tuple(_ANNOTATIONS))

_OF_BLOCK = _Kind((_BLOCK,))
_OF_LOOP = _Kind((_LOOP,))
_OF_LOOPS = _Kind((_LOOP,), rest=_LOOP)
_CACHE = _Kind((_BLOCK, _list_of("a list of blocks", _BLOCK)), (_INDEX, _SCOPE))
_MOVE = _Kind((_BLOCK, _LOOP), (_FLAG, _POSITION))

_KINDS = {
    "AddUnitLoop": _Kind((_PLACE,)),
    "Annotate": _Kind(),  # see `_check_instruction`
    "Bind": _Kind((_LOOP,), (_AXIS,)),
    "CacheRead": _CACHE,
    "CacheWrite": _CACHE,
    "ComputeAt": _MOVE,
    "ComputeInline": _OF_BLOCK,
    "DecomposeReduction": _Kind((_BLOCK, _LOOP)),
    "EnterPostproc": _Kind(),
    "Fuse": _Kind((_LOOP,), (_FLAG,), rest=_LOOP),
    "GetChildBlocks": _OF_BLOCK,
    "GetConsumers": _OF_BLOCK,
    "GetLoops": _OF_BLOCK,
    "GetProducers": _OF_BLOCK,
    "GetSBlock": _Kind((), (_NAME, _NAME)),
    "PadEinsum": _Kind((_BLOCK,), (_SIZES,)),
    "RFactor": _Kind((_LOOP,), (_POSITION,)),
    "ReIndex": _Kind((_BLOCK,), (_INDEX, _FLAG)),
    "Reorder": _OF_LOOPS,
    "ReverseComputeAt": _MOVE,
    "ReverseComputeInline": _OF_BLOCK,
    "SampleCategorical": _Kind(
        (), (_SIZES, _list_of("a list of probabilities", _PROBABILITY)), decision=_INDEX
    ),
    "SamplePerfectTile": _Kind((_LOOP,), (_INDEX, _SIZE), decision=_SIZES),
    "SetScope": _Kind((_BLOCK,), (_INDEX, _SCOPE)),
    "Split": _Kind((_LOOP,), (_FLAG, _FLAG), rest=_FACTOR),
    "StorageAlign": _Kind((_BLOCK,), (_INDEX, _POSITION, _SIZE, _SIZE)),
    "TransformBlockLayout": _Kind((_BLOCK,), (_MAP,)),
    "TransformLayout": _Kind((_BLOCK, _MAP), (_INDEX, _FLAG, _NOTHING, _FLAG)),
    "Unannotate": _Kind((_PLACE,), (_KEY,)),
    "Unroll": _OF_LOOP,
    "Vectorize": _OF_LOOP,
}


def check_target(target: object) -> None:
    """Check that ``target`` describes a CUDA GPU and contains nothing else.

    Raises:
        FormError: names what is wrong.
    """
    if isinstance(target, str):
        if not _TAG.fits(target):
            raise FormError(f"the target is {shown(target)} instead of a GPU's, such as 'cuda'")
        return
    if type(target) is not dict:
        raise FormError(f"the target is {shown(target)}")
    gpu = {key: part for key, part in target.items() if key != "host"}
    for what, value, known in (
        ("the target", gpu, _GPU),
        ("the target's host", target.get("host", {}), _HOST),
    ):
        if type(value) is not dict:
            raise FormError(f"{what} is {shown(value)}")
        for key, part in value.items():
            if key not in known:
                raise FormError(f"{what} has {shown(key)}, which no search for CUDA writes")
            if not known[key].fits(part):
                raise FormError(f"{what} has {shown(part)} as {key!r}")


_TAG = _text("a tag", r"cuda|nvidia/[a-z0-9-]{1,64}")
_WORD = _text("a word", r"[\w.+-]{0,64}")
_WORDS = _list_of("a list of words", _WORD, _MAX_KEYS)
_COUNT = _integer("a number", 1)
_HOST = {
    "kind": _text("a kind", "llvm|c"),
    "keys": _WORDS,
    "tag": _WORD,
    "mtriple": _WORD,
    "mcpu": _WORD,
}
_GPU = {
    "kind": _text("a kind", "cuda"),
    "arch": _text("an architecture", r"sm_\d{2,3}[af]?"),
    "keys": _WORDS,
    "tag": _text("a tag", r"(?:nvidia/[a-z0-9-]{1,64})?"),
    "l2_cache_size_bytes": _COUNT,
    "max_num_threads": _COUNT,
    "max_shared_memory_per_block": _COUNT,
    "max_threads_per_block": _COUNT,
    "registers_per_block": _COUNT,
    "thread_warp_size": _COUNT,
}
