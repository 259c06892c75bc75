"""Searches of kernels that were made, with all states that they evaluated, as one compact file.

    gpuenergy optimize bench/search/kernels --no-llm
    python studies/searched.py out searches.json.gz

The file has what comparisons of predicted and found gains need: the spec, the state, the figures
and the move of each variant. `read_searches` reads it, and folders of searches, too.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.search import (
    BASELINE,
    SPEC_JSON,
    STATE_JSON,
    VARIANTS,
    KernelSpec,
    Result,
    SearchIdentity,
    State,
    check_spec,
    read_control,
    read_spec,
    read_state,
)
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    encode,
    is_folder,
    read_bytes,
    read_unpacked,
    write_atomically,
)

_LARGEST_BYTES = 64 << 20
_LARGEST_RESULT_BYTES = 1 << 20


class Variant(Struct, frozen=True, kw_only=True):
    """A state that was evaluated.

    Attributes:
        state: its text and launch.
        result: its figures.
        parent: the id of the state that it was made from; None of the baseline.
        move: by which it was made.
        what: the place and the parameters of the move.
    """

    state: State
    result: Result
    parent: str | None = None
    move: str = ""
    what: str = ""


class Searched(Struct, frozen=True, kw_only=True):
    """The search of one kernel.

    Attributes:
        spec: of the kernel, with its text.
        identity: of the search: card, power limit, objective, seed.
        variants: in the order of their evaluation, the baseline first.
    """

    spec: KernelSpec
    identity: SearchIdentity
    variants: tuple[Variant, ...]


def read_searches(place: Path) -> list[Searched]:
    """The searches in a folder, as ``--outdir`` of ``gpuenergy optimize``, or in one file.

    Raises:
        InputError: it cannot be read.
    """
    if is_folder(place):
        return [_of_folder(one) for one in sorted((place / "kernels").glob("_*"))]
    content = read_unpacked(place, "record of searches", _LARGEST_BYTES)
    try:
        found = decode(content, list[Searched])
        for one in found:
            check_spec(one.spec)
            _check_parents(one)
    except (FormError, InputError) as error:
        reason = str(error).removesuffix(".")
        raise InputError(
            f"The record of searches {place} cannot be used, because {reason}."
        ) from None
    return found


def _check_parents(search: Searched) -> None:
    known = {one.state.id for one in search.variants}
    lost = [one.state.id for one in search.variants if one.parent not in {None, *known}]
    if lost:
        raise FormError(f"the parent of {lost[0]} of {search.spec.name!r:.60} is not in it")


def _of_folder(folder: Path) -> Searched:
    search = read_state(folder / STATE_JSON)
    variants = []
    for node in search.nodes:
        place = folder / (BASELINE if node.parent is None else f"{VARIANTS}/{node.id}")
        state = read_control(place / "control.json").state
        found = _result(place / "result.json")
        variants.append(
            Variant(state=state, result=found, parent=node.parent, move=node.move, what=node.what)
        )
    spec = read_spec(folder / SPEC_JSON)
    return Searched(spec=spec, identity=search.identity, variants=tuple(variants))


def _result(path: Path) -> Result:
    """Without what comparisons do not need."""
    try:
        found = decode(read_bytes(path, "result", _LARGEST_RESULT_BYTES), Result)
    except FormError as error:
        raise InputError(f"The result {path} cannot be used, because {error}.") from None
    return replace(found, gpu="", correctness={}, steps_s={})


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if a folder cannot be read or the file cannot be written."""
    parser = study_parser(__doc__)
    parser.add_argument("outdirs", type=Path, nargs="+", help="As --outdir of gpuenergy optimize")
    parser.add_argument("path", type=Path, help="File to write; its name ends in .json.gz")
    arguments = parser.parse_args(words)
    found = [one for outdir in arguments.outdirs for one in read_searches(outdir)]
    content = encode(msgspec.to_builtins(found))
    write_atomically(arguments.path, gzip.compress(content, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
