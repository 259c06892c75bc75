"""The end of a search: the best variants are compared with the baseline, until one is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.search.claim import CONFIRMED, may_be_claimed
from pytest_gpuenergy.search.comparison import compare
from pytest_gpuenergy.search.evaluator import Evaluator
from pytest_gpuenergy.search.folder import KernelFolder
from pytest_gpuenergy.search.search_state import Gain, Node
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.tuning import writing


@dataclass(frozen=True)
class Confirmation:
    """Compares variants of one search. What was compared among as many before is not repeated.

    Attributes:
        evaluator: of the search.
        folder: of the kernel.
        states: by id.
        tell: called with lines of progress.
        is_stopped: asked before each comparison, and before each turn of one.
    """

    evaluator: Evaluator
    folder: KernelFolder
    states: Mapping[str, State]
    tell: Callable[[str], None]
    is_stopped: Callable[[], bool]

    def gains(self, nodes: Sequence[Node]) -> Iterator[Gain | None]:
        """The gains of the best variants, in their order, up to the first that is accepted.

        Args:
            nodes: all of the search, the baseline first.

        Yields:
            A gain, as soon as it is on disk, or one that may not be claimed; or None, at last, if
            it was stopped.

        Raises:
            DeviceError: the device does not respond.
            InputError: the reference cannot be computed, or a file is damaged.
            OutputError: a file cannot be written.
        """
        for place, node in enumerate(by_cost(nodes)[:CONFIRMED]):
            if node.id == nodes[0].id:
                return
            if (left_out := self._left_out(node, nodes)) is not None:
                if place == 0:
                    yield left_out
                return  # the next ones are no better
            gain = self._unclaimed(node, nodes) or self._gain(node, len(nodes) - 1)
            yield gain
            if gain is None or gain.accepted or gain.unclaimed:
                return

    def _unclaimed(self, node: Node, nodes: Sequence[Node]) -> Gain | None:
        """Why the device's figures are not enough for a claim; None if they are."""
        for one in (nodes[0], node):
            if message := self.evaluator.bench.no_claim(self.states[one.id]):
                return Gain(
                    id=node.id,
                    accepted=False,
                    rounds=0,
                    candidates=len(nodes) - 1,
                    message=message,
                    unclaimed=True,
                )
        return None

    def _left_out(self, node: Node, nodes: Sequence[Node]) -> Gain | None:
        """Why a variant is not worth a comparison; None if it is."""
        metric, candidates = self.evaluator.bench.objective, len(nodes) - 1
        assert node.cost is not None
        assert nodes[0].cost is not None
        change = math.log(node.cost / nodes[0].cost)
        if may_be_claimed(change, metric, candidates=candidates):
            return None
        message = (
            f"left out: by the search's own figures it takes {-math.expm1(change):.2%} less "
            f"{metric.label}, too little to be claimed of the best of {candidates}"
        )
        return Gain(id=node.id, accepted=False, rounds=0, candidates=candidates, message=message)

    def _gain(self, node: Node, candidates: int) -> Gain | None:
        known = self.folder.known_gain(node.id)
        if known is not None and known.candidates >= candidates:
            return known
        if self.is_stopped():
            return None
        bench = self.evaluator.bench
        self.tell(f"{bench.spec.name}: measuring {node.id} alternately with the baseline")
        with self.evaluator.alone(), writing(self.folder.path):
            gain = compare(
                bench, self.states[node.id], candidates=candidates, is_stopped=self.is_stopped
            )
        if gain is not None:
            self.folder.keep_gain(gain)
        return gain


def by_cost(nodes: Sequence[Node]) -> list[Node]:
    """The correct nodes, best first; of equal ones the earlier."""
    correct = [(node.cost, node) for node in nodes if node.cost is not None]
    return [node for _, node in sorted(correct, key=lambda pair: pair[0])]
