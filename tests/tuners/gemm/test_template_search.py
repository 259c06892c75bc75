"""The search of templates proposes everything once, learns what the estimate gets wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from threading import Event

import pytest

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuners import TEMPLATE_FORM, SimtParameters, rank_kernels
from pytest_gpuenergy.tuning import Candidate, CardResources, Feedback, TemplateProposer
from pytest_gpuenergy.workloads import Gemm

pytestmark = pytest.mark.slow  # their space is
H200 = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
GEMM = Gemm("g", 512, 512, 512)

Space = Sequence[SimtParameters]
Cost = Callable[[SimtParameters], float | None]


@pytest.fixture(scope="module")
def space() -> Space:
    offered = rank_kernels(GEMM, H200)[:1500]
    return [one for one in offered if isinstance(one, SimtParameters)]


def proposer(space: Space) -> TemplateProposer:
    return TemplateProposer(GEMM, space, cycles(space), lambda _: None)


def cycles(space: Space) -> list[float]:
    return [one.cycles(GEMM, H200) for one in space]


def card_of_seed(seed: int) -> Cost:
    """A card on which each choice of a parameter has an effect that the estimate does not know."""
    drawn, effects = random.Random(seed), dict[tuple[str, object], float]()

    def cost(one: SimtParameters) -> float:
        logarithm = math.log(one.cycles(GEMM, H200) / 1.8e9)
        for choice in one.choices(GEMM).items():
            logarithm += effects.setdefault(choice, drawn.gauss(0, 0.12))
        return math.exp(logarithm)

    return cost


def searched(made: TemplateProposer, cost: Cost, trials: int) -> list[Candidate]:
    tried: list[Candidate] = []
    while len(tried) < trials and (batch := made.take(trials - len(tried), Event())):
        tried += batch
        parameters = [TEMPLATE_FORM.parameters(one.recipe) for one in batch]
        made.learn([Feedback(TEMPLATE_FORM.recipe(one), cost(one)) for one in parameters])
    return tried


def test_the_first_is_the_most_promising(space):
    first = proposer(space).take(4, Event())[0]
    chosen = TEMPLATE_FORM.parameters(first.recipe)
    assert chosen.cycles(GEMM, H200) == min(cycles(space))


def test_it_finds_what_is_fast_on_a_card_that_the_estimate_does_not_know(space):
    lost: dict[str, list[float]] = {"search": [], "estimate": []}
    for seed in range(6):
        cost = card_of_seed(seed)
        costs = {TEMPLATE_FORM.recipe(one): cost(one) or 0.0 for one in space}
        tried = [one.recipe for one in searched(proposer(space), cost, 32)]
        listed = [TEMPLATE_FORM.recipe(one) for one in space[:32]]
        for name, recipes in (("search", tried), ("estimate", listed)):
            lost[name].append(min(map(costs.__getitem__, recipes)) / min(costs.values()) - 1)
    assert sum(lost["search"]) < 0.3 * sum(lost["estimate"])
    assert max(lost["search"]) < 0.15


def test_everything_is_proposed_once(space):
    recipes = [one.recipe for one in searched(proposer(space[:50]), card_of_seed(1), 1000)]
    assert sorted(recipes) == sorted(map(TEMPLATE_FORM.recipe, space[:50]))


def test_what_is_known_already_is_not_proposed(space):
    made = proposer(space[:50])
    made.learn([Feedback(TEMPLATE_FORM.recipe(one), 1e-4) for one in space[:40]])
    recipes = [one.recipe for one in searched(made, card_of_seed(1), 1000)]
    assert sorted(recipes) == sorted(map(TEMPLATE_FORM.recipe, space[40:50]))


def test_choices_that_fail_are_left(space):
    tried = searched(proposer(space), lambda one: None if one.stages > 2 else 1e-5, 60)
    stages = [TEMPLATE_FORM.parameters(one.recipe).stages for one in tried]
    assert set(stages[-8:]) == {2}


def test_a_kernel_that_cannot_be_made_is_a_failed_candidate():
    huge = Gemm("h", 1 << 15, 1 << 15, 1 << 15)
    tiny = SimtParameters(tile_m=16, tile_n=32, tile_k=4, thread_m=4, thread_n=4)
    made = TemplateProposer(huge, [tiny], [1.0], lambda _: None)
    (candidate,) = made.take(1, Event())
    assert isinstance(candidate.kernel, KernelFault)
    assert "h has too many tiles of 16 x 32: choose larger tiles" in str(candidate.kernel)


def test_kernels_are_compiled_while_others_are_made(space):
    begun: list[Kernel] = []
    made = TemplateProposer(GEMM, space[:3], [1.0, 1.0, 1.0], begun.append)
    kernels = [candidate.kernel for candidate in made.take(3, Event())]
    assert begun == kernels


def test_kernels_are_compiled_before_the_batches_ahead_of_them_are_timed(space):
    begun: list[Kernel] = []
    ahead = TemplateProposer(GEMM, space, cycles(space), begun.append, ahead=12)
    for number in range(6):
        before = set(begun)
        batch = ahead.take(100, Event())
        if number:
            assert {candidate.kernel for candidate in batch} <= before


def test_nothing_is_compiled_ahead_that_is_not_tried(space):
    begun: list[Kernel] = []
    ahead = TemplateProposer(GEMM, space, cycles(space), begun.append, ahead=12)
    tried = searched(ahead, card_of_seed(1), 40)
    assert [candidate.kernel for candidate in tried] == begun
    assert len(tried) == 40


def test_a_search_that_compiles_ahead_finds_nearly_as_much(space):
    lost: dict[int, float] = {0: 0.0, 12: 0.0}
    for seed in range(6):
        cost = card_of_seed(seed)
        best = min(cost(one) or math.inf for one in space)
        for ahead in lost:
            made = TemplateProposer(GEMM, space, cycles(space), lambda _: None, ahead=ahead)
            recipes = [one.recipe for one in searched(made, cost, 64)]
            found = min(cost(TEMPLATE_FORM.parameters(recipe)) or math.inf for recipe in recipes)
            lost[ahead] += found / best - 1
    assert lost[12] < lost[0] + 6 * 0.01
