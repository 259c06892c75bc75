"""The cap tables of GPUs, and the setpoints that ``--powercap`` and ``--smclock`` name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuenergy.control.option_words import option_words
from pytest_gpuenergy.control.setpoint import CURRENT, PowerLimits, Setpoint, read_limits
from pytest_gpuenergy.control.sm_clocks import (
    CURRENT_CLOCKS,
    clock_words,
    resolve_clocks,
    supported_clocks,
)
from pytest_gpuenergy.devices import Gpu
from pytest_gpuenergy.support import DeviceError, InputError, project_table

CAP_TABLES_W: dict[str, tuple[float, ...]] = {
    "RTX 3090": (100, 200, 300, 420, 450),
    "RTX 4090": (150, 200, 300, 400, 450),
    "Tesla V100-SXM2-16GB": (100, 150, 200, 250, 300),
    "A30": (100, 120, 140, 160, 165),
    "A100": (100, 200, 300, 400, 450),
}
"""Caps by the GPU's name; any other GPU gets five caps spaced evenly over its own constraints."""

STEPS = 5
"""The number of caps in the table of a GPU that has no table of its own."""

_WATTS = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)[wW]", re.ASCII)
_WORD = re.compile(rf"current|all|[0-9]+|{_WATTS.pattern}", re.ASCII)
_MAX_DIGITS = 20  # Python refuses to convert numbers of thousands of digits


@dataclass(frozen=True)
class NamedSetpoints:
    """The setpoints that ``--powercap`` and ``--smclock`` name on one card: each cap at each clock.

    Attributes:
        words: the setpoints of each word of ``--powercap``, and of each word of ``--smclock`` with
            the option's name in front.
        table_w: the card's cap table if a cap is from it; otherwise empty.
    """

    words: Mapping[str, Sequence[Setpoint]]
    table_w: tuple[float, ...] = ()

    @classmethod
    def of(cls, gpu: Gpu, text: str, root: Path, smclock: str = CURRENT_CLOCKS) -> NamedSetpoints:
        """Resolve the options' values; see `resolve_setpoints` and `resolve_clocks`.

        Args:
            gpu: the card, which is not read for ``current``.
            text: the value of ``--powercap``.
            root: the project's folder; cap tables defined there take precedence.
            smclock: the value of ``--smclock``.

        Raises:
            InputError: a word is not understood, or the project's tables are malformed.
            DeviceError: the card has no power management, or no choice of clocks.
        """
        caps = cls({text: [CURRENT]})
        if text != "current":
            limits = read_limits(gpu)
            table = cap_table(gpu.name, limits, project_tables(root))
            words = resolve_words(text, table, limits)
            from_table = any(setpoint.index for group in words.values() for setpoint in group)
            caps = cls(words, table if from_table else ())
        if clock_words(smclock) == [CURRENT_CLOCKS]:
            return caps
        clocks = resolve_clocks(smclock, supported_clocks(gpu))
        distinct_clocks = dict.fromkeys(mhz for group in clocks.values() for mhz in group)
        by_cap = {
            word: [replace(cap, sm_clock_mhz=mhz) for cap in group for mhz in distinct_clocks]
            for word, group in caps.words.items()
        }
        by_clock = {
            f"--smclock {word}": [
                replace(cap, sm_clock_mhz=mhz) for cap in caps.setpoints for mhz in group
            ]
            for word, group in clocks.items()
        }
        return cls({**by_cap, **by_clock}, caps.table_w)

    def with_labels(
        self,
        gpu: Gpu,
        labels: Sequence[str],
        root: Path,
        *,
        any_cap: bool = True,
        any_clock: bool = True,
    ) -> NamedSetpoints:
        """Add the setpoints that ``labels`` name, such as ``300W`` and ``450W-1500MHz``.

        Setpoints that this card cannot be set to are left out; they may belong to other cards.

        Args:
            gpu: the card.
            labels: the labels of setpoints.
            root: the project's folder, see `of`.
            any_cap: whether to add power caps that are not among those of these setpoints.
            any_clock: whether to add clocks that are not among those of these setpoints.
        """
        extended = self
        caps = {setpoint.power_limit_w for setpoint in self.setpoints}
        clocks = {setpoint.sm_clock_mhz for setpoint in self.setpoints}
        for label in labels:
            *before, last = label.split("-")
            cap, clock = last, CURRENT_CLOCKS
            if last.endswith("MHz"):
                cap, clock = (before[0] if before else "current"), last
            try:
                named = self.of(gpu, cap, root, clock)
            except (InputError, DeviceError):
                continue  # pytest will say that there is no such item
            (setpoint,) = named.setpoints
            fits = (any_cap or setpoint.power_limit_w in caps) and (
                any_clock or setpoint.sm_clock_mhz in clocks
            )
            if fits and not extended.setpoint_words(setpoint):
                words = {**extended.words, label: [setpoint]}
                extended = NamedSetpoints(words, extended.table_w or named.table_w)
        return extended

    @property
    def setpoints(self) -> list[Setpoint]:
        """The setpoints of all words, each once, in the order given."""
        return distinct(self.words)

    def left_out(self, setpoint: Setpoint) -> bool:
        """Return whether to leave out an unavailable setpoint, which only ``all`` has named."""
        if setpoint.unavailable is None:
            return False
        caps = [word for word in self.setpoint_words(setpoint) if not word.startswith("--smclock ")]
        return caps == ["all"]

    def setpoint_words(self, setpoint: Setpoint) -> list[str]:
        """Return the words that name ``setpoint``."""
        return [
            word
            for word, group in self.words.items()
            if any(named.label == setpoint.label for named in group)
        ]


def single_setpoint(gpu: Gpu, powercap: str, root: Path, smclock: str) -> Setpoint:
    """Return the only setpoint that the options of a search name; see `NamedSetpoints.of`.

    Raises:
        InputError: the options name several setpoints, or are not understood.
        DeviceError: the card has no power management, or no choice of clocks.
    """
    setpoints = NamedSetpoints.of(gpu, powercap, root, smclock).setpoints
    if len(setpoints) == 1:
        return setpoints[0]
    if len({setpoint.power_limit_w for setpoint in setpoints}) > 1:
        raise InputError(
            f"--powercap {powercap}: a search runs under a single power limit; give one, or "
            "current."
        )
    raise InputError(f"--smclock {smclock}: a search runs at a single clock; give one, or current.")


def cap_table(
    name: str, limits: PowerLimits, own: Mapping[str, Sequence[float]] | None = None
) -> tuple[float, ...]:
    """Return the caps of the GPU called ``name``, lowest first, in W.

    ``own`` holds the tables of the user's project, which take precedence over ours.
    """
    for tables in (own or {}, CAP_TABLES_W):
        for model, table in tables.items():
            # "A30" is not in "A300", nor "RTX 3090" in "RTX 3090 Ti".
            if re.search(rf"(?<![\w]){re.escape(model)}(?![\w])(?! (?:Ti|SUPER|Laptop))", name):
                return tuple(sorted(float(watts) for watts in table))
    step = (limits.max_w - limits.min_w) / (STEPS - 1)
    spaced = (round(limits.min_w + step * k, 1) for k in range(STEPS))
    return tuple(min(max(watts, limits.min_w), limits.max_w) for watts in spaced)


def cap_words(text: str) -> list[str]:
    """Return the words of ``--powercap``; blanks around the commas are allowed.

    Raises:
        InputError: there is no word, or a word is not valid for any card.
    """
    return option_words(
        text,
        "--powercap",
        noun="power cap",
        examples="1,300W, all or current",
        pattern=_WORD,
        forms="indices such as 1, watts such as 300W",
    )


def resolve_setpoints(text: str, table: Sequence[float], limits: PowerLimits) -> list[Setpoint]:
    """Return the setpoints that ``--powercap`` names, in the order given, without duplicates.

    Args:
        text: the words, separated by commas: ``1``..``5`` (index into the table), ``300W``,
            ``all``, ``current``.
        table: the caps in W, lowest first.
        limits: the card's constraints. Caps of the table outside them are marked unavailable.

    Raises:
        InputError: a word is not understood, or a cap given in W is outside the constraints.
    """
    return distinct(resolve_words(text, table, limits))


def resolve_words(
    text: str, table: Sequence[float], limits: PowerLimits
) -> dict[str, list[Setpoint]]:
    """Return the setpoints that each word of ``--powercap`` names; see `resolve_setpoints`."""
    named: dict[str, list[Setpoint]] = {}
    for word in cap_words(text):
        match = _WATTS.fullmatch(word)
        if word == "current":
            named[word] = [CURRENT]
        elif word == "all":
            named[word] = [_from_table(index, table, limits) for index in range(1, len(table) + 1)]
        elif match is not None:
            named[word] = [_in_watts(f"--powercap {word}", float(match[1]), table, limits)]
        elif len(word) < _MAX_DIGITS and 1 <= int(word) <= len(table):
            named[word] = [_from_table(int(word), table, limits)]
        else:
            caps = ", ".join(f"{watts:g} W" for watts in table)
            raise InputError(
                f"--powercap {word}: this GPU's table has the caps 1 to {len(table)} ({caps}); "
                f"write {word}W for watts."
            )
    return named


def resolve_cap(
    text: str, table: Sequence[float], limits: PowerLimits, *, context: str
) -> Setpoint:
    """Return the setpoint that a word of ``--powercap``, or a number of watts, names.

    Args:
        text: the word, such as ``3``, ``300W`` or ``300``. A number up to the length of the table
            is an index: no GPU can be limited to so few watts.
        table: the caps in W, lowest first.
        limits: the card's constraints.
        context: the option or command before the word, for messages.

    Raises:
        InputError: the word is not understood, names no single limit, or its limit is outside the
            constraints.
    """
    word = text.strip()
    match = _WATTS.fullmatch(word if word[-1:] in ("w", "W") else f"{word}W")
    if match is None:
        raise InputError(
            f"{context} {text!r} is not understood: give an index (1 to {len(table)}) or watts "
            "such as 300W."
        )
    if not (match[1] == word and word.isdecimal() and 1 <= int(word) <= len(table)):
        return _in_watts(f"{context} {word}", float(match[1]), table, limits)
    setpoint = _from_table(int(word), table, limits)
    if setpoint.unavailable:
        raise InputError(f"{context} {word}: {setpoint.unavailable}.")
    return setpoint


def distinct(named: Mapping[str, Sequence[Setpoint]]) -> list[Setpoint]:
    """Return the setpoints of all words, each once, in the order given."""
    by_label: dict[str, Setpoint] = {}
    for setpoint in (setpoint for group in named.values() for setpoint in group):
        by_label.setdefault(setpoint.label, setpoint)
    return list(by_label.values())


def _in_watts(context: str, watts: float, table: Sequence[float], limits: PowerLimits) -> Setpoint:
    if not limits.min_w <= watts <= limits.max_w:
        raise InputError(f"{context}: this GPU accepts {limits.min_w:g} W to {limits.max_w:g} W.")
    return Setpoint(watts, index=table.index(watts) + 1 if watts in table else None)


def _from_table(index: int, table: Sequence[float], limits: PowerLimits) -> Setpoint:
    watts = table[index - 1]
    if limits.min_w <= watts <= limits.max_w:
        return Setpoint(watts, index=index)
    return Setpoint(
        watts,
        index=index,
        unavailable=f"{watts:g} W is outside this card's constraints of "
        f"{limits.min_w:g} W to {limits.max_w:g} W",
    )


def project_tables(root: Path) -> dict[str, tuple[float, ...]]:
    """Return the cap tables, in W, from ``[tool.gpuenergy.powercaps]`` in pyproject.toml.

    The file is the first found in ``root`` and the folders above it.

    For example ``"NVIDIA L4" = [40, 50, 60, 65, 72]``.

    Raises:
        InputError: the file or a table is malformed.
    """
    path, tables = project_table(root, "powercaps", "lists of watts")
    for name, table in tables.items():
        numbers = isinstance(table, list) and all(
            isinstance(watts, int | float) and not isinstance(watts, bool) and 0 < watts < 1e5
            for watts in table
        )
        if not numbers or not table:
            raise InputError(
                f"{path}: the power caps of {name!r} must be a list of positive watts, "
                f"not {table!r}."
            )
    return {name: tuple(map(float, table)) for name, table in tables.items()}
