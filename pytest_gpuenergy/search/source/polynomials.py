"""Integer expressions of a kernel as sums of products, so that equal ones are recognized."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Interval = tuple[int, int]


@dataclass(frozen=True)
class Atom:
    """What is not taken apart: a variable, or an operation that is not a sum or product.

    Attributes:
        text: in the language of the kernel.
        variables: that it depends on, by the place of their declarations.
        operator, left, right: of a quotient or remainder.
    """

    text: str
    variables: frozenset[int] = frozenset()
    operator: str = ""
    left: Polynomial | None = None
    right: Polynomial | None = None


Product = tuple[Atom, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products with integer factors; equal sums have equal terms."""

    terms: tuple[tuple[Product, int], ...] = ()

    @classmethod
    def of(cls, terms: dict[Product, int]) -> Polynomial:
        """The sum of ``terms``: factors by product."""
        kept = ((product, factor) for product, factor in terms.items() if factor)
        return cls(tuple(sorted(kept, key=lambda term: [atom.text for atom in term[0]])))

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """A number."""
        return cls.of({(): value})

    @classmethod
    def atom(cls, atom: Atom) -> Polynomial:
        """One atom."""
        return cls.of({(atom,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for product, factor in other.terms:
            terms[product] = terms.get(product, 0) + factor
        return Polynomial.of(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((product, -factor) for product, factor in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Product, int] = {}
        for ours, one in self.terms:
            for theirs, two in other.terms:
                product = tuple(sorted(ours + theirs, key=lambda atom: atom.text))
                terms[product] = terms.get(product, 0) + one * two
        return Polynomial.of(terms)

    @property
    def value(self) -> int | None:
        """Its value if it is a number."""
        if not self.terms:
            return 0
        (product, factor), *more = self.terms
        return factor if not product and not more else None

    @property
    def atoms(self) -> frozenset[Atom]:
        """All atoms, without those inside atoms."""
        return frozenset(atom for product, _ in self.terms for atom in product)

    @property
    def variables(self) -> frozenset[int]:
        """Variables that it depends on."""
        return frozenset[int]().union(*(atom.variables for atom in self.atoms))

    def depends_on(self, text: str) -> bool:
        """Whether an atom, or one inside it, is ``text`` or a member of it."""
        return any(_mentions(atom, text) for atom in self.atoms)

    def text(self) -> str:
        """As an expression, of C and of Python."""
        parts = []
        for product, factor in self.terms:
            names = " * ".join(atom.text for atom in product)
            size = abs(factor)
            part = names if names and size == 1 else f"{size} * {names}" if names else str(size)
            sign = "-" if factor < 0 else "+"
            parts.append(f" {sign} {part}")
        joined = "".join(parts) or " + 0"
        return joined[3:] if joined.startswith(" + ") else f"-{joined[3:]}"

    def is_multiple(self, of: int, values: Callable[[Atom], tuple[int, ...] | None]) -> bool:
        """Whether every term is a multiple of ``of``, for any of the values that atoms have.

        Args:
            of: a positive number.
            values: of an atom for each set of sizes; None if unknown.
        """
        for product, factor in self.terms:
            known = [found for atom in product if (found := values(atom)) is not None]
            products = [math.prod(some) for some in zip(*known, strict=True)] if known else [1]
            if any(factor * product % of for product in products):
                return False
        return True

    def interval(self, ranges: Callable[[Atom], Interval | None]) -> Interval | None:
        """The smallest and largest value, as far as the ranges of the atoms tell."""
        low = high = 0
        for product, factor in self.terms:
            ends = (factor, factor)
            for atom in product:
                found = ranges(atom)
                if found is None:
                    return None
                corners = [one * two for one in ends for two in found]
                ends = min(corners), max(corners)
            low, high = low + ends[0], high + ends[1]
        return low, high


def _mentions(atom: Atom, text: str) -> bool:
    if atom.text == text or atom.text.startswith(f"{text}."):
        return True
    parts = (part for part in (atom.left, atom.right) if part is not None)
    return any(_mentions(inner, text) for part in parts for inner in part.atoms)
