"""The scheduler that distributes items over workers: all items of one workload go to one board.

It implements pytest-xdist's protocol ``Scheduling`` and replaces its schedulers ``load`` and
``loadgroup``. Those lose the items that a lost worker leaves, keep a list of ids for each worker
and search it, and ``loadgroup`` changes the ids. Here each step takes constant time, whatever the
number of items and workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_MIN_ITEMS = 2
"""The least number of items to give a worker: it begins one only once it knows what comes next."""


@dataclass
class Unit:
    """Items of a group that go to one worker, in their order.

    Attributes:
        model: the GPU model on which the rest of the group was measured; empty if none was.
        avoid: the place of the worker that was lost in this unit's only item.
    """

    group: str
    ids: list[str]
    model: str = ""
    avoid: Hashable = None


@dataclass
class _Hand:
    """A worker's share: the ids that it has collected, and the items that it has yet to run.

    Attributes:
        index: the place of each id in the collection; equal collections share it.
    """

    collected: bool = False
    collection: Sequence[str] = ()
    index: Mapping[str, int] = field(default_factory=dict)
    pending: dict[str, Unit] = field(default_factory=dict)


class Crew(Protocol):
    """Answers the scheduler's questions about workers and items."""

    def fit(self, node: Any) -> bool:
        """Return whether the worker can measure, as far as is known."""

    def model(self, node: Any) -> str:
        """The model of the worker's GPU; empty until it is known."""

    def place(self, node: Any) -> Hashable:
        """The worker's place: workers with the same place have the same GPU."""

    def group(self, node_id: str) -> str | None:
        """The group of an item; None for an item that does not use this plugin."""

    def running(self, node: Any) -> str | None:
        """The item that the worker is running."""

    def deferred(self, node: Any, node_id: str) -> bool:
        """Return whether the worker did not run an item that it was given."""

    def rerun(self, node: Any, node_id: str) -> bool:
        """Return whether the item in which the worker was lost shall be run again."""

    def alive(self) -> bool:
        """Return whether there is any worker, ready or starting."""

    def starting(self) -> bool:
        """Return whether there is a worker that is not ready yet."""

    def recruit(self, most: int) -> None:
        """Start at most ``most`` more workers: items are left, and all workers are ending."""


class WorkloadScheduling:
    """Gives workers whole groups of items, the longest first, the next one as the last one ends.

    Workers may have collected different items, such as the power caps of different GPU models. Each
    item is run once, by a worker that has collected it. When a worker is lost, the rest of its
    group goes to a worker with the same GPU model while there is one, and the item in which it was
    lost goes to another place.

    Args:
        crew: answers questions about the workers.
        durations_s: expected durations of items by node id.
        eager: whether a worker may start before all others have collected.

    Attributes:
        left: the number of items that are not complete.
    """

    def __init__(self, crew: Crew, durations_s: Mapping[str, float], *, eager: bool = True) -> None:
        self.left = 0
        self._crew = crew
        self._eager = eager
        self._durations_s = durations_s
        self._mean_s = sum(durations_s.values()) / len(durations_s) if durations_s else 1.0
        self._hands: dict[Any, _Hand] = {}
        self._indices: dict[tuple[str, ...], dict[str, int]] = {}
        self._seen: set[str] = set()
        self._pool: deque[Unit] = deque()

    @property
    def nodes(self) -> list[Any]:
        """The workers that are ready."""
        return list(self._hands)

    @property
    def collection_is_completed(self) -> bool:
        """Whether items can be given out."""
        collected = [hand.collected for hand in self._hands.values()]
        if self._eager:
            return any(collected)
        return bool(collected) and all(collected) and not self._crew.starting()

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left, or nobody to run it."""
        if not self._crew.alive():
            return True
        collected = [hand.collected for hand in self._hands.values()]
        waiting = self._crew.starting() or not all(collected)
        # What is left although no worker has anything to run is what none of them has collected.
        return bool(collected) and not waiting and not self.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether any worker has anything to run."""
        return any(hand.pending for hand in self._hands.values())

    def add_node(self, node: Any) -> None:
        """Add a worker that is ready to collect."""
        self._hands[node] = _Hand()

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Take in a worker's collection; items that no other worker has go into the pool."""
        hand = self._hands[node]
        hand.collected = True
        if not self._crew.fit(node):
            node.shutdown()
            return
        hand.collection = ids = tuple(collection)
        if ids not in self._indices:
            self._indices[ids] = {node_id: place for place, node_id in enumerate(ids)}
        hand.index = self._indices[ids]
        fresh = [node_id for node_id in dict.fromkeys(ids) if node_id not in self._seen]
        self._seen.update(fresh)
        self.left += len(fresh)
        units: dict[str, Unit] = {}
        for node_id in fresh:
            group = self._crew.group(node_id) or f"item {node_id}"
            units.setdefault(group, Unit(group, [])).ids.append(node_id)
        # The longest first; items that have never run are expected to take the mean.
        self._pool.extend(
            sorted(
                units.values(),
                key=lambda unit: sum(self._durations_s.get(i, self._mean_s) for i in unit.ids),
                reverse=True,
            )
        )

    def schedule(self) -> None:
        """Give out work: each worker gets one unit before any gets a second one."""
        for least in (1, _MIN_ITEMS):
            for node in self.nodes:
                self._give(node, least)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:  # noqa: ARG002
        """Note that a worker has ended an item. An item that it deferred goes to others."""
        hand = self._hands[node]
        node_id = hand.collection[item_index]
        unit = hand.pending.pop(node_id, None)
        if unit is None:
            return
        if self._crew.deferred(node, node_id):
            self._put_back([Unit(unit.group, [node_id], unit.model, unit.avoid)])
        else:
            self.left -= 1
        if not self._crew.fit(node):
            node.shutdown()
        if node.shutting_down and self._pool:
            self.call_others()
        else:
            self._give(node)

    def mark_test_pending(self, item: str) -> None:
        """Have an item run again."""
        self.left += 1
        group = self._crew.group(item) or f"item {item}"
        self._put_back([Unit(group, [item])])
        self.call_others()

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Refuse: items are never taken away from a worker."""
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker that has ended or is lost; its remaining items go back to the pool.

        Returns:
            The item in which the worker was lost, unless that item is run again.
        """
        hand = self._hands.pop(node)
        running = self._crew.running(node)
        units: dict[int, Unit] = {}
        for node_id, unit in hand.pending.items():
            if node_id != running:
                rest = Unit(unit.group, [], unit.model or self._crew.model(node), unit.avoid)
                units.setdefault(id(unit), rest).ids.append(node_id)
        lost = None
        if running in hand.pending:
            assert running is not None
            if self._crew.rerun(node, running):
                group = hand.pending[running].group
                again = Unit(group, [running], self._crew.model(node), self._crew.place(node))
                self._put_back([again])
            else:
                self.left -= 1
                lost = running
        self._put_back(units.values())
        self.call_others()
        return lost

    def _put_back(self, units: Iterable[Unit]) -> None:
        self._pool.extendleft(reversed(list(units)))

    def call_others(self) -> None:
        """Give what was put back to waiting workers; start others if all workers are ending."""
        self.schedule()
        asking = (node for node in self._hands if not node.shutting_down and self._crew.fit(node))
        if self._pool and next(asking, None) is None:
            self._crew.recruit(len(self._pool))

    def _give(self, node: Any, least: int = _MIN_ITEMS) -> None:
        """Give a worker units until it has ``least`` items; end it if the pool has none for it."""
        hand = self._hands[node]
        while not node.shutting_down and self._crew.fit(node) and len(hand.pending) < least:
            unit = self._next_unit(node, hand)
            if unit is None:
                # A worker without items stays, because others may lose theirs.
                if hand.pending and least == _MIN_ITEMS:
                    node.shutdown()
                return
            try:
                node.send_runtest_some([hand.index[node_id] for node_id in unit.ids])
            except OSError:  # the worker is lost, which pytest-xdist is about to report
                self._put_back([unit])
                return
            hand.pending |= dict.fromkeys(unit.ids, unit)

    def _next_unit(self, node: Any, hand: _Hand) -> Unit | None:
        """Take the first suitable unit from the pool, or the part that the worker has collected."""
        for place, unit in enumerate(self._pool):
            if not self._suits(unit, node):
                continue
            own = [node_id for node_id in unit.ids if node_id in hand.index]
            if not own:
                continue
            del self._pool[place]
            if len(own) < len(unit.ids):
                rest = [node_id for node_id in unit.ids if node_id not in hand.index]
                self._pool.insert(place, Unit(unit.group, rest, unit.model, unit.avoid))
            return Unit(unit.group, own, unit.model, unit.avoid)
        return None

    def _suits(self, unit: Unit, node: Any) -> bool:
        """Return whether a worker may have a unit: not while another worker suits it better."""
        crew = self._crew
        if unit.avoid is None and not unit.model:
            return True
        others = [
            other
            for other in self._hands
            if other is not node and crew.fit(other) and not other.shutting_down
        ]
        if unit.avoid == crew.place(node) and any(
            crew.place(other) != unit.avoid for other in others
        ):
            return False
        mine = crew.model(node)
        if unit.model and mine and mine != unit.model:
            return all(crew.model(other) != unit.model for other in others)
        return True
