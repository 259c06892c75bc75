"""Checks of parameters that someone has written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, Field
from typing import Any

from pytest_gpuenergy.support import InputError


def check_names(kind: str, known: Collection[Field[Any]], given: Collection[str]) -> None:
    """Check that all parameters without a default are given, and no others than the known ones.

    Raises:
        InputError: one is missing or unknown.
    """
    names = [field.name for field in known]
    missing = [f.name for f in known if f.default is MISSING and f.name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        wrong = f"{missing[0]} is missing" if missing else f"it does not take {unknown[0]!r:.40}"
        raise InputError(f"{kind} takes {', '.join(names)}; {wrong}.")
