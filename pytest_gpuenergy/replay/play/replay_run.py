"""Replays a profile from beginning to end: claims the GPUs, measures on each, and reports.

Where several ranks share the model, each replays its part in a process of its own.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_gpuenergy.control import NamedSetpoints
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import PowerLog
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.opening import check_spec, open_device
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.replay_report import (
    RESULTS,
    ReplayReport,
    combined,
    page_values,
    write_report,
)
from pytest_gpuenergy.replay.account.serving import ServingReport, best_setpoints, serving_of
from pytest_gpuenergy.replay.play.rank_replay import RankReplay, ReplayOptions
from pytest_gpuenergy.replay.play.recorded import recorded_planner
from pytest_gpuenergy.replay.play.replay_plan import Cache, Planner
from pytest_gpuenergy.replay.profile.programs import check_packages, is_export
from pytest_gpuenergy.replay.profile_folder import (
    PROFILE_JSON,
    ProfileRecord,
    rank_folders,
    read_profile,
)
from pytest_gpuenergy.replay.ranks import (
    ALONE,
    Ranks,
    device_word,
    is_rank,
    joined,
    rank_of_process,
    run_ranks,
)
from pytest_gpuenergy.replay.schedule import Batching, Schedule, Step, read_schedule
from pytest_gpuenergy.report import Report, check_writable, write_html
from pytest_gpuenergy.support import (
    InputError,
    UnavailableError,
    counted,
    dump,
    is_file,
    is_folder,
    lock,
    write_atomically,
)


def replay_profile(
    options: ReplayOptions, command_line: Sequence[str], tell: Callable[[str], None]
) -> tuple[int, ReplayReport | None]:
    """Replay a profile, and write its report.

    Args:
        options: What to replay, where and how.
        command_line: The words of this command, which each rank runs again.
        tell: Called with a sentence for the user.

    Returns:
        The exit code of the command, and the report; None if another process shows it.

    Raises:
        GpuEnergyError: The profile, an option or the GPU cannot be used.
        OSError: A file cannot be written.
    """
    read_profile(options.folder)
    folders = rank_folders(options.folder)
    count = len(folders) or 1
    if count > 1 and options.runs:
        raise InputError(
            "--runs is for models on one GPU, since several launch what they exchange equally "
            "often: leave it out."
        )
    if options.html is not None:
        check_writable(options.html, folder=False)
    if count == 1:
        reports = _replay_rank(options, tell, options.folder, (options.device, 0))
    elif check_spec(options.device) is not None:
        # Emulated GPUs play recorded figures, so that no rank waits for another.
        reports = [
            report
            for rank, folder in enumerate(folders)
            for report in _replay_rank(options, tell, folder, (options.device, rank))
        ]
    elif not is_rank():
        device_word(options.device, 0, count)  # raises here, once, if there are too few GPUs
        return run_ranks(command_line, count, options.folder), None
    else:
        rank = rank_of_process(count)
        word = device_word(options.device, rank, count)
        reports = _replay_rank(options, tell, folders[rank], word, count)
        if rank:
            return 0, None
    report = combined(reports)
    write_report(report, options.folder)
    if options.html is not None:
        write_html(
            Report(report.run, report.measurements), options.html, replay=page_values(report)
        )
    return 0, report


def replay_schedule(
    options: ReplayOptions, path: Path, batching: Batching, tell: Callable[[str], None]
) -> ServingReport:
    """Replay the steps of a schedule, each in the profile of its size, and write the report.

    A call that several sizes share is measured once. The report is written after each profile, and
    says which sums still lack a size.

    Args:
        options: What to replay, where and how. The folder is a profile, or contains one profile for
            each size.
        path: The file of the schedule.
        batching: How to batch the requests of a trace.
        tell: Called with a sentence for the user.

    Raises:
        GpuEnergyError: The schedule, a profile, an option or the GPU cannot be used.
        OSError: A file cannot be written.
    """
    schedule = read_schedule(path, batching)
    places = _step_profiles(options.folder, schedule, path)
    wanted: dict[Path, list[int]] = {}
    for folder, number in places.values():
        wanted.setdefault(folder, []).append(number)
    reports: dict[Path, ReplayReport] = {}
    shared: list[Measurement] = []
    labels: list[str] = []
    reference = ""

    def prepare(replay: RankReplay) -> None:
        nonlocal reference
        replay.reuse(shared)
        labels[:] = [setpoint.label for setpoint in replay.setpoints]
        reference = replay.reference.label

    tell(f"sizes to replay: {', '.join(map(str, sorted(places)))}")
    for folder, numbers in wanted.items():
        log = options.power_log
        if log is not None and folder != options.folder:
            log = log.with_stem(f"{log.stem}-{folder.name}")
        of_size = dataclasses.replace(
            options, folder=folder, steps=tuple(sorted(numbers)), power_log=log
        )
        (report,) = _replay_rank(of_size, tell, folder, (options.device, 0), prepare=prepare)
        reports[folder] = report
        shared += report.measurements
        accounts = {
            step: [account for account in reports[inner].accounts if account.step == number]
            for step, (inner, number) in places.items()
            if inner in reports
        }
        figures, sums, without_sum = serving_of(schedule, accounts, labels)
        first = next(iter(reports.values()))
        found = ServingReport(
            run=first.run,
            model=first.profile.model,
            schedule=str(path),
            batching=schedule.batching,
            prompts_rounding=schedule.rounding("prefill"),
            contexts_rounding=schedule.rounding("decode"),
            serving=tuple(sums),
            best=tuple(best_setpoints(sums, reference)),
            steps=tuple(figures),
            missing=without_sum
            | {
                f"{inner.name}/{key}": why
                for inner, of_inner in reports.items()
                for key, why in of_inner.missing.items()
            },
        )
        # After each size, so that an interrupted replay leaves what it has measured.
        write_atomically(serving_path(found, options.folder), dump(found))
    return found


def serving_path(report: ServingReport, folder: Path) -> Path:
    """Return the path of ``serving_report.json`` in a folder with profiles; make its folder."""
    results = folder / RESULTS[report.run.emulated]
    results.mkdir(exist_ok=True)
    return results / "serving_report.json"


def _step_profiles(folder: Path, schedule: Schedule, path: Path) -> dict[Step, tuple[Path, int]]:
    """Return the folder of the profile of each step of a schedule, and the step's number there."""
    is_there = is_folder(folder)
    inside = sorted(inner for inner in folder.iterdir() if is_folder(inner)) if is_there else []
    profiles = {
        inner: read_profile(inner) for inner in (folder, *inside) if is_file(inner / PROFILE_JSON)
    }
    if not profiles:
        read_profile(folder)  # raises
    first = next(iter(profiles.values()))
    for inner, profile in profiles.items():
        if profile.ranks > 1:
            raise InputError(
                f"{inner} is the profile of a model on {profile.ranks} GPUs, and schedules are "
                "replayed on one: leave out --schedule, or profile on one GPU."
            )
        if _program(profile) != _program(first):
            raise InputError(
                f"{inner} is a profile of {_program(profile)}, and another in {folder} of "
                f"{_program(first)}: move one of them away."
            )
    found: dict[Step, tuple[Path, int]] = {}
    for step in sorted(schedule.served):
        for inner, profile in profiles.items():
            number = 0 if step.phase == "prefill" else step.tokens - profile.prompt_tokens + 1
            is_in_profile = (
                profile.prompt_tokens == step.tokens and profile.new_tokens > 0
                if step.phase == "prefill"
                else 0 < number < profile.new_tokens
            )
            if is_in_profile and profile.batch == step.batch:
                found.setdefault(step, (inner, number))
    if missing := [step for step in sorted(schedule.served) if step not in found]:
        more = f" and {counted(len(missing) - 1, 'other step')}" if len(missing) > 1 else ""
        batching = schedule.batching.options if schedule.batching is not None else ""
        alike = f" --dtype {first.dtype}"  # all sizes must be of one program
        if first.attention in ("sdpa", "eager"):
            alike += f" --attention {first.attention}"
        model, file, out = (shlex.quote(str(word)) for word in (first.model, path, folder))
        raise InputError(
            f"{folder} has no profile for {missing[0]}{more} of {path}: write them with gpuenergy "
            f"profile {model} --schedule {file}{batching}{alike} --out {out}."
        )
    return found


def _program(profile: ProfileRecord) -> str:
    """Return what the profiles of all sizes have in common, in words."""
    return (
        f"{profile.model} with {profile.weights} weights in {profile.dtype} and "
        f"{profile.attention} attention on {profile.device}, PyTorch {profile.torch}"
        f"{' with TF32' if profile.tf32 else ''}"
    )


def _replay_rank(
    options: ReplayOptions,
    tell: Callable[[str], None],
    folder: Path,
    word: tuple[str, int],
    count: int = 1,
    prepare: Callable[[RankReplay], None] | None = None,
) -> list[ReplayReport]:
    """Replay one profile, or one rank's part of it; return the reports of all such ranks.

    ``prepare`` is called with the replay before it measures.
    """
    with ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        if not lock(descriptor, wait=False):  # one would overwrite the other's files
            raise InputError(
                f"Another process is replaying {folder}: wait for it to end, or replay a copy."
            )
        device = stack.enter_context(open_device(word[0], index=word[1]))
        ranks = ALONE
        if count > 1:
            ranks = stack.enter_context(joined(count, f"cuda:{getattr(device, 'ordinal', 0)}"))
        planner = choose_planner(device, folder, options.cache, options.export, ranks)
        named = NamedSetpoints.of(device, options.powercap, Path.cwd(), options.smclock)
        station = stack.enter_context(Station(device, allow_clocks=options.allow_clocks))
        for sentence in station.restored:
            tell(sentence)
        log = None
        if (path := options.power_log) is not None:
            if folder != options.folder:
                path = path.with_stem(f"{path.stem}-{folder.name}")
            log = stack.enter_context(PowerLog(device, path, options.interval_s))

        def announce(line: str) -> None:
            tell(line)
            if log is not None:
                log.collect()

        replay = RankReplay(options, folder, station, planner, named.setpoints, announce, ranks)
        if options.resume:
            replay.resume()
        if prepare is not None:
            prepare(replay)
        return ranks.gathered(replay.run())


def choose_planner(
    device: Device, folder: Path, cache: Cache, export: str = "", ranks: Ranks = ALONE
) -> Planner:
    """Return what plans the replay on ``device``: of the model, or of recorded figures.

    Args:
        device: The claimed GPU. An emulated one replays recorded figures.
        folder: The folder of the profile.
        cache: What the L2 cache holds when a call is made again.
        export: See `replay_source`.
        ranks: The ranks that share the model.

    Raises:
        InputError: PyTorch cannot use the GPU, the folder has no profile, or the profile is of
            another number of ranks.
        UnavailableError: A package that the profiled program needs is not installed.
    """
    if isinstance(device, EmulatedDevice):
        if export:
            raise InputError(
                "An emulated GPU replays recorded figures, not a model: leave out --export."
            )
        return recorded_planner(device, folder, cache)
    ordinal = getattr(device, "ordinal", None)
    if ordinal is None:
        raise InputError(f"PyTorch cannot run on {device.name}: name another --gpu-device.")
    profile = read_profile(folder)
    source = replay_source(profile, export)
    if profile.ranks != ranks.count:
        raise InputError(
            f"{folder} is the profile of a model on {profile.ranks} GPUs: replay it with gpuenergy "
            f"replay {folder.parent}."
        )
    from pytest_gpuenergy.replay.play.live import live_planner  # imports PyTorch

    return live_planner(f"cuda:{ordinal}", cache, source, ranks)


def replay_source(profile: ProfileRecord, export: str = "") -> str:
    """Return the name of the program to load for a replay of ``profile``.

    Args:
        profile: The record of the profile.
        export: The exported file to replay from. If it is empty, the model's own code is used or,
            where a package that this needs is missing, the file that the model was exported to.

    Raises:
        InputError: There is no file ``export``.
        UnavailableError: A package that is needed is not installed.
    """
    if export and not is_export(export):
        raise InputError(
            f"There is no file {export}: write it with gpuenergy profile {profile.model} --export "
            f"{export}."
        )
    try:
        check_packages(export or profile.model)
    except UnavailableError:
        if export or not profile.export or not is_export(profile.export):
            raise
        check_packages(profile.export)
        return profile.export
    return export or profile.model
