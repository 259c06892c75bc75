"""Keeps from a search's kernels the seeds of inputs, their references, and unlisted sizes."""

from __future__ import annotations

import math
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pytest_gpuenergy.engine import MAX_SEED, SEEDS, Drawing, KeptCases
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.reference import KnownOutputs
from pytest_gpuenergy.search.spec.spec_checks import check_with
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.workloads import IoContract

_SEEDS_EACH = 3
"""Seeds of a verification: for ordinary inputs, and for inputs with edges of either sign."""

_KEPT_BYTES = 2 << 30
"""Size of the inputs and references that are kept, in the memory where they were made."""

Sizes = Mapping[str, int]
_DRAWN = 8
"""Sets of sizes that are drawn, at most, to find one on which the baseline is correct."""


class Hidden:
    """The hidden seeds of a search and what is computed from them once for all states.

    Args:
        seed: the seed of the search, from which the hidden seeds are drawn; None to draw them at
            random.

    Attributes:
        cases: the inputs with their references, by workload and drawing.
        outputs: the outputs of a baseline that is the reference, by the name of the workload.
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
        """Return the seeds of inputs for a purpose, which are drawn when they are first needed."""
        if purpose not in self._seeds:
            source: random.Random = secrets.SystemRandom()
            if self._seed is not None:
                source = random.Random(f"{self._seed} {purpose}")  # noqa: S311 -- to be repeated
            self._seeds[purpose] = tuple(
                source.randrange(len(SEEDS), MAX_SEED) for _ in range(_SEEDS_EACH)
            )
        return self._seeds[purpose]


def allows_other_sizes(spec: KernelSpec) -> bool:
    """Return whether a spec allows sizes between the listed ones, and there can be any."""
    if not spec.other_sizes:
        return False
    values = [[sizes[name] for sizes in spec.sizes] for name in spec.sizes[0]]
    return any(max(listed) - min(listed) > math.gcd(*listed) for listed in values)


def draw_other_sizes(
    spec: KernelSpec, draw: random.Random, is_right: Callable[[Sizes], bool]
) -> Sizes | None:
    """Draw a set of sizes that the spec does not list; None if the baseline is correct on none.

    Args:
        spec: a checked spec.
        draw: the source of randomness.
        is_right: returns whether the baseline is correct with a set of sizes.
    """
    if not allows_other_sizes(spec):
        return None
    for _ in range(_DRAWN):
        sizes = draw_between(spec.sizes, draw)
        if sizes in spec.sizes:
            continue
        try:
            check_with(spec, sizes)
        except (FormError, InputError):
            continue
        if is_right(sizes):
            return sizes
    return None


def draw_between(listed: Sequence[Sizes], draw: random.Random) -> Sizes:
    """Return a mean of the listed sets with random weights, which are the same for all names.

    Each number is rounded to a multiple of the greatest common divisor of its listed values. A
    bound or a divisibility that holds for all listed sets therefore also holds for the mean, and so
    does, as a rule, a linear relation. The first set, which is timed and usually the largest, has a
    weight of 1/3 on average, because verifying large sizes takes long.
    """
    first = draw.random() ** 2
    others = [draw.expovariate(1.0) for _ in listed[1:]]
    weights = [first, *((1 - first) * other / math.fsum(others) for other in others)]
    drawn: dict[str, int] = {}
    for name in listed[0]:
        divisor = math.gcd(*(sizes[name] for sizes in listed))
        steps = [sizes[name] // divisor for sizes in listed]
        mean = math.fsum(step * weight for step, weight in zip(steps, weights, strict=True))
        drawn[name] = divisor * min(max(round(mean), min(steps)), max(steps))
    return drawn
