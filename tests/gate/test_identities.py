"""Items of a run that could not be distinguished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.gate import Identities, shared_identities
from pytest_gpuenergy.record import Identity
from pytest_gpuenergy.support import InputError

Make = Callable[..., Any]
NAME = Identity("scale", "scale", "450W", "hot")


@pytest.mark.parametrize("place", range(4))
def test_workload_label_cap_and_cache_tell_items_apart(place: int) -> None:
    identities = Identities()
    identities.assign(NAME, "a")
    identities.assign(Identity(*NAME[:place], "another", *NAME[place + 1 :]), "b")


def test_an_item_that_runs_again_keeps_its_identity(measured: Make) -> None:
    earlier = measured(1)
    identities = Identities([earlier])
    for _ in range(2):
        identities.assign(earlier.identity, earlier.node_id)


def test_a_second_item_is_refused() -> None:
    identities = Identities()
    identities.assign(NAME, "test_a.py::test_x")
    with pytest.raises(InputError) as error:
        identities.assign(NAME, "test_b.py::test_y")
    assert str(error.value) == (
        "test_a.py::test_x and test_b.py::test_y would both be recorded as scale-scale-450W, which "
        "would make them indistinguishable: give energy_benchmark a label= of its own in each."
    )


def test_an_item_that_was_renamed_before_a_run_is_resumed_is_refused(measured: Make) -> None:
    earlier = measured(1)
    with pytest.raises(InputError, match="If the test was renamed, run without --gpuenergy-resume"):
        Identities([earlier]).assign(earlier.identity, "test_b.py::test_y")


def test_each_item_of_a_report_that_shares_an_identity_is_told(measured: Make) -> None:
    items = [measured(1, node_id=name) for name in "abc"]
    assert shared_identities([measured(2), *items[:1], measured(1, 4)]) == []
    first, second = shared_identities([*items, measured(2)])
    assert first.startswith("a and b were both recorded as case1-k01-450W, ")
    assert second.startswith("a and c were both recorded as case1-k01-450W, ")
