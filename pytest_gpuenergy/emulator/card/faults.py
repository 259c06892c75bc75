"""Faults on demand: what can go wrong on an emulated card, and when."""

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
    """A process by its number and, because numbers are reused, its start time."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return _owner(os.getpid())

    def alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
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
"""Function name of an error that strikes every function of a handle, as a lost GPU does."""

LAUNCH = "launch"
"""Function name of an error that strikes launches of kernels instead of NVML."""

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
    """One thing that goes wrong.

    Attributes:
        kind: ``error``, or one of `EVENTS`.
        function: of an error: an NVML function, `ANYTHING` or `LAUNCH`.
        error: of an error: one of `ERRORS`.
        after_calls: of an error: calls of the function that still succeed.
        after_s: virtual seconds until it begins.
        lasts_s: virtual seconds that it lasts; None: until it is withdrawn.
        power_w: of ``limit_changed`` and ``enforced_limit``: the limit; of ``foreign_process``: the
            power that this process draws.
        pid: of ``foreign_process``: the process's number.
        percent: of ``slower``: how much longer every kernel takes, at the same power; of
            ``below_lock``: by how much the SMs run below the clock they are locked to.
        clock_mhz: of ``clock_locked``: the clock to which somebody else locks the SMs.
        field: of ``field_missing``: the field's number.
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
        """The fault that one entry of ``GPUENERGY_EMULATED_FAULTS`` describes.

        Args:
            what: one of `EVENTS`, `ALIASES`, ``driver_mismatch``, ``any``, ``launch``, or an NVML
                function's name.
            value: for a function the error's name, or a mapping with ``error`` and other
                attributes; for an event true or a mapping of attributes.

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
            known = ", ".join([*EVENTS, *ALIASES, ANYTHING, LAUNCH, "driver_mismatch"])
            raise InputError(
                f"There is no fault {shown(what)}: choose an NVML function's name or one of "
                f"{known}."
            )
        checked = _checked(what, options, ("error",))
        if checked["error"] not in ERRORS:
            raise InputError(
                f"There is no error {shown(checked['error'])} for the fault {shown(what)}: "
                f"choose one of {', '.join(ERRORS)}."
            )
        return cls(kind="error", function=function, **checked)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults in a JSON object, such as ``{"power_limit": "no_permission"}``.

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
        """Whether it is in force at this virtual time."""
        return self.begins_ns <= now_ns and (self.ends_ns is None or now_ns < self.ends_ns)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActiveFault:
        """From what `to_json` gave."""
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
    known = {field.name for field in fields(Fault)} - {"kind", "function"}
    for name, value in options.items():
        if name not in known:
            raise InputError(
                f"The fault {shown(what)} has no option {shown(name)}: "
                f"choose from {', '.join(sorted(known))}."
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
    """Whether a number is one that a fault takes, and which are."""
    least, most = RANGES[name]
    if name == "power_w" and what in _LIMITS:
        least = LEAST_LIMIT_W
    types = (int,) if name in _INTEGERS else (int, float)
    number = "a whole number" if name in _INTEGERS else "a number"
    return type(
        value
    ) in types and least <= value <= most, f"{number} from {least:g} to {most:.10g}"
