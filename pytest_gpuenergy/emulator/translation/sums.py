"""Sums of products in a thread's own array, four at a time in vectors.

Generated kernels have their loops unrolled, as in ``sums[5] = (sums[5] + (a[i + 1] * b[j]));``. GCC
takes such an array apart first, and then finds no neighbours among its elements. Here, elements
whose products share a factor become a vector; what is computed for each of them, and in which
order, remains the same. Like GCC, this needs an array of which only known elements are used.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LANES = 4
"""The elements of a vector: those of 16 bytes, which every processor has."""

_HEADER = '#include "sums.h"\n'
_ARRAY = re.compile(r"^ *(?:alignas\(\d+\) )?float (?P<name>\w+)\[(?P<size>\d+)\];$", re.MULTILINE)
# Values without calls or changes of variables, so that it does not matter when they are computed.
_PURE = r"(?:(?!\w\(|\+\+|--)[\w ()+*/%<>&|.!-])+"
_FACTOR = rf"\w+\[{_PURE}\]"
_INTEGER = re.compile(rf" *int (?P<name>\w+) = {_PURE};")
_FLOAT = r"-?(?:0x[\da-f.]+p[+-]\d+|\d+\.\d*(?:e[+-]?\d+)?)f?"
_BRACKETS = re.compile(r"[()]")


@dataclass(frozen=True)
class _Factor:
    """An element that is a factor of a product: its array, and its index less a constant."""

    array: str
    base: str
    offset: int

    @classmethod
    def of(cls, text: str) -> _Factor:
        array, _, index = text[:-1].partition("[")
        if index.isdecimal():
            return cls(array, "", int(index))
        base, plus, offset = index[1:-1].rpartition(" + ")
        # The brackets around the index have to be those of one sum.
        if plus and offset.isdecimal() and index[0] + index[-1] == "()" and _is_balanced(base):
            return cls(array, base, int(offset))
        return cls(array, index, 0)

    def precedes(self, other: _Factor) -> bool:
        """Return whether the other one is the next element."""
        return self == _Factor(other.array, other.base, other.offset - 1)


_Product = tuple[str, str]
"""The text of the two factors of a product."""


def with_vectors(text: str) -> str:
    """Return ``text`` with vectors in place of arrays of sums; it keeps its number of lines.

    The vectors may not compile, for example if other types than float are added; then the text has
    to be compiled as it was.
    """
    found = text
    for array in _ARRAY.finditer(text):
        found = _Sums(found, array["name"], int(array["size"])).in_vectors() or found
    return found if found == text else _HEADER + found


class _Sums:
    """An array whose elements are sums, in a text.

    Args:
        text: the text.
        name: the name of the array.
        size: the number of its elements.
    """

    def __init__(self, text: str, name: str, size: int) -> None:
        self._lines = text.split("\n")
        self._name = name
        self._size = size
        element = rf"{name}\[(?P<index>\d+)\]"
        self._element = re.compile(rf"(?<!&)\b{element}")
        self._begin = re.compile(rf" *{element} = (?P<value>{_FLOAT})(?:/\*[^*]*\*/)?;")
        product = rf"(?P<one>{_FACTOR}) \* (?P<other>{_FACTOR})"
        self._add = re.compile(rf" *{element} = \({name}\[(?P=index)\] \+ \({product}\)\);")

    def in_vectors(self) -> str | None:
        """Return the text with vectors in place of the array; None if it cannot be rewritten."""
        word = re.compile(rf"\b{self._name}\b")
        named = [
            k for k, line in enumerate(self._lines) if self._name in line and word.search(line)
        ]
        values = self._initial(named)
        if values is None:
            return None
        added = {k: (int(m["index"]), (m["one"], m["other"])) for k, m in self._matches(named)}
        lanes = self._lanes(list(added.values()))
        if lanes is None:
            return None
        lines = self._added_together(added, lanes)
        if lines is None:
            return None
        declared, *begun = named[: self._size + 1]
        for k in begun:
            lines[k] = ""
        lines[declared] = "".join(
            f"::cuhost::cuhost_Sums {self._vector(k)} = {{{', '.join(values[i] for i in group)}}};"
            for k, group in enumerate(lanes)
        )
        places = {
            i: f"{self._vector(k)}[{n}]"
            for k, group in enumerate(lanes)
            for n, i in enumerate(group)
        }
        for k in named[self._size + 1 :]:
            if k not in added:
                lines[k] = self._element.sub(lambda m: places.get(int(m["index"]), m[0]), lines[k])
        rewritten = "\n".join(lines)
        return None if word.search(rewritten) else rewritten

    def _vector(self, number: int) -> str:
        return f"cuhost_{self._name}_{number}"

    def _matches(self, named: Sequence[int]) -> Iterator[tuple[int, re.Match[str]]]:
        for k in named:
            if found := self._add.fullmatch(self._lines[k]):
                yield k, found

    def _initial(self, named: Sequence[int]) -> dict[int, str] | None:
        """Return the value that each element has from the beginning, or None."""
        values = {}
        for k in named[1 : self._size + 1]:
            if found := self._begin.fullmatch(self._lines[k]):
                values[int(found["index"])] = found["value"]
        return values if sorted(values) == list(range(self._size)) else None

    def _lanes(self, added: Sequence[tuple[int, _Product]]) -> list[list[int]] | None:
        """Return the elements of each vector, or None.

        The products of a vector share a factor. The other factors are neighbours, if possible.
        """
        first = dict(reversed(added[: self._size]))
        if len(first) != self._size:
            return None
        best: tuple[int, list[list[int]]] | None = None
        for shared in (1, 0):
            groups: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
            for index, product in first.items():
                own = _Factor.of(product[1 - shared])
                groups[product[shared]].append((own.array, own.base, own.offset, index))
            if any(len(group) % LANES for group in groups.values()):
                continue
            lanes, neighbours = [], 0
            for group in groups.values():
                group.sort()
                lanes += [
                    [index for *_, index in group[k : k + LANES]]
                    for k in range(0, len(group), LANES)
                ]
                neighbours += sum(
                    _Factor(*one[:3]).precedes(_Factor(*other[:3]))
                    for one, other in itertools.pairwise(group)
                )
            if best is None or neighbours > best[0]:
                best = neighbours, lanes
        return None if best is None else best[1]

    def _added_together(
        self, added: Mapping[int, tuple[int, _Product]], lanes: Sequence[Sequence[int]]
    ) -> list[str] | None:
        """Return the lines with a statement for each vector in place of one for each element."""
        vector_of = {index: k for k, group in enumerate(lanes) for index in group}
        waiting: dict[int, dict[int, _Product]] = {}  # by vector, then by element
        lines, before = list(self._lines), ";"
        for k, line in enumerate(self._lines):
            if k in added:
                if before not in ";{}":  # it may be the body of a condition or loop
                    return None
                index, product = added[k]
                if index not in vector_of:
                    return None
                vector = vector_of[index]
                products = waiting.setdefault(vector, {})
                if index in products:
                    return None
                products[index] = product
                lines[k] = ""
                if len(products) == LANES:
                    del waiting[vector]
                    sum_of = _sum_of([products[index] for index in lanes[vector]])
                    if sum_of is None:
                        return None
                    name = self._vector(vector)
                    lines[k] = f"{name} = {name} + {sum_of};"
            elif waiting and line.strip():
                declared = _INTEGER.fullmatch(line)
                if declared is None or any(
                    re.search(rf"\b{declared['name']}\b", " ".join(product))
                    for products in waiting.values()
                    for product in products.values()
                ):
                    return None
            before = line.rstrip()[-1:] or before
        return None if waiting else lines


def _sum_of(products: Sequence[_Product]) -> str | None:
    """Return the product of a vector and the factor that all share; None if they share none."""
    for shared in (1, 0):
        if len({product[shared] for product in products}) == 1:
            texts = [product[1 - shared] for product in products]
            own = [_Factor.of(text) for text in texts]
            follows = [one.precedes(other) for one, other in itertools.pairwise(own)]
            if all(follows):
                vector = f"cuhost_four({texts[0]})"
            elif follows[0] and follows[2]:
                vector = f"cuhost_pairs({texts[0]}, {texts[2]})"
            else:
                vector = f"cuhost_each({', '.join(texts)})"
            return f"::cuhost::{vector} * ::cuhost::cuhost_all({products[0][shared]})"
    return None


def _is_balanced(text: str) -> bool:
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] == "(" else -1
        if depth < 0:
            return False
    return depth == 0
