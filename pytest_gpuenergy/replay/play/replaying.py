"""Replays the calls of a profiled model under the energy meter, and closes the sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.energy import choose_source
from pytest_gpuenergy.engine import Harness, Replayable, Station, Subject, git_revision_of, run_info
from pytest_gpuenergy.kernels import CacheState
from pytest_gpuenergy.record import Measurement, RunInfo
from pytest_gpuenergy.replay.account.account import (
    Account,
    Saving,
    account_for_step,
    savings,
)
from pytest_gpuenergy.replay.account.figures import (
    EAGER,
    GAP_MS,
    GRAPH,
    LAYERS,
    is_held_back,
    links_key,
    spaced_key,
    step_key,
)
from pytest_gpuenergy.replay.account.replay_report import RESULTS, ReplayReport, write_report
from pytest_gpuenergy.replay.extract.calls import UniqueCall, read_calls
from pytest_gpuenergy.replay.play.plan import Cache, Plan, Planner, key_of
from pytest_gpuenergy.replay.play.recorded import read_measurements
from pytest_gpuenergy.replay.profile_folder import ProfileRecord, read_profile
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    emulated_mark,
    encode,
    is_file,
    new_run_id,
    write_atomically,
)

MEASUREMENTS_JSONL = "measurements.jsonl"
OTHERS_JSONL = "measurements-others.jsonl"

_LOAD_S = 1.0
_IDLE_AFTER_S = 0.5
_IDLE_S = 3.0
_GAP_SHARE = 1.5
"""Gaps take this multiple of a call's time: with a quarter of the limit in the gaps, a call that
wants a quarter more than the limit then stays at two thirds of it."""


@dataclass
class Replay:
    """One run of ``gpuenergy replay``.

    Attributes:
        folder: of the profile.
        station: holds the GPU.
        planner: says what to play; see `pytest_gpuenergy.replay.play.plan.planner_for`.
        cache: see `pytest_gpuenergy.replay.play.live.turns_of`.
        step: the decode step to replay, besides the prefill.
        kernels: ids of the unique calls or unique kernels to replay; empty for all.
        setpoints: to measure everything under.
        name: of the profile in the ids of measurements; by default that of the folder.
        runs: least number of launches in each measurement; 0 for as many as the precision takes.
        announce: called with a line about each measurement.
        ranks: that replay their parts of the model at the same time.
    """

    folder: Path
    station: Station
    planner: Planner
    cache: Cache = "model"
    step: int = 1
    kernels: Sequence[str] = ()
    setpoints: Sequence[Setpoint] = (CURRENT,)
    name: str = ""
    runs: int = 0
    announce: Callable[[str], None] = lambda _: None
    ranks: Ranks = ALONE
    missing: dict[str, str] = field(default_factory=dict)
    measurements: dict[str, dict[str, Measurement]] = field(default_factory=dict)
    others: list[Measurement] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """The folder that is written to."""
        return self.folder / RESULTS[self.station.device.emulated]

    def run(self) -> ReplayReport:
        """Replay, measure, close the sum, and write the report.

        Raises:
            InputError: the folder is no profile's, or the model runs differently now.
            SetpointError: a power limit cannot be set.
            DeviceError: the GPU does not respond.
            OSError: the report cannot be written.
        """
        profile = read_profile(self.folder)
        steps = profile.steps(self.step)
        calls = [one for one in read_calls(self.folder) if any(one.steps.get(s) for s in steps)]
        chosen = self._chosen(calls)
        for setpoint in self.setpoints:
            self.station.check(setpoint)
        plan = self.planner(profile, calls, chosen, steps)
        self.missing |= plan.missing
        if plan.source not in ("", profile.model):
            self.announce(f"{profile.model} is replayed from {plan.source}")
        run = self._run_info(profile, plan.source)
        self._set_aside()
        RunFolder(self.results).restart(run, self._all())
        cache: CacheState = "cold" if self.cache == "cold" else "hot"
        harness = self.station.harness(cache=cache, min_launches=self.runs)
        accounts: list[Account] = []
        for setpoint in self.setpoints:
            with self.station.under(setpoint) as enforced:
                # Steps first: without them the figures of calls say little.
                for one in (*plan.steps, *plan.calls):
                    self._measure(harness, one, setpoint, enforced)
                for one in self._spaced(plan, calls, setpoint):
                    self._measure(harness, one, setpoint, enforced)
                group = self.measurements.setdefault(setpoint.label, {})
                for one in spaced_exchanges(plan, calls, steps, group, self.ranks):
                    self._measure(harness, one, setpoint, enforced)
                idle_w = self._idle_w(plan)
            accounts += self._accounts(profile, setpoint, steps, calls, idle_w)
        report = ReplayReport(
            run=run,
            profile=profile,
            cache=self.cache,
            accounts=tuple(replace(one, rank=profile.rank) for one in accounts),
            savings=tuple(self._savings(steps, calls)),
            missing=self.missing,
            measurements=self._all(),
        )
        write_report(report, self.folder)
        return report

    def resume(self) -> None:
        """Keep what an earlier replay with the same cache and limits has measured on this card.

        Measurements of fewer launches than are asked for now are made again. What else there is
        will be set aside.
        A line that a killed replay has not finished is left out.

        Raises:
            InputError: it was of another profile, or the folder has none.
        """
        self._check_same_work(read_profile(self.folder))
        labels = {one.label for one in self.setpoints}
        for found in read_measurements(self.results / MEASUREMENTS_JSONL):
            same = found.workload.parameters.get("cache") == self.cache and found.cap in labels
            enough = sum(one.launches for one in found.trials) >= self.runs
            if not same or found.gpu_uuid != self.station.device.uuid:
                self.others.append(found)
            elif enough:
                self.measurements.setdefault(found.cap, {})[key_of(found)] = found

    def _set_aside(self) -> None:
        """Keep what an earlier replay has measured with another cache, limit or card."""
        if not self.others:
            return
        path = self.results / OTHERS_JSONL
        earlier = path.read_bytes() if is_file(path) else b""
        lines = b"".join(encode(one) + b"\n" for one in self.others)
        write_atomically(path, earlier + lines, durable=True)
        self.announce(
            f"{len(self.others)} figures with another cache, limit or card were moved to {path}"
        )

    def _check_same_work(self, profile: ProfileRecord) -> None:
        earlier = RunFolder(self.results).options
        now = {"model": profile.model, "weights": profile.weights, "profile": profile.work}
        for name, value in now.items():
            if (was := earlier.get(name, value)) != value:  # older releases kept no "profile"
                raise InputError(
                    f"{self.results} has figures of another profile ({was}) than that of "
                    f"{self.folder} now ({value}): move them away, or leave out --resume to "
                    "replace them."
                )

    def _all(self) -> tuple[Measurement, ...]:
        return tuple(one for group in self.measurements.values() for one in group.values())

    def _run_info(self, profile: ProfileRecord, source: str) -> RunInfo:
        options = {
            "powercap": ",".join(one.label for one in self.setpoints),
            "cache": self.cache,
            "step": str(self.step),
            "runs": str(self.runs) if self.runs else "as needed",
            "model": profile.model,
            "weights": profile.weights,
            "profile": profile.work,
        }
        if source not in ("", profile.model):
            options["export"] = source
        revision = git_revision_of(self.folder)
        return run_info(self.station.device, new_run_id(), options, git_revision=revision)

    def _chosen(self, calls: Sequence[UniqueCall]) -> Sequence[UniqueCall]:
        ids = {one.id: {one.id, *(form.kernel for form in one.launches)} for one in calls}
        for name in self.kernels:
            if not any(name in group for group in ids.values()):
                raise InputError(
                    f"The prefill and decode step {self.step} of {self.folder} have no kernel "
                    f"{name!r}: give ids from operator_calls.jsonl or unique_kernels_compute.jsonl."
                )
        chosen = [one for one in calls if not self.kernels or ids[one.id] & set(self.kernels)]
        left_out = {one.id for one in calls} - {one.id for one in chosen}
        self.missing |= dict.fromkeys(sorted(left_out), "it was not chosen")
        return chosen

    def _measure(
        self, harness: Harness, what: Replayable, setpoint: Setpoint, enforced: Setpoint
    ) -> None:
        group = self.measurements.setdefault(setpoint.label, {})
        known = what.key in group
        if all(self.ranks.gathered(known)) if what.together else known:
            return
        name = what.key if len(self.setpoints) == 1 else f"{what.key}@{setpoint.label}"
        try:
            found = harness.measure_callable(
                what.repeater,
                what.workload,
                Subject(f"{self.name or self.folder.name}::{name}", what.label, setpoint, enforced),
                "replay",
            )
        except RuntimeError as error:  # CUDA's, too
            self.missing[name] = str(error).strip().partition("\n")[0]
            if what.together and self.ranks.count > 1:  # the others wait for it
                raise DeviceError(
                    f"{name} cannot be replayed ({self.missing[name]}): leave it out with "
                    "--kernels, and go on with --resume."
                ) from None
            self.announce(f"{name}: not replayed: {self.missing[name]}")
            return
        kernel = replace(found.kernel, details=dict(what.details))
        found = replace(found, kernel=kernel)
        found = found.flagged(*self.station.judge_setpoint())
        if not found.measured:
            self.missing[name] = found.error or "it has no figures"
        group[what.key] = found
        RunFolder(self.results).append(found)
        self.announce(_figures(name, found, emulated=self.station.device.emulated))

    def _spaced(
        self, plan: Plan, calls: Sequence[UniqueCall], setpoint: Setpoint
    ) -> Iterator[Replayable]:
        """Calls that the limit holds back alone, but not in the model, with gaps between them."""
        measured = self.measurements.get(setpoint.label, {})
        found = []
        for call in calls:
            alone = measured.get(call.id)
            wholes = [measured.get(step_key(step, GRAPH)) for step in call.steps]
            if alone is None or alone.time_ms is None:
                continue
            held_back = any(one is not None and is_held_back(alone, one) for one in wholes)
            if held_back and not call.is_exchange:
                gaps = max(1, math.ceil(_GAP_SHARE * alone.time_ms / GAP_MS))
                found.append(plan.spaced(call.id, gaps, spaced_key(call.id)))
        spaced = [one for one in found if one is not None]
        if spaced and plan.gap is not None:
            yield from (plan.gap, *spaced)

    def _idle_w(self, plan: Plan) -> float:
        """The card's power directly after a load, with its contexts and clocks as they are then."""
        device = self.station.device
        source = choose_source(device)
        for load in [one for one in (*plan.calls, *plan.steps) if not one.together][:1]:
            with load.repeater() as repeater:
                repeater.start()
                device.clock.sleep_s(_LOAD_S)
                repeater.stop()
        device.clock.sleep_s(_IDLE_AFTER_S)
        begin = source.probe()
        end = begin
        while end.time_s - begin.time_s < _IDLE_S:
            end = source.next_edge(1)
        return (end.energy_mj - begin.energy_mj) / (end.time_s - begin.time_s) / 1e3

    def _accounts(
        self,
        profile: ProfileRecord,
        setpoint: Setpoint,
        steps: Sequence[int],
        calls: Sequence[UniqueCall],
        idle_w: float,
    ) -> Iterator[Account]:
        measured = self.measurements.get(setpoint.label, {})
        for step in steps:
            tokens = profile.tokens(step)
            for level in (GRAPH, EAGER, LAYERS):
                whole = measured.get(step_key(step, level))
                if whole is not None and whole.measured:
                    yield account_for_step(step, level, whole, calls, measured, idle_w, tokens)

    def _savings(self, steps: Sequence[int], calls: Sequence[UniqueCall]) -> Iterator[Saving]:
        if len(self.setpoints) < 2:
            return
        as_found = [one for one in self.setpoints if one == CURRENT]
        reference = (as_found or sorted(self.setpoints, key=lambda one: one.order))[-1]
        for step in steps:
            yield from savings(step, calls, self.measurements, reference.label)


def _figures(name: str, found: Measurement, *, emulated: bool) -> str:
    if found.time_ms is None or found.raw_energy_mj is None:
        return f"{name}: {found.error}"
    figures = f"{found.time_ms * 1e3:.4g} µs, {found.raw_energy_mj:.4g} mJ"
    return f"{name}: {figures}{emulated_mark(emulated)}"


def spaced_exchanges(
    plan: Plan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
    ranks: Ranks,
) -> Iterator[Replayable]:
    """What to measure for `links_w`: the commonest exchange of each step, and gaps.

    Args:
        plan: of the replay.
        calls: of the model.
        steps: that are replayed.
        measured: steps and calls, by their keys; it may grow meanwhile.
        ranks: that share the model, and take the same number of gaps.
    """
    for step in steps:
        exchanges = [one for one in calls if one.is_exchange and one.steps.get(step)]
        if not exchanges or plan.gap is None:
            continue
        commonest = max(exchanges, key=lambda one: one.steps[step])
        for level in (GRAPH, EAGER):
            whole = measured.get(step_key(step, level))
            gaps = ranks.gathered(_gaps_between(exchanges, step, measured, whole))
            spaced = None
            if all(gaps):
                spaced = plan.spaced(commonest.id, max(gaps), links_key(step, level))
            if spaced is not None:
                yield from (plan.gap, spaced)


def _gaps_between(
    exchanges: Sequence[UniqueCall],
    step: int,
    measured: Mapping[str, Measurement],
    whole: Measurement | None,
) -> int:
    """How many gaps take the mean time between two exchanges of a step; 0 if it is not known."""
    alone = [measured.get(one.id) for one in exchanges]
    times_ms = [one.time_ms for one in alone if one is not None and one.time_ms is not None]
    if whole is None or whole.time_ms is None or len(times_ms) < len(exchanges):
        return 0
    counts = [one.steps[step] for one in exchanges]
    taken_ms = sum(count * time_ms for count, time_ms in zip(counts, times_ms, strict=True))
    return max(1, round((whole.time_ms - taken_ms) / sum(counts) / GAP_MS))
