"""Keeps what each run of pytest within a test would find out again: half of what such a run takes.

The files of installed packages, the code of the same conftest in another folder, and the sources of
pytest that the traceback of an interrupted run quotes do not change while the tests run.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest._code import source
from _pytest.assertion import rewrite


class _KnownDistribution(PathDistribution):
    """A distribution whose files are read once."""

    entry_points = functools.cached_property(PathDistribution.entry_points.fget)
    files = functools.cached_property(PathDistribution.files.fget)
    metadata = functools.cached_property(PathDistribution.metadata.fget)


def keep_for_runs(patch: pytest.MonkeyPatch) -> None:
    """Patch what pytest calls in each run; all of it is private, and may be missing elsewhere."""
    patch.setattr(importlib.metadata, "distributions", _kept_distributions())
    patch.setattr(rewrite, "_rewrite_test", _kept_code(), raising=False)
    find = _kept_statements(source.getstatementrange_ast)
    patch.setattr("_pytest._code.code.getstatementrange_ast", find, raising=False)
    starts = functools.lru_cache(maxsize=256)(source.get_statement_startend2)
    patch.setattr(source, "get_statement_startend2", starts, raising=False)
    # For fixtures within decorators, all names of plugins are looked up: the run around it did so.
    look_up = "_pytest.fixtures.FixtureManager._lookup_in_type_dict"
    patch.setattr(look_up, lambda *_: None, raising=False)


def _kept_distributions() -> Callable[..., Iterator[Distribution]]:
    find, known = importlib.metadata.distributions, frozenset(sys.path)

    @functools.cache
    def kept(folder: str) -> list[Distribution]:
        return [
            _KnownDistribution(one._path) if type(one) is PathDistribution else one
            for one in find(path=[folder])
        ]

    def distributions(**wanted: Any) -> Iterator[Distribution]:
        if wanted:
            yield from find(**wanted)
        else:
            for folder in sys.path:  # tests add folders of their own, and change them
                yield from kept(folder) if folder in known else find(path=[folder])

    return distributions


def _kept_code() -> Callable[[Path, pytest.Config], tuple[os.stat_result, CodeType]]:
    compiled: dict[bytes, CodeType] = {}

    def rewritten(path: Path, config: pytest.Config) -> tuple[os.stat_result, CodeType]:
        status, text = path.stat(), path.read_bytes()
        if text not in compiled:
            tree = ast.parse(text, filename=str(path))
            rewrite.rewrite_asserts(tree, text, str(path), config)
            compiled[text] = compile(tree, str(path), "exec", dont_inherit=True)
        return status, _at(compiled[text], str(path))

    return rewritten


def _at(code: CodeType, path: str) -> CodeType:
    """The same code, as compiled from a file at ``path``."""
    constants = (_at(one, path) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(constants))


def _kept_statements(find: Callable[..., Any]) -> Callable[..., Any]:
    parse = functools.lru_cache(maxsize=32)(lambda text: ast.parse(text, "source", "exec"))

    def statement(line: int, text: source.Source, *, astnode: ast.AST | None = None) -> Any:
        return find(line, text, astnode=astnode or parse(str(text)))

    return statement
