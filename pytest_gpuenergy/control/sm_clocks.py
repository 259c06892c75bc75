"""The SM clocks to which a card can be locked, and the clocks that ``--smclock`` names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuenergy.control.option_words import option_words
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import DeviceError, InputError, SetpointError

STEPS = 5
"""The number of clocks that ``all`` stands for."""

CURRENT_CLOCKS = "current"
"""The word that leaves the clocks as they are."""

_MEGAHERTZ = re.compile(r"([0-9]{1,5}) ?MHz", re.ASCII | re.IGNORECASE)
_WORD = re.compile(rf"current|all|(?i:{_MEGAHERTZ.pattern})", re.ASCII)


def supported_clocks(gpu: Gpu) -> tuple[int, ...]:
    """Return the SM clocks in MHz that the card supports with its fastest memory clock, ascending.

    Raises:
        DeviceError: the card does not report them, so its clocks cannot be locked.
    """
    nvml = gpu.nvml
    try:
        memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(gpu.handle), default=0)
        reported = nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu.handle, memory_mhz)
    except nvml.NVMLError as error:
        raise DeviceError(
            f"{gpu.name} does not report which SM clocks it supports ({error}): use --smclock "
            "current."
        ) from None
    clocks = tuple(sorted({int(mhz) for mhz in reported}))
    if not clocks:
        raise DeviceError(f"{gpu.name} supports no choice of SM clocks: use --smclock current.")
    return clocks


def clock_words(text: str) -> list[str]:
    """Return the words of ``--smclock``; blanks around the commas are allowed.

    Raises:
        InputError: there is no word, or a word is not valid for any card.
    """
    return option_words(
        text,
        "--smclock",
        noun="clock",
        examples="1500MHz, all or current",
        pattern=_WORD,
        forms="megahertz such as 1500MHz",
    )


def resolve_clocks(text: str, clocks: Sequence[int]) -> dict[str, list[int | None]]:
    """Return the clocks in MHz that each word of ``--smclock`` names; None for ``current``.

    Args:
        text: the words, separated by commas: ``1500MHz``, ``all``, ``current``.
        clocks: the clocks that the card supports, ascending.

    Raises:
        InputError: a word is not understood, or the card does not support a clock.
    """
    named: dict[str, list[int | None]] = {}
    for word in clock_words(text):
        if word == CURRENT_CLOCKS:
            named[word] = [None]
        elif word == "all":
            named[word] = [*even_steps(clocks)]
        else:
            named[word] = [resolve_clock(word, clocks, context="--smclock")]
    return named


def resolve_clock(text: str, clocks: Sequence[int], *, context: str) -> int:
    """Return the clock in MHz that a single word names; the unit may be left out.

    Args:
        text: the word, such as ``1500MHz`` or ``1500``.
        clocks: the clocks that the card supports, ascending.
        context: the option or command before the word, for messages.

    Raises:
        InputError: the word is not understood, or the card does not support the clock.
    """
    word = text.strip()
    match = _MEGAHERTZ.fullmatch(f"{word}MHz" if word.isdecimal() else word)
    if match is None:
        raise InputError(f"{context} {text!r} is not understood: give megahertz such as 1500MHz.")
    if problem := _problem(int(match[1]), clocks):
        raise InputError(f"{context} {word}: {problem}.")
    return int(match[1])


def even_steps(clocks: Sequence[int]) -> list[int]:
    """Return five supported clocks, spaced as evenly as possible; all of them if there are fewer.

    Args:
        clocks: the clocks that the card supports, ascending.
    """
    if len(clocks) <= STEPS:
        return [*clocks]
    low, high = clocks[0], clocks[-1]
    wanted = (low + (high - low) * step / (STEPS - 1) for step in range(STEPS))
    chosen = (min(clocks, key=lambda mhz: (abs(mhz - exact), mhz)) for exact in wanted)
    return [*dict.fromkeys(chosen)]


def refuse_unsupported(gpu: Gpu, clock_mhz: int) -> None:
    """Refuse a clock that the card does not support: NVML would silently choose another clock.

    Raises:
        SetpointError: the card does not support the clock.
    """
    try:
        problem = _problem(clock_mhz, supported_clocks(gpu))
    except DeviceError as error:
        raise SetpointError(str(error)) from None
    if problem:
        raise SetpointError(f"The SM clocks of {gpu.name} cannot be locked: {problem}.")


def _problem(clock_mhz: int, clocks: Sequence[int]) -> str:
    """Return a clause that says why a card cannot be locked to a clock, or an empty string."""
    if clock_mhz in clocks:
        return ""
    nearest = sorted(sorted(clocks, key=lambda mhz: abs(mhz - clock_mhz))[:2])
    near = " and ".join(f"{mhz} MHz" for mhz in nearest)
    return (
        f"{clock_mhz} MHz is none of the {len(clocks)} clocks from {clocks[0]} MHz to "
        f"{clocks[-1]} MHz that this GPU supports, of which {near} are nearest"
    )
