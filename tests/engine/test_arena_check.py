"""Checks of kernels that are correct at first; Python functions write the arenas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from pytest_gpuenergy.devices import GUARD_BYTES, Arena, HostArrays
from pytest_gpuenergy.engine import (
    ArenaCheck,
    cached_reference,
    check_again,
    falsified,
    seeded_arenas,
)
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

SIZE = 4096
DOUBLE = Contract(
    "double",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
)
Launch = Callable[["Launches", Any, Any], None]


@dataclass
class Launches:
    """Sets of buffers on which a function is launched; some have been before.

    Attributes:
        launch: gets this, and views of a set's x and y.
        arenas: of the workload.
        sets: how many.
        each: launches on each set at a time.
    """

    launch: Launch
    arenas: Mapping[str, Arena]
    sets: int = 3
    each: int = 4
    count: int = 0
    buffers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        images = {name: arena.image() for name, arena in self.arenas.items()}
        self.buffers = [
            {name: np.array(image) for name, image in images.items()} for _ in range(self.sets)
        ]
        for buffers in self.buffers:
            self.launch_on(buffers, 10 * self.each)

    def launch_on(self, buffers: dict[str, Any], times: int) -> None:
        for _ in range(times):
            x, y = (buffers[n][GUARD_BYTES:][: 4 * SIZE].view(np.float32) for n in ("x", "y"))
            self.launch(self, x, y)
            self.count += 1

    def relaunch(self, *, once: bool) -> Iterator[int]:
        y = self.arenas["y"]
        outputs = np.array(y.payload(y.image()))
        for buffers in self.buffers:
            if once:
                self.launch_on(buffers, self.each)
            y.payload(buffers["y"])[:] = outputs
            self.launch_on(buffers, 1 if once else self.each)
            for name, arena in self.arenas.items():
                arena.image(writable=True)[:] = buffers[name]
            yield self.count


def again(launch: Launch, sets: int = 3) -> Launches:
    """Check a kernel again, and return its launches."""
    with seeded_arenas(DOUBLE, seed=0) as arenas:
        reference = cached_reference(DOUBLE, 0)
        draw = np.random.default_rng(0)
        check = ArenaCheck(arenas, lambda: reference, DOUBLE.io.bounds, seed=0, draw=draw)
        launches = Launches(launch, arenas, sets)
        check_again(launches, check)
    return launches


def right(_: Launches, x: Any, y: Any) -> None:
    y[:] = 2 * x


def test_a_kernel_that_stays_right_passes():
    assert again(right).count > 100


def test_where_nothing_was_launched_nothing_is_checked():
    assert again(lambda *_: None, sets=0).count == 0


def test_what_changes_back_while_it_is_looked_at_is_a_fault(monkeypatch):
    monkeypatch.setattr(HostArrays, "begin_differing", lambda *_: lambda: [0])
    with pytest.raises(KernelFault, match="changed back while they were compared"):
        again(right)


def stops(launches: Launches, x: Any, y: Any) -> None:
    if launches.count < 110:
        right(launches, x, y)


def stops_for_one_set(launches: Launches, x: Any, y: Any) -> None:
    own = launches.buffers[1]["y"]
    if not (launches.count > 60 and np.shares_memory(own, y)):
        right(launches, x, y)


def remembers_its_buffers() -> Launch:
    seen = set()

    def launch(launches: Launches, x: Any, y: Any) -> None:
        if (address := y.ctypes.data) not in seen:
            right(launches, x, y)
        seen.add(address)

    return launch


def only_where_nothing_was_written(_: Launches, x: Any, y: Any) -> None:
    y[:] = np.where(np.isnan(y), 2 * x, y)


def only_where_it_looks_odd(launches: Launches, x: Any, y: Any) -> None:
    if not (np.abs(y) <= 20).all():
        right(launches, x, y)


def only_where_a_sample_is_wrong(launches: Launches, x: Any, y: Any) -> None:
    if y[0] != 2 * x[0] or y[-1] != 2 * x[-1]:
        right(launches, x, y)


def only_at_every_fourth_launch(launches: Launches, x: Any, y: Any) -> None:
    if launches.count % 4 == 0:
        right(launches, x, y)


def forgets_an_element(launches: Launches, x: Any, y: Any) -> None:
    end = SIZE - (launches.count > 110)
    y[:end] = 2 * x[:end]


def changes_an_input(launches: Launches, x: Any, y: Any) -> None:
    right(launches, x, y)
    if launches.count == 119:
        x[7] += 1


def writes_past_the_end(launches: Launches, x: Any, y: Any) -> None:
    right(launches, x, y)
    if launches.count == 100:
        launches.buffers[2]["y"][GUARD_BYTES + 4 * SIZE] = 0


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (stops, "4096 of 4096 elements of y .* never written"),
        (stops_for_one_set, "4096 of 4096 elements of y .* never written"),
        (remembers_its_buffers(), "4096 of 4096 elements of y .* never written"),
        (only_where_nothing_was_written, "elements of y .* are wrong"),
        (only_where_it_looks_odd, "elements of y .* are wrong"),
        (only_where_a_sample_is_wrong, "elements of y .* are wrong"),
        (only_at_every_fourth_launch, "elements of y .* are wrong"),
        (forgets_an_element, r"1 of 4096 elements of y \(first y\[4095\]\) is never written"),
        (changes_an_input, r"1 of 4096 elements of x \(first x\[7\]\) is changed"),
        (writes_past_the_end, "past the end of y"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_kernel_that_is_right_only_at_first_is_found(launch, words):
    with pytest.raises(
        KernelFault, match=rf"^Correct at first, wrong after \d+ launches: .*{words}"
    ):
        again(launch, sets=12)


VALUES = st.sampled_from(["float16", "float32", "float64", "int8", "uint8", "int32", "bool"])


@given(
    right=VALUES.flatmap(
        lambda dtype: arrays.arrays(
            dtype,
            st.integers(1, 50),
            elements={"allow_nan": False, "allow_infinity": False, "allow_subnormal": False}
            if dtype.startswith("float")
            else None,
        )
    ),
    seed=st.integers(0, 2**32),
)
def test_false_elements_are_far_off_and_finite(right, seed):
    false = falsified(right, np.random.default_rng(seed))
    assert false.dtype == right.dtype
    wide = right.astype(np.float64)
    changed = false != right
    assert changed.any()
    off = np.abs(false.astype(np.float64) - wide)[changed]
    largest = np.abs(wide).max()
    assert np.isfinite(false.astype(np.float64)).all()
    assert (off >= 0.24 * largest).all() or right.dtype.kind in "iub"


def test_most_elements_stay_right_and_none_leaves_their_range():
    right = np.random.default_rng(0).uniform(0.0, 3.0, 10_000).astype(np.float32)
    false = falsified(right, np.random.default_rng(0))
    assert 80 < (false != right).sum() < 125
    assert right.min() <= false.min() <= false.max() <= right.max()
