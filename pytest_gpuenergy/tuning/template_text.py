"""The text of a template's kernel: its constants, then files of ``cuda/``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

from pytest_gpuenergy.support import cuda_dir

Constant = int | bool | str
"""A number; a condition or a text for the preprocessor."""


def template_text(
    folder: str, constants: Mapping[str, Constant], texts: Sequence[str], head: Sequence[str] = ()
) -> str:
    """The whole text.

    Args:
        folder: in ``cuda/``.
        constants: by name.
        texts: files of ``folder``, without their suffix.
        head: lines before the constants.
    """
    lines = itertools.starmap(_definition, constants.items())
    return "\n".join([*head, *lines, "", *(_text(folder, name) for name in texts)])


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"#define {name} {int(value)}"
    if isinstance(value, str):
        return f"#define {name} {value}"
    return f"constexpr int {name} = {value};"


@functools.cache
def _text(folder: str, name: str) -> str:
    return (cuda_dir() / folder / f"{name}.cu").read_text()
