"""Sizes that a spec does not list: every variant is verified on a set that it cannot know."""

from __future__ import annotations

import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pytest_gpuenergy.engine import LARGEST_SEED, SEEDS, Drawing, KeptCases
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.reference import KnownOutputs
from pytest_gpuenergy.search.spec.spec_checks import check_with
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.workloads import IoContract

_TURNS = 3
"""Seeds of a verification: ordinary inputs, and inputs with edges of either sign."""

_KEPT_BYTES = 2 << 30
"""Of references, in the memory where they were made."""


class Hidden:
    """Seeds, and what follows from them: it is the same for all states, and told to none.

    Args:
        seed: of the search, on which the drawn ones depend; None: they are random.

    Attributes:
        cases: inputs with references, by workload and drawing.
        outputs: of a baseline that is the reference, by the name of the workload.
        ready: the cases for which the baseline has run.
        contracts: the tensors and scalars, by the name of the workload.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._seeds: dict[str, tuple[int, ...]] = {}
        self.cases = KeptCases(_KEPT_BYTES)
        self.outputs: defaultdict[str, KnownOutputs] = defaultdict(dict)
        self.ready: set[tuple[str, Drawing]] = set()
        self.contracts: dict[str, IoContract] = {}

    def seeds(self, purpose: str) -> tuple[int, ...]:
        """Seeds of inputs, which are drawn when they are first asked for."""
        if purpose not in self._seeds:
            self._seeds[purpose] = self._drawn(purpose)
        return self._seeds[purpose]

    def _drawn(self, purpose: str) -> tuple[int, ...]:
        if self._seed is not None:
            drawn = random.Random(f"{self._seed} {purpose}")  # noqa: S311 -- to be repeated
            return tuple(drawn.randrange(len(SEEDS), LARGEST_SEED) for _ in range(_TURNS))
        many = LARGEST_SEED - len(SEEDS)
        return tuple(len(SEEDS) + secrets.randbelow(many) for _ in range(_TURNS))


Sizes = Mapping[str, int]

_DRAWN = 8
"""Sets of sizes that are tried until the baseline is correct on one."""


def has_others(spec: KernelSpec) -> bool:
    """Whether there can be sizes between those that a spec lists, and it allows them."""
    if not spec.other_sizes:
        return False
    values = [[sizes[name] for sizes in spec.sizes] for name in spec.sizes[0]]
    return any(max(some) - min(some) > math.gcd(*some) for some in values)


def other_sizes(
    spec: KernelSpec, draw: random.Random, is_right: Callable[[Sizes], bool]
) -> Sizes | None:
    """A set that the spec does not list and its baseline can do; None if none is found.

    Args:
        spec: a checked one.
        draw: the source of randomness.
        is_right: whether the baseline is correct with them.
    """
    if not has_others(spec):
        return None
    for _ in range(_DRAWN):
        found = between(spec.sizes, draw)
        if found not in spec.sizes and _fits(spec, found) and is_right(found):
            return found
    return None


def between(listed: Sequence[Sizes], draw: random.Random) -> Sizes:
    """A mean of the listed sets with random weights, the same ones for all names.

    Each number is rounded to a multiple of the greatest common divisor of its listed values. So
    whatever holds for all listed sets and is a bound, a divisibility or, as a rule, a linear
    relation also holds for the mean. The first set, which is timed and the largest as a rule, has
    a weight of 1/3 on average: verification of large sizes takes long.
    """
    first = draw.random() ** 2
    others = [draw.expovariate(1.0) for _ in listed[1:]]
    weights = [first, *((1 - first) * one / math.fsum(others) for one in others)]
    return {name: _mean([sizes[name] for sizes in listed], weights) for name in listed[0]}


def _mean(values: Sequence[int], weights: Sequence[float]) -> int:
    divisor = math.gcd(*values)
    steps = math.fsum(
        value // divisor * weight for value, weight in zip(values, weights, strict=True)
    )
    return divisor * min(max(round(steps), min(values) // divisor), max(values) // divisor)


def _fits(spec: KernelSpec, sizes: Sizes) -> bool:
    try:
        check_with(spec, sizes)
    except (FormError, InputError):
        return False
    return True
