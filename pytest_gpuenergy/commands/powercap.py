"""``gpuenergy powercap``: shows, sets and restores a card's power limit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import Subparsers, add_command, print_json, print_table

if TYPE_CHECKING:
    from pytest_gpuenergy.devices.gpu import Gpu

_LOCK_WAIT_S = 2.0
_DEVICE = "auto, an index, a UUID, or emulated[:PROFILE] (default: {})"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``powercap`` with ``show``, ``set`` and ``restore``."""
    parser = add_command(
        subparsers,
        "powercap",
        None,
        summary="Show, set or restore the power limit of a GPU",
        description="Setting a limit needs root, zeusd or a sudo rule; gpuenergy doctor reports "
        "which is available. Neither CUDA nor CuPy is needed.",
        example="""
gpuenergy powercap show --json
gpuenergy powercap set 3 --gpu-device 0
gpuenergy powercap restore
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action, default in (
        (_add_show(actions), "auto"),
        (_add_set(actions), "auto"),
        (_add_restore(actions), None),
    ):
        action.add_argument(
            "--gpu-device",
            metavar="DEVICE",
            default=default,
            help=_DEVICE.format(default or "every GPU with something to restore"),
        )
        action.add_argument("--json", action="store_true", help="Print JSON")


def _add_show(actions: Subparsers) -> ArgumentParser:
    return add_command(
        actions,
        "show",
        _show,
        summary="Print the constraints, the limit in force and the caps of this GPU's table",
        example="gpuenergy powercap show --gpu-device emulated:a100",
    )


def _add_set(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "set",
        _set,
        summary="Set the power limit, until it is restored",
        description="The prior limit is saved for restore. Runs treat the new one as the GPU's "
        "own and restore it after their caps.",
        example="gpuenergy powercap set 3\ngpuenergy powercap set 300W",
    )
    parser.add_argument(
        "cap",
        metavar="CAP",
        help="1 to 5 (index into the GPU's table, 1 = lowest), or watts such as 300W or 300",
    )
    return parser


def _add_restore(actions: Subparsers) -> ArgumentParser:
    return add_command(
        actions,
        "restore",
        _restore,
        summary="Restore the limit that was in force before",
        description="Undoes set, and what a killed run has left behind. A limit that somebody else "
        "has set since is left alone.",
        example="gpuenergy powercap restore",
    )


def _show(arguments: Namespace) -> int:
    with _open(arguments.gpu_device) as gpu:
        state = _state(gpu)
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
            "gpuenergy powercap restore returns to it"
        )
    return 0


def _state(gpu: Gpu) -> dict[str, Any]:
    from pytest_gpuenergy.control.lease_record import kept_record, leftover
    from pytest_gpuenergy.control.limits import enforced_setpoint, read_limits
    from pytest_gpuenergy.control.tables import cap_table, project_tables, resolve_setpoints

    limits = read_limits(gpu)
    table = cap_table(gpu.name, limits, project_tables(Path.cwd()))
    record = kept_record(gpu.uuid) or leftover(gpu.uuid)
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "emulated": gpu.emulated,
        "power_limit_w": limits.current_w,
        "enforced_power_limit_w": enforced_setpoint(gpu).power_limit_w,
        "min_w": limits.min_w,
        "max_w": limits.max_w,
        "caps": [
            {
                "index": setpoint.index,
                "power_limit_w": setpoint.power_limit_w,
                "unavailable": setpoint.unavailable,
            }
            for setpoint in resolve_setpoints("all", table, limits)
        ],
        "restore_to_w": None if record is None else record.power_limit_mw.prior / 1e3,
    }


def _set(arguments: Namespace) -> int:
    from pytest_gpuenergy.control.limits import read_limits
    from pytest_gpuenergy.control.tables import cap_table, project_tables, resolve_one
    from pytest_gpuenergy.engine.station import Station

    with _open(arguments.gpu_device) as gpu, Station(gpu, lock_wait_s=_LOCK_WAIT_S) as station:
        limits = read_limits(gpu)
        table = cap_table(gpu.name, limits, project_tables(Path.cwd()))
        setpoint = resolve_one(arguments.cap, table, limits, said="powercap set")
        enforced = station.keep(setpoint)
        state = _state(gpu)
    if arguments.json:
        print_json(state)
        return 0
    prior_w = state["restore_to_w"]
    print(
        f"{_title(gpu)}: power limit {setpoint.label}, "
        f"enforced {_show_watts(enforced.power_limit_w)}"
        + ("" if prior_w is None else f"; gpuenergy powercap restore returns to {prior_w:g} W")
    )
    return 0


def _restore(arguments: Namespace) -> int:
    from pytest_gpuenergy.control.lease_record import recorded_uuids, restorable_uuids
    from pytest_gpuenergy.devices.select import open_recorded
    from pytest_gpuenergy.support.errors import DeviceError, SetpointError

    spec = arguments.gpu_device
    done: list[dict[str, Any]] = []
    problems: dict[str, list[str]] = {}
    waiting = restorable_uuids()
    for name in recorded_uuids() if spec is None else [spec]:
        try:
            with open_recorded(name) if spec is None else _open(name) as gpu:
                done.append(_restored(gpu))
        except DeviceError as error:
            refused = isinstance(error, SetpointError)
            if spec is None and name not in waiting and not refused:
                continue  # its run is still in progress and will restore it
            problems.setdefault(str(error), []).append(name)
    if arguments.json:
        print_json(done)
    elif not done and not problems:
        print("nothing to restore: no power limit was set by gpuenergy")
    else:
        for entry in done:
            print(entry["message"])
    if problems:
        whose = {what: "" if spec else f"{', '.join(names)}: " for what, names in problems.items()}
        raise DeviceError(" ".join(f"{names}{what}" for what, names in whose.items()))
    return 0


def _restored(gpu: Gpu) -> dict[str, Any]:
    from pytest_gpuenergy.control.lease import restore_kept, restore_leftover
    from pytest_gpuenergy.control.limits import read_limits
    from pytest_gpuenergy.devices.lock import gpu_lock

    with gpu_lock(gpu, wait_s=_LOCK_WAIT_S):
        # A run starts from the limit that `set` has written, so the run is undone first.
        said = [restore(gpu) for restore in (restore_leftover, restore_kept)]
        limit_w = read_limits(gpu).current_w
    nothing = f"{_title(gpu)}: nothing to restore, its limit was not set by gpuenergy"
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "emulated": gpu.emulated,
        "power_limit_w": limit_w,
        "message": next((text for text in reversed(said) if text), nothing),
    }


def _open(spec: str) -> AbstractContextManager[Gpu]:
    from pytest_gpuenergy.devices.select import open_gpu

    return open_gpu(spec)


def _title(gpu: Gpu) -> str:
    return f"{gpu.name}{' (emulated)' if gpu.emulated else ''}"


def _show_watts(watts: float | None) -> str:
    return "unknown" if watts is None else f"{watts:g} W"
