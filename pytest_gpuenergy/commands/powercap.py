"""``gpuenergy powercap``: shows, sets and restores a card's power limit."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_table

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.device import Device

_LOCK_WAIT_S = 2.0


def add_parser(subparsers: Subparsers) -> None:
    """Add ``powercap`` with ``show``, ``set`` and ``restore``."""
    parser = add_command(
        subparsers,
        "powercap",
        None,
        summary="Show, set or restore the power limit of a GPU",
        description="Setting one needs root. The prior limit is saved: restore, or the next run "
        "that sets power caps, puts it back.",
        example="""
gpuenergy powercap show --json
gpuenergy powercap set 300 --gpu-device 0
gpuenergy powercap restore
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    show = add_command(
        actions,
        "show",
        _show,
        summary="Print the constraints, the limit in force and the caps of this GPU's table",
        example="gpuenergy powercap show --gpu-device emulated:a100",
    )
    show.add_argument("--json", action="store_true", help="Print JSON")
    change = add_command(
        actions,
        "set",
        _set,
        summary="Set the power limit, until it is restored",
        example="gpuenergy powercap set 300",
    )
    change.add_argument("watts", metavar="W", type=_watts, help="The limit, such as 300 or 300W")
    restore = add_command(
        actions,
        "restore",
        _restore,
        summary="Put back the limit that was in force before",
        example="gpuenergy powercap restore",
    )
    for action in (show, change, restore):
        action.add_argument(
            "--gpu-device",
            metavar="DEVICE",
            default="auto",
            help="auto, an index, a UUID, or emulated[:PROFILE] (default: auto)",
        )


def _show(arguments: Namespace) -> int:
    from pytest_gpuenergy.devices.select import open_device

    with open_device(arguments.gpu_device) as device:
        state = _state(device)
    if arguments.json:
        print_json(state)
        return 0
    print(f"{state['gpu']} {state['uuid']}{' (emulated)' if state['emulated'] else ''}")
    print(f"power limit {_show_watts(state['power_limit_w'])}")
    print(f"enforced    {_show_watts(state['enforced_power_limit_w'])}")
    print(f"constraints {state['min_w']:g} W to {state['max_w']:g} W")
    rows = [
        (str(cap["index"]), _show_watts(cap["power_limit_w"]), cap["unavailable"] or "")
        for cap in state["caps"]
    ]
    print_table(("cap", "limit", ""), rows)
    if state["restore_to_w"] is not None:
        print(
            f"before it was set: {_show_watts(state['restore_to_w'])}; "
            "gpuenergy powercap restore puts it back"
        )
    return 0


def _state(device: Device) -> dict[str, Any]:
    from pytest_gpuenergy.energy.lease import enforced_limit_w, leftover
    from pytest_gpuenergy.energy.powercap import (
        cap_table,
        project_tables,
        read_limits,
        resolve_caps,
    )

    limits = read_limits(device)
    table = cap_table(device.name, limits, project_tables(Path.cwd()))
    record = leftover(device.uuid)
    return {
        "gpu": device.name,
        "uuid": device.uuid,
        "emulated": device.emulated,
        "power_limit_w": limits.current_w,
        "enforced_power_limit_w": enforced_limit_w(device),
        "min_w": limits.min_w,
        "max_w": limits.max_w,
        "caps": [
            {
                "index": cap.index,
                "power_limit_w": cap.power_limit_w,
                "unavailable": cap.unavailable,
            }
            for cap in resolve_caps("all", table, limits)
        ],
        "restore_to_w": None if record is None else record.prior_mw / 1e3,
    }


def _set(arguments: Namespace) -> int:
    from pytest_gpuenergy.devices.lock import gpu_lock
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.energy.lease import PowerCapLease
    from pytest_gpuenergy.energy.powercap import cap_table, read_limits, resolve_caps

    with open_device(arguments.gpu_device) as device, gpu_lock(device, wait_s=_LOCK_WAIT_S):
        limits = read_limits(device)
        table = cap_table(device.name, limits)
        (cap,) = resolve_caps(f"{arguments.watts:.10g}W", table, limits)
        # Not restored here: the saved record outlives this process, and restore finds it.
        enforced_w = PowerCapLease(device).set(cap)
        print(f"{_title(device)}: power limit {cap.label}, enforced {_show_watts(enforced_w)}")
    return 0


def _restore(arguments: Namespace) -> int:
    from pytest_gpuenergy.devices.lock import gpu_lock
    from pytest_gpuenergy.devices.select import open_device
    from pytest_gpuenergy.energy.lease import restore_leftover

    with open_device(arguments.gpu_device) as device, gpu_lock(device, wait_s=_LOCK_WAIT_S):
        done = restore_leftover(device)
        print(done or f"{_title(device)}: nothing to restore, its limit was not set by gpuenergy")
    return 0


def _title(device: Device) -> str:
    return f"{device.name}{' (emulated)' if device.emulated else ''}"


def _show_watts(watts: float | None) -> str:
    return "unknown" if watts is None else f"{watts:g} W"


def _watts(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)[wW]?", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a number of watts, such as 300")
    return float(match[1])
