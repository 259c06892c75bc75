"""Faults on demand: what can go wrong on an emulated card, when, and which process asked for it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pytest_gpuenergy.support import InputError, shown, start_ticks


@dataclass(frozen=True)
class Owner:
    """The process that put a load or a fault on a card.

    Attributes:
        pid: its number.
        started: its start time in clock ticks, because numbers are reused.
    """

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """Return this process."""
        return _owner(os.getpid())

    def alive(self) -> bool:
        """Return whether the process still runs; a zombie does not."""
        return start_ticks(self.pid) == self.started


@functools.cache  # by number, so that a forked child is not taken for its parent
def _owner(pid: int) -> Owner:
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

    kind: str
    function: str = ""
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
            return cls._of_error("init", {**given, "error": "lib_rm_version_mismatch"})
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
        return cls._of_event(what, options) if what in EVENTS else cls._of_error(what, options)

    @classmethod
    def _of_event(cls, what: str, options: dict[str, Any]) -> Fault:
        fault = cls(kind=what, **_checked(what, options, EVENTS[what]))
        if fault.error or fault.after_calls:
            raise InputError(f"The fault {shown(what)} takes neither error nor after_calls.")
        return fault

    @classmethod
    def _of_error(cls, what: str, options: dict[str, Any]) -> Fault:
        function = ALIASES.get(what, what)
        if not (function.startswith("nvml") or function in (ANYTHING, LAUNCH)):
            names = ", ".join([*EVENTS, *ALIASES, ANYTHING, LAUNCH, "driver_mismatch"])
            raise InputError(
                f"There is no fault {shown(what)}: choose an NVML function's name or one of "
                f"{names}."
            )
        checked = _checked(what, options, ("error",))
        if checked["error"] not in ERRORS:
            raise InputError(
                f"There is no error {shown(checked['error'])} for the fault {shown(what)}: "
                f"choose one of {', '.join(ERRORS)}."
            )
        return cls(kind="error", function=function, **checked)


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

    identity: str
    owner: Owner
    fault: Fault
    begins_ns: int
    ends_ns: int | None
    calls_left: int
    fired: bool = False

    def active(self, now_ns: int) -> bool:
        """Return whether the fault is in force at this virtual time."""
        return self.begins_ns <= now_ns and (self.ends_ns is None or now_ns < self.ends_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the fault as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActiveFault:
        """Return the fault that `to_json` wrote."""
        owner, fault = Owner(**data["owner"]), Fault(**data["fault"])
        return cls(**{**data, "owner": owner, "fault": fault})


RANGES: dict[str, tuple[float, float]] = {
    "after_s": (0, 1e9),
    "lasts_s": (0, 1e9),
    "power_w": (0, 5e4),
    "percent": (0, 1e5),
    "clock_mhz": (1, 1e5),
    "after_calls": (0, 2**31 - 1),
    "pid": (0, 2**31 - 1),
    "field": (0, 2**31 - 1),
}
"""The least and the greatest value of each option that is a number."""

LEAST_LIMIT_W = 1.0
"""The least power limit that a fault sets."""

_INTEGERS = ("after_calls", "pid", "field", "clock_mhz")
_LIMITS = ("limit_changed", "enforced_limit")


def _checked(what: str, options: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    names = {field.name for field in fields(Fault)} - {"kind", "function"}
    for name, value in options.items():
        if name not in names:
            raise InputError(
                f"The fault {shown(what)} has no option {shown(name)}: "
                f"choose from {', '.join(sorted(names))}."
            )
        if name == "error":
            good, kind = isinstance(value, str), "a name"
        else:
            good, kind = _in_range(what, name, value)
        if not good:
            raise InputError(f"The option {shown(name)} of the fault {shown(what)} must be {kind}.")
    for name in needed:
        if name not in options:
            raise InputError(f"The fault {shown(what)} needs the option {shown(name)}.")
    return options


def _in_range(what: str, name: str, value: Any) -> tuple[bool, str]:
    """Return whether the fault ``what`` takes this number, and which numbers it takes."""
    least, most = RANGES[name]
    if name == "power_w" and what in _LIMITS:
        least = LEAST_LIMIT_W
    types = (int,) if name in _INTEGERS else (int, float)
    number = "a whole number" if name in _INTEGERS else "a number"
    good = type(value) in types and least <= value <= most
    return good, f"{number} from {least:g} to {most:.10g}"
