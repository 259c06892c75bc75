"""The GPU that the tests of a module share, and the order of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.opening import open_device


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    """The first real GPU."""
    with open_device("auto") as found:
        assert not found.emulated
        yield found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that run pytest or other programs come first.

    To them, this process is a stranger as soon as it has used the GPU itself.
    """
    items.sort(key=lambda item: "pytester" not in getattr(item, "fixturenames", ()))
