"""Measures the calls and steps of a profiled model again, and accounts for their energy."""

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
from pytest_gpuenergy.record import Measurement, RunInfo, new_run_id
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
from pytest_gpuenergy.replay.play.recorded import read_measurements
from pytest_gpuenergy.replay.play.replay_plan import Cache, Planner, ReplayPlan, key_of
from pytest_gpuenergy.replay.profile_folder import ProfileRecord, read_profile
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    emulated_mark,
    encode,
    is_file,
    write_atomically,
)

MEASUREMENTS_JSONL = "measurements.jsonl"
OTHERS_JSONL = "measurements-others.jsonl"

_LOAD_S = 1.0
_IDLE_AFTER_S = 0.5
_IDLE_S = 3.0
_GAP_SHARE = 1.5
"""The time of the gaps after a call, as a multiple of the call's time.

With gaps at a quarter of the power limit, a call that takes a quarter more than the limit then
averages two thirds of it."""


@dataclass
class Replay:
    """The replay of a profile on one GPU.

    Attributes:
        folder: The folder of the profile.
        station: The claimed GPU.
        planner: Plans what to measure.
        cache: What the L2 cache holds when a call is made again.
        step: The decode step to replay, besides the prefill.
        kernels: The ids of the unique calls or unique kernels to replay; empty for all.
        setpoints: The setpoints to measure everything under.
        name: The name of the profile in the ids of measurements; by default that of the folder.
        runs: The least number of launches in each measurement; 0 for as many as the precision
            takes.
        announce: Called with a line about each measurement.
        ranks: The ranks that replay their parts of the model at the same time.
        missing: By its key, the reason why a call or step has no figures.
        measurements: The measurements, by the label of the setpoint and their key.
        others: The measurements of an earlier replay that are not part of this one.
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
        """The folder of the results."""
        return self.folder / RESULTS[self.station.device.emulated]

    def run(self) -> ReplayReport:
        """Plan, measure, account for the energy, and write the report.

        Raises:
            InputError: The folder is not that of a profile, or the model runs differently now.
            SetpointError: A power limit cannot be set.
            DeviceError: The GPU does not respond.
            OSError: The report cannot be written.
        """
        profile = read_profile(self.folder)
        steps = profile.steps(self.step)
        calls = [call for call in read_calls(self.folder) if any(call.steps.get(s) for s in steps)]
        chosen = self._chosen(calls)
        for setpoint in self.setpoints:
            self.station.check(setpoint)
        plan = self.planner(profile, calls, chosen, steps)
        self.missing |= plan.missing
        if plan.source not in ("", profile.model):
            self.announce(f"{profile.model} is replayed from {plan.source}")
        run = self._run_info(profile, plan.source)
        self._keep_others()
        RunFolder(self.results).restart(run, self._all())
        cache: CacheState = "cold" if self.cache == "cold" else "hot"
        harness = self.station.harness(cache=cache, min_launches=self.runs)
        accounts: list[Account] = []
        for setpoint in self.setpoints:
            with self.station.under(setpoint) as enforced:
                # Steps come first, because calls alone cannot be accounted for.
                for item in (*plan.steps, *plan.calls):
                    self._measure(harness, item, setpoint, enforced)
                for item in self._spaced(plan, calls, setpoint):
                    self._measure(harness, item, setpoint, enforced)
                group = self.measurements.setdefault(setpoint.label, {})
                for item in spaced_exchanges(plan, calls, steps, group, self.ranks):
                    self._measure(harness, item, setpoint, enforced)
                idle_w = self._idle_w(plan)
            accounts += self._accounts(profile, setpoint, steps, calls, idle_w)
        report = ReplayReport(
            run=run,
            profile=profile,
            cache=self.cache,
            accounts=tuple(replace(account, rank=profile.rank) for account in accounts),
            savings=tuple(self._savings(steps, calls)),
            missing=self.missing,
            measurements=self._all(),
        )
        write_report(report, self.folder)
        return report

    def resume(self) -> None:
        """Keep what an earlier replay with the same cache and limits has measured on this card.

        Measurements of fewer launches than are asked for now are made again. All others will be
        moved to a file of their own. A line that a killed replay has not finished is skipped.

        Raises:
            InputError: The earlier replay was of another profile, or the folder has no profile.
        """
        self._check_same_work(read_profile(self.folder))
        labels = {setpoint.label for setpoint in self.setpoints}
        for found in read_measurements(self.results / MEASUREMENTS_JSONL):
            same = found.workload.parameters.get("cache") == self.cache and found.cap in labels
            enough = sum(trial.launches for trial in found.trials) >= self.runs
            if not same or found.gpu_uuid != self.station.device.uuid:
                self.others.append(found)
            elif enough:
                self.measurements.setdefault(found.cap, {})[key_of(found)] = found

    def _keep_others(self) -> None:
        """Move what was measured with another cache, limit or card to a file of its own."""
        if not self.others:
            return
        path = self.results / OTHERS_JSONL
        earlier = path.read_bytes() if is_file(path) else b""
        lines = b"".join(encode(measurement) + b"\n" for measurement in self.others)
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
        return tuple(
            measurement for group in self.measurements.values() for measurement in group.values()
        )

    def _run_info(self, profile: ProfileRecord, source: str) -> RunInfo:
        options = {
            "powercap": ",".join(setpoint.label for setpoint in self.setpoints),
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
        ids = {call.id: {call.id, *(form.kernel for form in call.launches)} for call in calls}
        for name in self.kernels:
            if not any(name in group for group in ids.values()):
                raise InputError(
                    f"The prefill and decode step {self.step} of {self.folder} have no kernel "
                    f"{name!r}: give ids from operator_calls.jsonl or unique_kernels_compute.jsonl."
                )
        chosen = [call for call in calls if not self.kernels or ids[call.id] & set(self.kernels)]
        left_out = {call.id for call in calls} - {call.id for call in chosen}
        self.missing |= dict.fromkeys(sorted(left_out), "it was not chosen")
        return chosen

    def _measure(
        self, harness: Harness, what: Replayable, setpoint: Setpoint, enforced: Setpoint
    ) -> None:
        group = self.measurements.setdefault(setpoint.label, {})
        is_measured = what.key in group
        if all(self.ranks.gathered(is_measured)) if what.together else is_measured:
            return
        name = what.key if len(self.setpoints) == 1 else f"{what.key}@{setpoint.label}"
        try:
            found = harness.measure_callable(
                what.repeater,
                what.workload,
                Subject(f"{self.name or self.folder.name}::{name}", what.label, setpoint, enforced),
                "replay",
            )
        except RuntimeError as error:  # also the type of CUDA's errors
            self.missing[name] = str(error).strip().partition("\n")[0]
            if what.together and self.ranks.count > 1:  # the other ranks wait in this exchange
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
        self, plan: ReplayPlan, calls: Sequence[UniqueCall], setpoint: Setpoint
    ) -> Iterator[Replayable]:
        """Yield, with gaps, the calls that the power limit slows down only when they run alone."""
        measured = self.measurements.get(setpoint.label, {})
        found = []
        for call in calls:
            alone = measured.get(call.id)
            wholes = [measured.get(step_key(step, GRAPH)) for step in call.steps]
            if alone is None or alone.time_ms is None:
                continue
            held_back = any(whole is not None and is_held_back(alone, whole) for whole in wholes)
            if held_back and not call.is_exchange:
                gaps = max(1, math.ceil(_GAP_SHARE * alone.time_ms / GAP_MS))
                found.append(plan.spaced(call.id, gaps, spaced_key(call.id)))
        spaced = [item for item in found if item is not None]
        if spaced and plan.gap is not None:
            yield from (plan.gap, *spaced)

    def _idle_w(self, plan: ReplayPlan) -> float:
        """Measure the card's power directly after a load, with its contexts and clocks of then."""
        device = self.station.device
        source = choose_source(device)
        for load in [item for item in (*plan.calls, *plan.steps) if not item.together][:1]:
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
        as_found = [setpoint for setpoint in self.setpoints if setpoint == CURRENT]
        reference = (as_found or sorted(self.setpoints, key=lambda setpoint: setpoint.order))[-1]
        for step in steps:
            yield from savings(step, calls, self.measurements, reference.label)


def _figures(name: str, found: Measurement, *, emulated: bool) -> str:
    if found.time_ms is None or found.raw_energy_mj is None:
        return f"{name}: {found.error}"
    figures = f"{found.time_ms * 1e3:.4g} µs, {found.raw_energy_mj:.4g} mJ"
    return f"{name}: {figures}{emulated_mark(emulated)}"


def spaced_exchanges(
    plan: ReplayPlan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
    ranks: Ranks,
) -> Iterator[Replayable]:
    """Yield what `links_w` needs: the most frequent exchange of each step with gaps, and a gap.

    Args:
        plan: The plan of the replay.
        calls: The unique calls of the model.
        steps: The steps that are replayed.
        measured: The measurements by their keys, to which the caller adds what is yielded.
        ranks: The ranks that share the model; all take the same number of gaps.
    """
    for step in steps:
        exchanges = [call for call in calls if call.is_exchange and call.steps.get(step)]
        if not exchanges or plan.gap is None:
            continue
        commonest = max(exchanges, key=lambda exchange: exchange.steps[step])
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
    """Return the number of gaps in the mean time between two exchanges; 0 if it is unknown."""
    alone = [measured.get(exchange.id) for exchange in exchanges]
    times_ms = [
        measurement.time_ms
        for measurement in alone
        if measurement is not None and measurement.time_ms is not None
    ]
    if whole is None or whole.time_ms is None or len(times_ms) < len(exchanges):
        return 0
    counts = [exchange.steps[step] for exchange in exchanges]
    taken_ms = sum(count * time_ms for count, time_ms in zip(counts, times_ms, strict=True))
    return max(1, round((whole.time_ms - taken_ms) / sum(counts) / GAP_MS))
