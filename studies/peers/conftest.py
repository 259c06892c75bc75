"""Options of the benches in this folder."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("bench").addoption(
        "--tf32",
        action="store_true",
        help="Also measure cuDNN with TensorFloat-32 products, with a separate error bound",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tf32: run with --tf32 only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--tf32"):
        return
    left_out = [item for item in items if item.get_closest_marker("tf32")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
