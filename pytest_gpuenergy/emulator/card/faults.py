"""Faults on demand: what can go wrong on an emulated card, when, and which process asked for it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from pytest_gpuenergy.support import InputError, shown, start_ticks

# What the file of a card may hold.
_Whole = Annotated[int, Meta(ge=0, le=1 << 62)]
_Name = Annotated[str, Meta(max_length=200)]


@dataclass(frozen=True)
class Owner:
    """The process that put a load or a fault on a card.

    Attributes:
        pid: the number of the process.
        started: its start time in clock ticks, because numbers are reused.
    """

    pid: Annotated[int, Meta(ge=0, le=1 << 31)]
    started: _Whole

    @classmethod
    def me(cls) -> Owner:
        """Return this process."""
        return _process_owner(os.getpid())

    def alive(self) -> bool:
        """Return whether the process still runs; a zombie does not."""
        return start_ticks(self.pid) == self.started


@functools.cache  # by number, so that a forked child is not taken for its parent
def _process_owner(pid: int) -> Owner:
    return Owner(pid, start_ticks(pid) or 0)


FAULTS_VARIABLE = "GPUENERGY_EMULATED_FAULTS"

ERRORS = {
    "no_permission": "NVML_ERROR_NO_PERMISSION",
    "not_supported": "NVML_ERROR_NOT_SUPPORTED",
    "gpu_is_lost": "NVML_ERROR_GPU_IS_LOST",
    "unknown": "NVML_ERROR_UNKNOWN",
    "invalid_argument": "NVML_ERROR_INVALID_ARGUMENT",
    "driver_not_loaded": "NVML_ERROR_DRIVER_NOT_LOADED",
    "lib_rm_version_mismatch": "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
}
"""The NVML constant of each error, by its name in a fault."""

ALIASES = {
    "init": "nvmlInit",
    "power_limit": "nvmlDeviceSetPowerManagementLimit",
    "clock_lock": "nvmlDeviceSetGpuLockedClocks",
    "clock_reset": "nvmlDeviceResetGpuLockedClocks",
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "power": "nvmlDeviceGetPowerUsage",
    "samples": "nvmlDeviceGetSamples",
    "fields": "nvmlDeviceGetFieldValues",
    "temperature": "nvmlDeviceGetTemperature",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
}

ANYTHING = "any"
"""The function name of an error that strikes every function of a handle, as a lost GPU does."""

LAUNCH = "launch"
"""The function name of an error that strikes launches of kernels instead of NVML."""

EVENTS = {
    "counter_reset": (),
    "counter_stuck": (),
    "field_missing": ("field",),
    "limit_changed": ("power_w",),
    "enforced_limit": ("power_w",),
    "clock_locked": ("clock_mhz",),
    "lock_lost": (),
    "lock_ignored": (),
    "below_lock": ("percent",),
    "thermal_throttle": (),
    "power_brake": (),
    "foreign_process": ("pid",),
    "slower": ("percent",),
    "clock_states": (),
    "mig": (),
}
"""Faults other than errors, with the options that each requires."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong on a card.

    Attributes:
        kind: ``error``, or one of `EVENTS`.
        function: the function that an error strikes: an NVML function, `ANYTHING` or `LAUNCH`.
        error: the error, one of `ERRORS`.
        after_calls: the calls of the function that still succeed before an error.
        after_s: the virtual seconds until the fault begins.
        lasts_s: the virtual seconds that it lasts, or None if it lasts until it is withdrawn.
        power_w: the limit that ``limit_changed`` and ``enforced_limit`` set, or the power that the
            process of ``foreign_process`` draws.
        pid: the number of the process of ``foreign_process``.
        percent: how much longer every kernel takes under ``slower``, at the same power, or how far
            ``below_lock`` keeps the SMs below the clock to which they are locked.
        clock_mhz: the clock to which somebody else locks the SMs under ``clock_locked``.
        field: the number of the field that ``field_missing`` removes.
    """

    kind: _Name
    function: _Name = ""
    error: str = ""
    after_calls: int = 0
    after_s: float = 0.0
    lasts_s: float | None = None
    power_w: float | None = None
    pid: int | None = None
    percent: float | None = None
    clock_mhz: int | None = None
    field: int | None = None

    @classmethod
    def of(cls, what: str, value: object = True) -> Fault:
        """Return the fault that one entry of ``GPUENERGY_EMULATED_FAULTS`` describes.

        Args:
            what: one of `EVENTS`, `ALIASES`, ``driver_mismatch``, ``any``, ``launch``, or an NVML
                function's name.
            value: for a function, the name of the error or a mapping with ``error`` and other
                attributes; for an event, True or a mapping of attributes.

        Raises:
            InputError: there is no such fault, or an attribute is missing or has the wrong type.
        """
        if what == "driver_mismatch":
            given = value if isinstance(value, Mapping) else {}
            what, value = "init", {**given, "error": "lib_rm_version_mismatch"}
        if isinstance(value, str):
            value = {"error": value}
        elif value is True:
            value = {}
        if not isinstance(value, Mapping):
            raise InputError(
                f"The fault {shown(what)} takes an error's name, true or an object, "
                f"not {shown(value)}."
            )
        options = {str(key): entry for key, entry in value.items()}
        if what in EVENTS:
            _check_options(what, options, EVENTS[what])
            fault = cls(kind=what, **options)
            if fault.error or fault.after_calls:
                raise InputError(f"The fault {shown(what)} takes neither error nor after_calls.")
            return fault
        function = ALIASES.get(what, what)
        if not (function.startswith("nvml") or function in (ANYTHING, LAUNCH)):
            names = ", ".join([*EVENTS, *ALIASES, ANYTHING, LAUNCH, "driver_mismatch"])
            raise InputError(
                f"There is no fault {shown(what)}: choose an NVML function's name or one of "
                f"{names}."
            )
        _check_options(what, options, ("error",))
        if options["error"] not in ERRORS:
            raise InputError(
                f"There is no error {shown(options['error'])} for the fault {shown(what)}: "
                f"choose one of {', '.join(ERRORS)}."
            )
        return cls(kind="error", function=function, **options)

    def check(self) -> None:
        """Check a fault that comes from a file.

        Raises:
            ValueError: there is no such fault, or a number is missing or out of range.
        """
        if self.kind not in EVENTS and (self.kind, self.error in ERRORS) != ("error", True):
            raise ValueError(f"fault {self.kind} {self.error}")
        for name, (_, least, most) in _RANGES.items():
            value = getattr(self, name)
            needed = name in EVENTS.get(self.kind, ())
            if needed if value is None else not least <= value <= most:
                raise ValueError(f"{name} of a fault")


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Return the faults in a JSON object, such as ``{"power_limit": "no_permission"}``.

    A value may be a list, for several faults of that kind.

    Raises:
        InputError: it is not such an object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FAULTS_VARIABLE} is not JSON ({error}): {text[:200]!r}.") from None
    if not isinstance(content, dict):
        raise InputError(f"{FAULTS_VARIABLE} must be a JSON object of faults, not {text[:200]!r}.")
    return tuple(
        Fault.of(what, value)
        for what, values in content.items()
        for value in (values if isinstance(values, list) else [values])
    )


@dataclass
class ActiveFault:
    """A fault on a card, from its injection until it is withdrawn or its owner is gone."""

    identity: _Name
    owner: Owner
    fault: Fault
    begins_ns: _Whole
    ends_ns: _Whole | None
    calls_left: _Whole
    fired: bool = False

    def active(self, now_ns: int) -> bool:
        """Return whether the fault is in force at this virtual time."""
        return self.begins_ns <= now_ns and (self.ends_ns is None or now_ns < self.ends_ns)


LEAST_LIMIT_W = 1.0
"""The least power limit that a fault sets."""

# The kind, the least and the greatest value of each option that is a number.
_RANGES: dict[str, tuple[type[int] | type[float], float, float]] = {
    "after_s": (float, 0, 1e9),
    "lasts_s": (float, 0, 1e9),
    "power_w": (float, 0, 5e4),
    "percent": (float, 0, 1e5),
    "clock_mhz": (int, 1, 1e5),
    "after_calls": (int, 0, 2**31 - 1),
    "pid": (int, 0, 2**31 - 1),
    "field": (int, 0, 2**31 - 1),
}


def _check_options(what: str, options: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    """Check the options of a fault, except whether there is an error of that name."""
    names = {"error", *_RANGES}
    for name, value in options.items():
        if name not in names:
            raise InputError(
                f"The fault {shown(what)} has no option {shown(name)}: "
                f"choose from {', '.join(sorted(names))}."
            )
        if name == "error":
            good, kind = isinstance(value, str), "a name"
        else:
            number, least, most = _RANGES[name]
            if name == "power_w" and what in ("limit_changed", "enforced_limit"):
                least = LEAST_LIMIT_W
            good = type(value) in (int, number) and least <= value <= most
            whole = "whole " if number is int else ""
            kind = f"a {whole}number from {least:g} to {most:.10g}"
        if not good:
            raise InputError(f"The option {shown(name)} of the fault {shown(what)} must be {kind}.")
    for name in needed:
        if name not in options:
            raise InputError(f"The fault {shown(what)} needs the option {shown(name)}.")
