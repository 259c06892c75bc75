"""The order of the tests on a real GPU."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that run pytest or other programs come first.

    To them, this process is a stranger as soon as it has used the GPU itself.
    """
    items.sort(key=lambda item: "pytester" not in getattr(item, "fixturenames", ()))
