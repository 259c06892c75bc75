"""``gpuenergy powercap``: shows, sets and restores a card's power limit and clocks."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_gpuenergy import control, devices, engine
from pytest_gpuenergy.commands.command_line import Subparsers, add_command, print_json, print_table
from pytest_gpuenergy.opening import open_gpu, open_recorded
from pytest_gpuenergy.support import DeviceError, InputError, SetpointError, emulated_mark

_LOCK_WAIT_S = 2.0
"""The longest wait for a GPU that a run is using."""
_DEVICE = "auto, an index, a UUID, or emulated[:PROFILE] (default: {})"


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``powercap`` with ``show``, ``set`` and ``restore``."""
    parser = add_command(
        subparsers,
        "powercap",
        None,
        summary=summary,
        description="Setting a limit or a clock needs root, zeusd or a sudo rule; gpuenergy doctor "
        "reports which is available. Neither CUDA nor CuPy is needed.",
        example="""
gpuenergy powercap show --json
gpuenergy powercap set 3 --gpu-device 0
gpuenergy powercap set --smclock 1500MHz
gpuenergy powercap restore
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = add_command(
        actions,
        "show",
        _show,
        summary="Print the constraints, the limit in force, the caps of this GPU's table, clocks",
        example="gpuenergy powercap show --gpu-device emulated:a100",
    )
    change = _add_set(actions)
    restore = add_command(
        actions,
        "restore",
        _restore,
        summary="Restore the limit that was in force before, and unlock clocks",
        description="Undoes set, and what a killed run has left behind. A limit that somebody "
        "else has set since is left alone. Clocks are unlocked even if somebody else has locked "
        "them since, which NVML does not report.",
        example="gpuenergy powercap restore",
    )
    for action, default in ((show, "auto"), (change, "auto"), (restore, None)):
        action.add_argument(
            "--gpu-device",
            metavar="DEVICE",
            default=default,
            help=_DEVICE.format(default or "every GPU with something to restore"),
        )
        action.add_argument("--json", action="store_true", help="Print JSON")


def _add_set(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "set",
        _set,
        summary="Set the power limit, lock the SM clocks, or both, until they are restored",
        description="The prior limit is saved for restore; NVML does not report what clocks were "
        "locked to, so restore unlocks them. Runs treat both as the GPU's own and return to them "
        "after their setpoints.",
        example="gpuenergy powercap set 3\ngpuenergy powercap set 300W --smclock 1500MHz",
    )
    parser.add_argument(
        "cap",
        metavar="CAP",
        nargs="?",
        help="1 to 5 (index into the GPU's table, 1 = lowest), or watts such as 300W or 300; "
        "without it the limit stays as it is",
    )
    parser.add_argument(
        "--smclock",
        metavar="MHZ",
        help="Lock the SM clocks to this one, such as 1500MHz or 1500",
    )
    return parser


def _show(arguments: Namespace) -> int:
    with _open(arguments.gpu_device) as gpu:
        state = _state(gpu)
    if arguments.json:
        print_json(state)
        return 0
    print(f"{state['gpu']} {state['uuid']}{emulated_mark(state['emulated'])}")
    print(f"power limit {_show_watts(state['power_limit_w'])}")
    print(f"enforced    {_show_watts(state['enforced_power_limit_w'])}")
    print(f"constraints {state['min_w']:g} W to {state['max_w']:g} W")
    rows = [
        (str(cap["index"]), _show_watts(cap["power_limit_w"]), cap["unavailable"] or "")
        for cap in state["caps"]
    ]
    print_table(("cap", "limit", ""), rows)
    clocks, locked_mhz = state["sm_clocks_mhz"], state["locked_sm_clock_mhz"]
    if not clocks:
        print("SM clocks   unknown, and cannot be locked")
    else:
        print(
            f"SM clocks   {clocks[0]} MHz to {clocks[-1]} MHz in {len(clocks)} steps; "
            + (
                "gpuenergy has not locked them, others cannot be known"
                if locked_mhz is None
                else f"locked to {locked_mhz} MHz; gpuenergy powercap restore unlocks them"
            )
        )
    if state["restore_to_w"] is not None:
        print(
            f"before it was set: {_show_watts(state['restore_to_w'])}; "
            "gpuenergy powercap restore returns to it"
        )
    return 0


def _state(gpu: devices.Gpu) -> dict[str, Any]:
    limits = control.read_limits(gpu)
    table = control.cap_table(gpu.name, limits, control.project_tables(Path.cwd()))
    records = filter(None, (control.kept_record(gpu.uuid), control.leftover(gpu.uuid)))
    changes = (record.power_limit_mw for record in records)
    change = next((change for change in changes if change is not None), None)
    try:
        clocks = control.supported_clocks(gpu)
    except DeviceError:
        clocks = ()
    enforced = control.enforced_setpoint(gpu)
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "emulated": gpu.emulated,
        "power_limit_w": limits.current_w,
        "enforced_power_limit_w": enforced.power_limit_w,
        "min_w": limits.min_w,
        "max_w": limits.max_w,
        "caps": [
            {
                "index": setpoint.index,
                "power_limit_w": setpoint.power_limit_w,
                "unavailable": setpoint.unavailable,
            }
            for setpoint in control.resolve_setpoints("all", table, limits)
        ],
        "restore_to_w": None if change is None else change.prior / 1e3,
        "sm_clocks_mhz": [*clocks],
        "locked_sm_clock_mhz": enforced.sm_clock_mhz,
    }


def _set(arguments: Namespace) -> int:
    if arguments.cap is None and arguments.smclock is None:
        raise InputError("powercap set names nothing: give CAP, --smclock MHZ, or both.")
    with (
        _open(arguments.gpu_device, writes="set") as gpu,
        engine.Station(gpu, lock_wait_s=_LOCK_WAIT_S) as station,
    ):
        cap, clock_mhz = control.CURRENT, None
        if arguments.cap is not None:
            limits = control.read_limits(gpu)
            table = control.cap_table(gpu.name, limits, control.project_tables(Path.cwd()))
            cap = control.resolve_cap(arguments.cap, table, limits, context="powercap set")
        if arguments.smclock is not None:
            supported = control.supported_clocks(gpu)
            clock_mhz = control.resolve_clock(arguments.smclock, supported, context="--smclock")
        enforced = station.keep(replace(cap, sm_clock_mhz=clock_mhz))
        state = _state(gpu)
    if arguments.json:
        print_json(state)
        return 0
    prior_w = state["restore_to_w"]
    title = _title(gpu)
    if cap.power_limit_w is not None:
        print(
            f"{title}: power limit {cap.label}, enforced {_show_watts(enforced.power_limit_w)}"
            + ("" if prior_w is None else f"; gpuenergy powercap restore returns to {prior_w:g} W")
        )
    if clock_mhz is not None:
        print(
            f"{title}: SM clocks locked to {clock_mhz} MHz; gpuenergy powercap restore unlocks "
            "them: what they were locked to before cannot be read"
        )
    return 0


def _restore(arguments: Namespace) -> int:
    spec = arguments.gpu_device
    done: list[dict[str, Any]] = []
    problems: dict[str, list[str]] = {}
    waiting = control.restorable_uuids()
    for name in control.recorded_uuids() if spec is None else [spec]:
        try:
            with open_recorded(name) if spec is None else _open(name, writes="restore") as gpu:
                done.append(_restored(gpu))
        except DeviceError as error:
            refused = isinstance(error, SetpointError)
            if spec is None and name not in waiting and not refused:
                continue  # its run is still in progress and will restore the settings
            problems.setdefault(str(error), []).append(name)
    if arguments.json:
        print_json(done)
    elif not done and not problems:
        print("nothing to restore: no power limit or clock was set by gpuenergy")
    else:
        for entry in done:
            print(entry["message"])
    if problems:
        whose = {what: "" if spec else f"{', '.join(names)}: " for what, names in problems.items()}
        raise DeviceError(" ".join(f"{names}{what}" for what, names in whose.items()))
    return 0


def _restored(gpu: devices.Gpu) -> dict[str, Any]:
    with devices.gpu_lock(gpu, wait_s=_LOCK_WAIT_S):
        # A killed run began at the limit that `set` had written, so the run is undone first.
        sentences = [restore(gpu) for restore in (control.restore_leftover, control.restore_kept)]
        limit_w = control.read_limits(gpu).current_w
    nothing = f"{_title(gpu)}: nothing to restore, its settings were not changed by gpuenergy"
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "emulated": gpu.emulated,
        "power_limit_w": limit_w,
        "message": " ".join(filter(None, sentences)) or nothing,
    }


@contextmanager
def _open(spec: str, *, writes: str = "") -> Iterator[devices.Gpu]:
    with open_gpu(spec) as gpu:
        if writes and gpu.emulated and spec == "auto":
            raise InputError(
                f"powercap {writes} finds no NVIDIA GPU whose settings it could change: gpuenergy "
                "doctor tells why; to change those of the emulated one, give --gpu-device emulated."
            )
        yield gpu


def _title(gpu: devices.Gpu) -> str:
    return f"{gpu.name}{emulated_mark(gpu.emulated)}"


def _show_watts(watts: float | None) -> str:
    return "unknown" if watts is None else f"{watts:g} W"
