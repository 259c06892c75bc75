"""Which GPU of a Ray cluster a worker gets: none that cannot be used, and none of a dead node."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuenergy.fleet import ray_gateway


class LostError(Exception):
    """Of an actor that never ran."""


class FakeRay:
    """As much of the module `ray` as placing needs; ``places`` are taken one after the other."""

    exceptions = SimpleNamespace(RayActorError=LostError)

    def __init__(self, *places: tuple[str, int] | None) -> None:
        self.places = list(places)
        self.preferred: list[str | None] = []
        self.killed: list[Any] = []

    def remote(self, **_: Any) -> Any:
        def options(scheduling_strategy: str | None) -> Any:
            self.preferred.append(scheduling_strategy)
            node_and_gpu = SimpleNamespace(remote=lambda: None)
            return SimpleNamespace(remote=lambda: SimpleNamespace(node_and_gpu=node_and_gpu))

        return lambda _kind: SimpleNamespace(options=options)

    def get(self, _: Any) -> tuple[str, int]:
        place = self.places.pop(0)
        if place is None:
            raise LostError
        return place

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Ray itself, and no pauses."""
    monkeypatch.setattr(ray_gateway, "_strategy", lambda node: node)
    monkeypatch.setattr(ray_gateway, "_PAUSE_S", 0)


def placed(ray: FakeRay, *, device: str = "auto", avoid: str = "") -> int:
    """The number of the GPU that the worker is told."""
    options = Namespace(device=device, node="n1", avoid=avoid)
    return ray_gateway._place_actor(ray, options)[1]


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("emulated:h200x4", 3)])
def test_a_real_gpu_is_the_only_one_that_its_worker_sees(device, number):
    assert placed(FakeRay(("n1", 3)), device=device) == number


def test_a_gpu_that_cannot_be_used_is_held_until_another_is_found():
    ray = FakeRay(("n1", 0), ("n1", 2), ("n1", 1))
    assert placed(ray, device="emulated:h200x3", avoid="n1:0,n1:2") == 1
    assert len(ray.killed) == 2


def test_another_node_is_tried_where_the_preferred_one_has_died():
    ray = FakeRay(None, ("n2", 0))
    assert placed(ray) == 0
    assert ray.preferred == ["n1", None]


def test_a_cluster_that_keeps_losing_actors_is_given_up():
    with pytest.raises(LostError):
        placed(FakeRay(*[None] * 20))
