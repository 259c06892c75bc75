"""Integer expressions of a kernel as sums of products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Interval = tuple[int, int]


@dataclass(frozen=True)
class Atom:
    """A variable, or an operation that is not a sum or product and so is not taken apart.

    Attributes:
        text: the atom as an expression in the language of the kernel.
        variables: the keys of the variables that it depends on.
        operator, left, right: the parts of a quotient or remainder.
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
        """Return the sum of ``terms``: factors by product."""
        kept = ((product, factor) for product, factor in terms.items() if factor)
        return cls(tuple(sorted(kept, key=lambda term: [atom.text for atom in term[0]])))

    @classmethod
    def constant(cls, value: int) -> Polynomial:
        """Return a number."""
        return cls.of({(): value})

    @classmethod
    def atom(cls, atom: Atom) -> Polynomial:
        """Return the polynomial of one atom."""
        return cls.of({(atom,): 1})

    def __add__(self, other: Polynomial | int) -> Polynomial:
        terms = dict(self.terms)
        for product, factor in _polynomial(other).terms:
            terms[product] = terms.get(product, 0) + factor
        return Polynomial.of(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((product, -factor) for product, factor in self.terms))

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        terms: dict[Product, int] = {}
        for ours, our_factor in self.terms:
            for theirs, their_factor in _polynomial(other).terms:
                product = tuple(sorted(ours + theirs, key=lambda atom: atom.text))
                terms[product] = terms.get(product, 0) + our_factor * their_factor
        return Polynomial.of(terms)

    @property
    def value(self) -> int | None:
        """The value of a polynomial that is a number; None of others."""
        if not self.terms:
            return 0
        (product, factor), *more = self.terms
        return factor if not product and not more else None

    @property
    def atoms(self) -> frozenset[Atom]:
        """The atoms of all terms, without those inside atoms."""
        return frozenset(atom for product, _ in self.terms for atom in product)

    @property
    def variables(self) -> frozenset[int]:
        """The keys of the variables that the polynomial depends on."""
        return frozenset[int]().union(*(atom.variables for atom in self.atoms))

    def depends_on(self, text: str) -> bool:
        """Return whether an atom, or one inside it, is ``text`` or a member of it."""
        return any(_mentions(atom, text) for atom in self.atoms)

    def text(self) -> str:
        """Return the polynomial as an expression that is both C and Python."""
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
        """Return whether every term is a multiple of ``of`` with each set of sizes."""
        for product, factor in self.terms:
            known = [found for atom in product if (found := values(atom)) is not None]
            products = [math.prod(some) for some in zip(*known, strict=True)] if known else [1]
            if any(factor * product % of for product in products):
                return False
        return True

    def interval(self, ranges: Callable[[Atom], Interval | None]) -> Interval | None:
        """Return the smallest and largest value, as far as the ranges of the atoms tell."""
        low = high = 0
        for product, factor in self.terms:
            ends = (factor, factor)
            for atom in product:
                found = ranges(atom)
                if found is None:
                    return None
                corners = [end * bound for end in ends for bound in found]
                ends = min(corners), max(corners)
            low, high = low + ends[0], high + ends[1]
        return low, high


def _polynomial(number: Polynomial | int) -> Polynomial:
    return Polynomial.constant(number) if isinstance(number, int) else number


def _mentions(atom: Atom, text: str) -> bool:
    if atom.text == text or atom.text.startswith(f"{text}."):
        return True
    parts = (part for part in (atom.left, atom.right) if part is not None)
    return any(_mentions(inner, text) for part in parts for inner in part.atoms)
