"""Reads the corpus: needs NumPy and the standard library only.

    python bench/corpus/entries.py --out DIR

writes each kernel as a CUDA file of its own, with ``index.json``, for tools in other languages.
From Python:

    from entries import read_corpus
    for entry in read_corpus():
        entry.source, entry.launches, entry.reference(x=...)

`README.md` describes the files.
"""

from __future__ import annotations

import argparse
import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import reference

FOLDER = Path(__file__).parent
KERNELS = FOLDER / "kernels"


class CorpusError(Exception):
    """A file of the corpus that does not have the documented form; the message names it."""


@dataclass(frozen=True)
class Tensor:
    """A tensor: its element type by NumPy's name (or ``bfloat16``), and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Scalar:
    """A number that kernels take by value."""

    name: str
    dtype: str
    value: float


@dataclass(frozen=True)
class Launch:
    """A launch of a function of the source.

    ``arguments`` names tensors, workspaces and scalars in the order of the parameters;
    ``shared_bytes`` is the dynamic shared memory of a block.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[str, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Entry:
    """A kernel of the corpus.

    Attributes:
        family: name of the computation, and of its CUDA file.
        name: of this kernel; unique in the corpus, begins with the family.
        right: whether it is right.
        kind: of the fault; of a right kernel, the kind of fault that it resembles, or ``base``.
        why: one sentence on what is wrong, or on why it is right although it looks wrong.
        source: CUDA text.
        inputs: standard normal, or integers over their whole type, where ``ranges`` names none.
        inouts: that it reads and changes; drawn as inputs are, anew before each launch.
        outputs: that the kernel writes.
        workspaces: other buffers that it needs; their contents are not defined before a launch.
        scalars: arguments by value.
        launches: in order, on one stream.
        ranges: of uniform inputs, from the first number up to, not including, the second.
        terms: number of terms that are added up for an output, which the rounding error grows with.
    """

    family: str
    name: str
    right: bool
    kind: str
    why: str
    source: str
    inputs: tuple[Tensor, ...]
    inouts: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    workspaces: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    launches: tuple[Launch, ...]
    ranges: Mapping[str, tuple[float, float]]
    terms: int

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs from inputs by name, floating-point ones in double precision."""
        function: Callable[..., Any] = getattr(reference, self.family)
        known = {**inputs, **{scalar.name: scalar.value for scalar in self.scalars}}
        taken = inspect.signature(function).parameters
        result = function(**{name: known[name] for name in taken})
        if isinstance(result, dict):
            return result
        return {(*self.inouts, *self.outputs)[0].name: result}


def kinds() -> dict[str, str]:
    """Return the kinds of faults, each with a sentence."""
    return tomllib.loads((FOLDER / "kinds.toml").read_text())


def sets() -> dict[str, list[str]]:
    """Return the families of each set, in the order in which the sets were written."""
    return tomllib.loads((FOLDER / "sets.toml").read_text())


def read_corpus(families: Sequence[str] = ()) -> list[Entry]:
    """Return the kernels of some families, or of all.

    Raises:
        CorpusError: a file does not have the documented form, or there is no such family.
    """
    known = {path.stem: path for path in sorted(KERNELS.glob("*.toml"))}
    if unknown := set(families) - set(known):
        raise CorpusError(
            f"The corpus has no family {', '.join(sorted(unknown))}: "
            f"give one of {', '.join(known)}."
        )
    entries: list[Entry] = []
    for name in families or known:
        try:
            entries += _family(known[name])
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise CorpusError(f"{known[name]}: {type(error).__name__}: {error}") from error
    return entries


def _family(path: Path) -> Iterator[Entry]:
    family: dict[str, Any] = tomllib.loads(path.read_text())
    source = path.with_suffix(".cu").read_text()
    known = {*kinds(), "base"}
    if not callable(getattr(reference, path.stem, None)):
        raise ValueError(f"reference.py has no function {path.stem}")
    base = {"name": "base", "kind": "base", "why": family["about"], "edits": []}
    variants = [(True, base), *((True, one) for one in family.get("right", []))]
    variants += [(False, one) for one in family.get("wrong", [])]
    names = [variant["name"] for _, variant in variants]
    if len(set(names)) != len(names):
        raise ValueError(f"two kernels share a name: {sorted(names)}")
    for right, variant in variants:
        where = variant["name"]
        if variant["kind"] not in known:
            raise ValueError(f"{where} has the kind {variant['kind']!r}, which kinds.toml lacks")
        text = variant.get("text", source)
        for old, new in variant.get("edits", []):
            if text.count(old) != 1:
                raise ValueError(f"{where} edits {old!r}, which occurs {text.count(old)} times")
            text = text.replace(old, new)
        if unknown := set(variant) - {"name", "kind", "why", "edits", "text", *_OVERRIDES}:
            raise ValueError(f"{where} has unknown keys: {', '.join(sorted(unknown))}")
        own = family | {key: variant[key] for key in _OVERRIDES if key in variant}
        yield Entry(
            family=path.stem,
            name=f"{path.stem}/{where}",
            right=right,
            kind=variant["kind"],
            why=variant["why"],
            source=text,
            inputs=_tensors(own.get("inputs", {})),
            inouts=_tensors(own.get("inouts", {})),
            outputs=_tensors(own.get("outputs", {})),
            workspaces=_tensors(own.get("workspaces", {})),
            scalars=tuple(Scalar(n, t, v) for n, (t, v) in own.get("scalars", {}).items()),
            launches=tuple(_launch(one) for one in own["launches"]),
            ranges={n: (low, high) for n, (low, high) in own.get("ranges", {}).items()},
            terms=own.get("terms", 1),
        )


_OVERRIDES = ("launches", "workspaces", "scalars")
"""What a variant may state differently from its family."""


def _tensors(stated: Mapping[str, Sequence[Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, tuple(shape)) for name, (dtype, *shape) in stated.items())


def _launch(stated: Mapping[str, Any]) -> Launch:
    x, y, z = (*stated["grid"], 1, 1, 1)[:3]
    a, b, c = (*stated["block"], 1, 1, 1)[:3]
    arguments = tuple(stated["arguments"])
    return Launch(stated["entry"], (x, y, z), (a, b, c), arguments, stated.get("shared_bytes", 0))


def export(folder: Path) -> int:
    """Write all kernels and their index to a folder; return how many there are."""
    entries = read_corpus()
    for entry in entries:
        path = folder / f"{entry.name}.cu"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(entry.source)
    told = []
    for entry in entries:
        fields = asdict(entry)
        del fields["source"]
        told.append({**fields, "file": f"{entry.name}.cu"})
    index = {"kinds": kinds(), "kernels": told}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "reference.py").write_text((FOLDER / "reference.py").read_text())
    return len(entries)


def main() -> None:
    """Write the corpus as one file a kernel."""
    parser = argparse.ArgumentParser(description="Write each kernel as a file of its own.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args().out
    print(f"{export(folder)} kernels in {folder}, listed in {folder / 'index.json'}")


if __name__ == "__main__":
    main()
