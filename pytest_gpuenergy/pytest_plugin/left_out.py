"""Which contenders were left out of which matrix products, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_ITEM = re.compile(r"\[(gemm_[^-\]]+)-(\w+)-")
_OF_ONE_PRODUCT = re.compile(r"[0-9_=]")
"""In words that differ from one product to another."""


def left_out_lines(outcomes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """A line for each contender and each kind of reason for which its items were skipped.

    Reasons are of one kind if they differ only in names, sizes and numbers; the first one is given.

    Args:
        outcomes: reports of items by their outcome, as a terminal reporter's ``stats``.
    """
    everything = [one for reports in outcomes.values() for one in _calls(reports)]
    products: dict[str, set[str]] = {}
    for _, product, contender in everything:
        products.setdefault(contender, set()).add(product)
    kinds: dict[tuple[str, str], tuple[str, set[str]]] = {}
    for report, product, contender in _calls(outcomes.get("skipped", ())):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        alike = " ".join(word for word in reason.split() if not _OF_ONE_PRODUCT.search(word))
        kinds.setdefault((contender, alike), (reason, set()))[1].add(product)
    for contender, every in products.items():
        for (one, _), (reason, without) in kinds.items():
            if one == contender:
                share = "all" if len(without) == len(every) else f"{len(without)} of"
                where = f" in {share} {len(every)} products" if len(every) > 1 else ""
                yield f"{contender}{where}: {reason}"


def _calls(reports: Iterable[Any]) -> Iterator[tuple[Any, str, str]]:
    """The reports of items that ran, with their product and contender."""
    for report in reports:
        if getattr(report, "when", None) == "call" and (found := _ITEM.search(report.nodeid)):
            yield report, found[1], found[2]
