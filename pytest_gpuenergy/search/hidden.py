"""What no kernel of a search may know, drawn and computed once for all of them."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict

from pytest_gpuenergy.engine import LARGEST_SEED, SEEDS, Drawing, KeptCases
from pytest_gpuenergy.search.reference import KnownOutputs
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
