"""The modes and layouts in which a command line wants its workloads: its variants.

They map an option of a workload, such as ``mode``, to the values that are wanted, in order. Options
that are not in it stay as each workload has them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.convolutions import CONV_LAYOUTS, Conv2d
from pytest_gpuenergy.workloads.modes import MODES, SumsOfProducts
from pytest_gpuenergy.workloads.workload import Workload

Variants: TypeAlias = Mapping[str, Sequence[str | bool]]

_VALUES: Variants = {
    "mode": MODES,
    "layout": CONV_LAYOUTS,
    "bias": (False, True),
    "relu": (False, True),
}
"""All values of the options, the usual one first."""


def parse_variants(
    mode: str | None,
    layout: str | None = None,
    *,
    bias: bool = False,
    relu: bool = False,
    option: str = "mode",
) -> Variants:
    """Return the variants of the options ``--mode``, ``--layout``, ``--bias`` and ``--relu``.

    Args:
        mode: modes, separated by commas; None if the option is not given.
        layout: layouts, separated by commas; None if the option is not given.
        bias: whether a bias is wanted.
        relu: whether a ReLU is wanted.
        option: the name of the option for modes, if it is another.

    Raises:
        InputError: a mode or layout is unknown, or an option names none.
    """
    variants: dict[str, Sequence[str | bool]] = {}
    for name, said, text in (("mode", option, mode), ("layout", "layout", layout)):
        if text is None:
            continue
        words = [word.strip() for word in text.split(",")]
        if unknown := [word for word in words if word not in _VALUES[name]]:
            choices = ", ".join(map(str, _VALUES[name]))
            raise InputError(f"--{said} {unknown[0]!r:.40} is not known: choose from {choices}.")
        variants[name] = tuple(dict.fromkeys(words))
    variants |= {"bias": (True,)} if bias else {}
    return variants | ({"relu": (True,)} if relu else {})


def variants_named(text: str) -> Variants:
    """Return the variants that a text such as an item's id names, besides the usual values.

    A mode is named by a word that equals it: ``tf32`` does not name ``3xtf32``.
    """
    words = set(re.findall("[a-z0-9]+", text.casefold()))
    return {
        option: [
            value
            for value in values
            if value in (values[0], *words) or (value is True and option in words)
        ]
        for option, values in _VALUES.items()
    }


def in_variants(workloads: Iterable[Workload], variants: Variants) -> tuple[Workload, ...]:
    """Return each workload in all variants, each once.

    Raises:
        InputError: a workload has no such option, or another value of it already.
    """
    found: dict[Workload, None] = {}
    for workload in workloads:
        for values in itertools.product(*variants.values()):
            options = dict(zip(variants, values, strict=True))
            found[_in_variant(workload, options)] = None
    return tuple(found)


def _in_variant(workload: Workload, options: Mapping[str, str | bool]) -> Workload:
    if not options:
        return workload
    if not isinstance(workload, SumsOfProducts):
        known: tuple[str, ...] = ()
    else:
        known = tuple(_VALUES) if isinstance(workload, Conv2d) else ("mode",)
    for option, value in options.items():
        if option not in known:
            raise InputError(
                f"{workload.name} is of the kind {workload.kind}, which has no --{option}: leave "
                "out one of the two."
            )
        if (own := getattr(workload, option)) not in (_VALUES[option][0], value):
            raise InputError(
                f"{workload.name} has the {option} {own}, and --{option} names {value}: leave out "
                "one of the two."
            )
    assert isinstance(workload, SumsOfProducts)
    return workload.varied(**options)


def is_in_variants(parameters: Mapping[str, object], variants: Variants) -> bool:
    """Return whether a workload's parameters, as in a report, are of the variants."""
    return all(
        str(parameters.get(option, _text(_VALUES[option][0]))).lower() in map(_text, values)
        for option, values in variants.items()
    )


def _text(value: str | bool) -> str:
    return value if isinstance(value, str) else str(int(value))
