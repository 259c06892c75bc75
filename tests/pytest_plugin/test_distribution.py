"""The scheduler of pytest-xdist's workers: what each gets, and who gets what one leaves behind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given

from pytest_gpuenergy.pytest_plugin import WorkloadScheduling


@dataclass(eq=False)
class Node:
    """A worker that notes what it is told."""

    name: str
    model: str = "H200"
    fit: bool = True
    shutting_down: bool = False
    queue: list[int] = field(default_factory=list)
    running: str | None = None
    broken: bool = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        if self.broken:
            raise OSError("cannot send (already closed?)")
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Crew:
    """What is known of the workers; ids are ``group/item``."""

    def __init__(self) -> None:
        self.live: set[Node] = set()
        self.coming = 0
        self.put_off: set[tuple[Node, str]] = set()
        self.lost: set[str] = set()
        self.recruited = 0

    def fit(self, node: Node) -> bool:
        return node.fit

    def model(self, node: Node) -> str:
        return node.model

    def place(self, node: Node) -> Hashable:
        return node.name

    def group(self, node_id: str) -> str | None:
        return node_id.partition("/")[0] if "/" in node_id else None

    def running(self, node: Node) -> str | None:
        return node.running

    def deferred(self, node: Node, node_id: str) -> bool:
        return (node, node_id) in self.put_off

    def rerun(self, _node: Node, node_id: str) -> bool:
        again = node_id not in self.lost
        self.lost.add(node_id)
        return again

    def alive(self) -> bool:
        return bool(self.live)

    def starting(self) -> bool:
        return self.coming > 0

    def recruit(self, most: int) -> None:
        self.recruited += most


class Run:
    """A scheduler with its workers."""

    def __init__(self, *nodes: Node, durations_s: dict[str, float] | None = None) -> None:
        self.crew = Crew()
        self.scheduler = WorkloadScheduling(self.crew, durations_s or {}, eager=False)
        self.items: dict[Node, list[str]] = {}
        self.done: list[tuple[str, str]] = []
        self.crew.coming = len(nodes)
        for node in nodes:
            self.scheduler.add_node(node)
            self.crew.live.add(node)
        self.crew.coming = 0

    def collect(self, node: Node, items: Sequence[str]) -> None:
        self.items[node] = list(items)
        self.scheduler.add_node_collection(node, self.items[node])
        if self.scheduler.collection_is_completed:
            self.scheduler.schedule()

    def has(self, node: Node) -> list[str]:
        return [self.items[node][index] for index in node.queue]

    def step(self, node: Node) -> bool:
        """Have a worker run an item, as soon as it knows what comes next; False if it cannot."""
        if not node.queue or (len(node.queue) < 2 and not node.shutting_down):
            return False
        index = node.queue.pop(0)
        item = self.items[node][index]
        if node.fit:
            self.done.append((item, node.name))
        else:
            self.crew.put_off.add((node, item))
        self.scheduler.mark_test_complete(node, index)
        return True

    def finish(self, *nodes: Node) -> None:
        """Run everything, by turns."""
        while sum(self.step(node) for node in nodes if node in self.crew.live):
            pass

    def lose(self, node: Node) -> str | None:
        self.crew.live.discard(node)
        if node.queue and (len(node.queue) > 1 or node.shutting_down):
            node.running = self.items[node][node.queue[0]]
        return self.scheduler.remove_node(node)


ITEMS = [f"{group}/{item}" for group in "abcd" for item in range(3)]


def pair(items: Sequence[str], **of_first: bool) -> tuple[Run, Node, Node]:
    """A run with two workers that have collected the same items."""
    one, two = Node("gw0", **of_first), Node("gw1")
    run = Run(one, two)
    for node in (one, two):
        run.collect(node, items)
    return run, one, two


def test_each_group_goes_to_one_worker():
    run, one, two = pair(ITEMS)
    run.finish(one, two)
    assert sorted(item for item, _ in run.done) == ITEMS
    boards = {item[0]: {by for other, by in run.done if other[0] == item[0]} for item in ITEMS}
    assert all(len(names) == 1 for names in boards.values())
    assert {name for names in boards.values() for name in names} == {"gw0", "gw1"}
    assert run.scheduler.tests_finished


def test_the_longest_group_comes_first_if_durations_are_known():
    first, later = Node("gw0"), Node("gw0")
    run = Run(first, durations_s={"b/0": 1.0, "c/1": 60.0})
    run.collect(first, ITEMS)
    assert run.has(first)[0] == "c/0"
    run = Run(later)
    run.collect(later, ITEMS)
    run.finish(later)
    assert [item for item, _ in run.done] == ITEMS


def test_what_a_lost_worker_has_left_is_run_by_others_once():
    run, one, two = pair(ITEMS)
    run.step(one)
    assert run.lose(one) is None
    run.finish(two)
    assert sorted(item for item, _ in run.done) == ITEMS
    assert run.scheduler.left == 0


def test_a_second_loss_in_an_item_is_its_end():
    run, one, two = pair(["a/0"])
    first, second = (one, two) if one.queue else (two, one)
    assert run.lose(first) is None
    assert run.has(second) == ["a/0"]
    second.shutting_down = True
    assert run.lose(second) == "a/0"
    assert run.scheduler.left == 0


def test_the_item_in_which_a_worker_was_lost_is_run_elsewhere():
    run, one, two = pair(["a/0", "b/0", "b/1"])
    lost, other = (one, two) if "a/0" in run.has(one) else (two, one)
    run.lose(lost)
    again = Node(lost.name)
    run.scheduler.add_node(again)
    run.crew.live.add(again)
    run.collect(again, ["a/0", "b/0", "b/1"])
    run.finish(again, other)
    assert ("a/0", other.name) in run.done


def test_what_an_unfit_worker_puts_off_is_run_by_others_but_not_its_plain_items():
    run, one, two = pair([*ITEMS, "plain"])
    one.fit = False
    run.finish(one, two)
    assert sorted(item for item, _ in run.done) == sorted([*ITEMS, "plain"])
    assert {by for _, by in run.done} == {"gw1"}
    assert one.shutting_down


def test_another_worker_is_called_when_all_are_ending():
    run, one, two = pair(["a/0", "b/0"])
    run.step(two)  # it has ended the last of its items
    one.fit = False
    run.step(one)
    assert run.crew.recruited == 1


def test_what_only_one_model_has_collected_is_run_there():
    big, small = Node("gw0", "H200"), Node("gw1", "A30")
    run = Run(big, small)
    run.collect(big, ["a/200W", "a/700W"])
    run.collect(small, ["a/100W", "a/200W"])
    run.finish(big, small)
    assert ("a/700W", "gw0") in run.done
    assert ("a/100W", "gw1") in run.done
    assert len(run.done) == 3


def test_the_rest_of_a_group_stays_on_its_model():
    one, two, other = Node("gw0"), Node("gw1"), Node("gw2", "A30")
    run = Run(one, two, other)
    items = [f"{group}/{item}" for group in "abc" for item in range(3)]
    for node in (one, other, two):
        run.collect(node, items)
    group = run.has(one)[0][0]
    run.step(one)
    run.lose(one)
    run.finish(other, two)
    assert {by for item, by in run.done if item[0] == group} == {"gw0", "gw1"}


def test_a_worker_that_can_no_longer_be_told_anything_gets_nothing():
    run, one, two = pair(ITEMS, broken=True)
    run.lose(one)
    run.finish(two)
    assert sorted(item for item, _ in run.done) == ITEMS


def test_items_that_nobody_else_has_collected_do_not_hold_up_the_end():
    one, two = Node("gw0"), Node("gw1")
    run = Run(one, two)
    run.collect(one, ["a/0", "a/1"])
    run.collect(two, ["b/0"])
    run.lose(one)
    run.finish(two)
    assert run.scheduler.tests_finished
    assert run.scheduler.left == 2


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    events=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ssssfl")), max_size=60),
)
def test_nothing_is_lost_and_nothing_is_run_twice(sizes, events):
    items = [f"{group}/{item}" for group, size in enumerate(sizes) for item in range(size)]
    nodes = [Node(f"gw{number}") for number in range(4)]
    run = Run(*nodes)
    for node in nodes:
        run.collect(node, items)
    failed = []
    for number, event in events:
        node = nodes[number]
        if node not in run.crew.live:
            continue
        if event == "s":
            run.step(node)
        elif event == "f":
            node.fit = False
        else:
            failed += filter(None, [run.lose(node)])
    run.finish(*nodes)
    last = Node("gw9")
    run.scheduler.add_node(last)
    run.crew.live.add(last)
    run.collect(last, items)
    run.finish(*nodes, last)
    assert sorted([item for item, _ in run.done] + failed) == sorted(items)
    assert run.scheduler.left == 0
