"""Measures a profiled model again on one GPU, call by call, and accounts for its energy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import stdev

from msgspec.structs import replace

from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.energy import Edge, MeterSettings, choose_source
from pytest_gpuenergy.engine import (
    Harness,
    Replayable,
    Station,
    Subject,
    git_revision_of,
    run_info,
)
from pytest_gpuenergy.kernels import CacheState
from pytest_gpuenergy.record import Measurement, RunInfo, new_run_id
from pytest_gpuenergy.replay.account.account import (
    EAGER,
    GAP_MS,
    GRAPH,
    LAYERS,
    WINDOW_HOST,
    WINDOW_STEP,
    MeasuredPower,
    Saving,
    account_for_step,
    calls_at,
    host_gaps_key,
    launches_at,
    links_key,
    module_level,
    restores_key,
    savings,
    step_key,
)
from pytest_gpuenergy.replay.account.call_figures import (
    GAP,
    is_held_back,
    spaced_key,
)
from pytest_gpuenergy.replay.account.change_savings import ChangeSaving, change_savings
from pytest_gpuenergy.replay.account.replay_report import RESULTS, ReplayReport, write_report
from pytest_gpuenergy.replay.extract.calls import UniqueCall, read_calls
from pytest_gpuenergy.replay.play.recorded import read_measurements
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
    Planner,
    ReplayPlan,
    replayed_key,
    window_calls,
)
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

_MINOR_SHARE = 0.05
"""The share of a step's GPU time below which a call is measured briefly."""
_BRIEF = MeterSettings(
    warmup_s=0.6,
    warmup_max_s=0.6,
    steady_slope_per_s=0.03,
    min_measure_s=0.4,
    max_measure_s=1.0,
    relative_half_width=0.015,
    preheat_s=0.0,
)
"""The settings for a minor call, whose error hardly counts in the sum: half the time of others."""
_SLIGHT_SHARE = 0.01
"""The share of a step's GPU time below which a call is measured even more briefly."""
_SLIGHT = dataclasses.replace(
    _BRIEF,
    warmup_s=0.3,
    warmup_max_s=0.3,
    steady_slope_per_s=math.inf,
    min_trials=3,
    min_measure_s=0.3,
    max_measure_s=0.6,
    relative_half_width=0.03,
)
"""The settings for a slight call. Most of the calls of a language model are slight."""
_TRIFLING_SHARE = 0.001
"""The share of a step's GPU time below which a call hardly needs to be heated. A quarter of the
calls of three language models, they take 1 % of the time."""
_TRIFLING = dataclasses.replace(
    _SLIGHT,
    warmup_s=0.1,
    warmup_max_s=0.1,
    min_trials=2,
    min_measure_s=0.2,
    max_measure_s=0.2,
    relative_half_width=math.inf,
)
"""The settings for such a call."""
_FROM_HOST = MeterSettings(
    warmup_max_s=2.0,
    steady_slope_per_s=0.03,
    max_measure_s=2.0,
    relative_half_width=0.015,
)
"""The settings for a step that the host launches, whose power varies with the host's load: 5 s did
not make its interval narrow, either."""
_LOAD_S = 1.0
_IDLE_AFTER_S = 0.5
_IDLE_S, _IDLE_BRIEF_S = 3.0, 1.0
_IDLE_QUANTILE = 2.3
"""The half width of a 95 % interval in standard errors, by Student's t for ten updates."""
_GAP_SHARE = 3.0
"""The time of the gaps after a call, as a multiple of the call's time.

With gaps at a sixth of the power limit, a call that takes a quarter more than the limit then
averages less than half of it, as in a step that the host launches."""


@dataclass(frozen=True)
class ReplayOptions:
    """The options of a replay.

    Attributes:
        folder: The folder of the profile.
        device: The value of ``--gpu-device``; a list where several ranks share the model.
        powercap: The power limits to measure under, as ``--powercap`` takes them.
        smclock: The SM clocks to measure at, as ``--smclock`` takes them.
        allow_clocks: Whether to lock clocks that somebody else seems to have locked.
        cache: What the L2 cache holds when a call is made again.
        export: The exported file to replay from; empty for the model's own code.
        step: The decode step to replay, besides the prefill.
        steps: The numbers of the steps to replay instead of these two; empty for these two.
        runs: The least number of launches in each measurement; 0 for as many as the precision
            takes.
        kernels: The ids of the unique calls or unique kernels to replay; empty for all.
        resume: Whether to keep what an earlier replay has measured.
        brief: Whether to measure everything for a shorter time, so that intervals are wider.
        changes: Whether to measure changes that may save energy, too.
        power_log: The file for the card's power over time; None for no file.
        interval_s: The seconds over which a row of the power log is a mean; None for the card's
            own samples.
        html: The HTML page to write; None for no page.
    """

    folder: Path
    device: str = "auto"
    powercap: str = "current"
    smclock: str = "current"
    allow_clocks: bool = False
    cache: Cache = "model"
    export: str = ""
    step: int = 1
    steps: Sequence[int] = ()
    runs: int = 0
    kernels: Sequence[str] = ()
    resume: bool = False
    brief: bool = False
    changes: bool = False
    power_log: Path | None = None
    interval_s: float | None = None
    html: Path | None = None


@dataclass
class RankReplay:
    """The replay of a profile on one GPU: the whole model, or the part of one rank.

    Attributes:
        options: What to replay, where and how.
        folder: The folder of the profile, or of the rank.
        station: The claimed GPU.
        planner: Plans what to measure.
        setpoints: The setpoints to measure everything under.
        announce: Called with a line about each measurement.
        ranks: The ranks that replay their parts of the model at the same time.
        missing: By its key, the reason why a call or step has no figures.
        measurements: The measurements, by the label of the setpoint and their key.
        others: The measurements of an earlier replay that are not part of this one.
    """

    options: ReplayOptions
    folder: Path
    station: Station
    planner: Planner
    setpoints: Sequence[Setpoint]
    announce: Callable[[str], None]
    ranks: Ranks = ALONE
    missing: dict[str, str] = field(default_factory=dict)
    measurements: dict[str, dict[str, Measurement]] = field(default_factory=dict)
    others: list[Measurement] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.folder / RESULTS[self.station.device.emulated]

    def run(self) -> ReplayReport:
        """Plan, measure, account for the energy, and write the report."""
        profile = read_profile(self.folder)
        steps = self.options.steps or profile.steps(self.options.step)
        calls = [call for call in read_calls(self.folder) if call.is_in(steps)]
        chosen = self._chosen(calls)
        for setpoint in self.setpoints:
            self.station.check(setpoint)
        cache: CacheState = "cold" if self.options.cache == "cold" else "hot"
        harness = self.station.harness(cache=cache, min_launches=self.options.runs)
        with ExitStack() as heating:
            heating.enter_context(harness.heating())  # loading the model takes seconds
            plan = self.planner(profile, calls, chosen, steps, heating.close)
        if self.options.changes and plan.changes is None:
            raise InputError(
                "--changes replays a model in changed forms, on one real GPU: leave it out where "
                "recorded figures are replayed, or several GPUs share the model."
            )
        self.missing |= plan.missing
        if plan.source not in ("", profile.model):
            self.announce(f"{profile.model} is replayed from {plan.source}")
        run = self._run_info(profile, plan.source)
        if self.others:
            self._keep_others()
        RunFolder(self.results).restart(run, self._all())
        modules = [module_level(name) for name in profile.modules]
        levels = (GRAPH, EAGER, LAYERS, *modules)
        brief = self.options.brief
        in_windows = frozenset(call for item in plan.windows for call in window_calls(item))
        settings = call_settings(calls, steps, in_windows, brief=brief)
        settings |= {step_key(step, level): _SLIGHT for step in steps for level in modules}
        if brief:
            of_window = dataclasses.replace(_BRIEF, steady_slope_per_s=math.inf)
            settings |= {item.key: of_window for item in plan.windows}
        settings |= {item.key: _SLIGHT for item in plan.windows if is_from_host(item)}
        settings |= {restores_key(key): own for key, own in settings.items()}
        settings |= {step_key(step, EAGER): _BRIEF if brief else _FROM_HOST for step in steps}
        settings |= {host_gaps_key(step): _SLIGHT if brief else _BRIEF for step in steps}
        left_out: frozenset[str] = frozenset()
        if brief:
            slight = self.ranks.gathered(slight_modules(calls, steps, profile.modules))
            left_out = frozenset.intersection(*slight)
        idle: dict[str, MeasuredPower] = {}
        changes: list[ChangeSaving] = []

        def report() -> ReplayReport:
            """Account for what has been measured so far, and write the report."""
            accounts = [
                account_for_step(
                    *(step, level, whole, calls, self.measurements[cap], power.power_w),
                    profile.tokens(step),
                    profile.modules,
                    power.half_width_w,
                )
                for cap, power in idle.items()
                for step in steps
                for level in levels
                if (whole := self.measurements[cap].get(step_key(step, level))) is not None
                and whole.measured
            ]
            found = ReplayReport(
                run=run,
                profile=profile,
                cache=self.options.cache,
                accounts=tuple(replace(account, rank=profile.rank) for account in accounts),
                savings=tuple(self._savings(steps, calls)),
                missing=self._without_figures(),
                measurements=self._all(),
                changes=tuple(changes),
            )
            write_report(found, self.folder)
            return found

        try:
            for setpoint in self.setpoints:
                group = self.measurements.setdefault(setpoint.label, {})
                with self.station.under(setpoint) as enforced:
                    measure = partial(self._measure_all, harness, settings, setpoint, enforced)
                    # Steps come first, because calls alone cannot be accounted for, and calls after
                    # the windows that have them. Which ones are spaced depends on all of these.
                    # Links take more than calls outside of windows, so exchanges come first.
                    measure(item for item in plan.steps if item.key not in left_out)
                    idle[setpoint.label] = self._idle(plan)
                    measure(plan.gapped_steps)
                    measure(host_gaps(plan, calls, steps, group))
                    measure(plan.windows)
                    measure(item for item in plan.calls if item.together)
                    measure(spaced_exchanges(plan, calls, steps, group, self.ranks))
                    measure(spaced_windows(plan, calls, steps, group))
                    measure(plan.calls)
                    measure(spaced_calls(plan, calls, steps, group))
                    planned = []
                    if self.options.changes and plan.changes is not None:
                        for found in plan.changes(group):
                            for item in found.items:
                                self._measure(harness, item, setpoint, enforced, _SLIGHT)
                            planned.append(found.change)
                        self.missing |= plan.missing
                    changes += change_savings(planned, group, setpoint.label)
        except BaseException:
            if idle:
                report()  # of what has been measured until now
                self.announce(f"the report has what was measured until now: {self.results}")
            raise
        return report()

    def resume(self) -> None:
        """Keep what an earlier replay with the same cache and limits has measured on this card.

        Measurements of fewer launches than are asked for now are made again. All others will be
        moved to a file of their own. A line that a killed replay has not finished is skipped.
        """
        profile, earlier = read_profile(self.folder), RunFolder(self.results).options
        now = {"model": profile.model, "weights": profile.weights, "profile": profile.work}
        for name, value in now.items():
            if (was := earlier.get(name, value)) != value:  # older releases kept no "profile"
                raise InputError(
                    f"{self.results} has figures of another profile ({was}) than that of "
                    f"{self.folder} now ({value}): move them away, or leave out --resume to "
                    "replace them."
                )
        labels = {setpoint.label for setpoint in self.setpoints}
        cache, runs = self.options.cache, self.options.runs
        for found in read_measurements(self.results / MEASUREMENTS_JSONL):
            same = found.workload.parameters.get("cache") == cache and found.cap in labels
            if not same or found.gpu_uuid != self.station.device.uuid:
                self.others.append(found)
            elif sum(trial.launches for trial in found.trials) >= runs:
                self.measurements.setdefault(found.cap, {})[replayed_key(found)] = found

    def reuse(self, earlier: Iterable[Measurement]) -> None:
        """Take over what was measured of the same calls for another size of the same model.

        Calls with the same id have the same operator, arguments and launches. Whole steps are
        measured for each size.
        """
        keys = {GAP}
        for call in read_calls(self.folder):
            keys |= {call.id, restores_key(call.id), spaced_key(call.id)}
        for found in earlier:
            if (key := replayed_key(found)) in keys:
                self.measurements.setdefault(found.cap, {}).setdefault(key, found)

    @property
    def reference(self) -> Setpoint:
        """The setpoint to compare others with: the limit as it was found, or else the highest."""
        as_found = [setpoint for setpoint in self.setpoints if setpoint == CURRENT]
        return (as_found or sorted(self.setpoints, key=lambda setpoint: setpoint.order))[-1]

    def _keep_others(self) -> None:
        """Move what was measured with another cache, limit or card to a file of its own."""
        path = self.results / OTHERS_JSONL
        earlier = path.read_bytes() if is_file(path) else b""
        lines = b"".join(encode(measurement) + b"\n" for measurement in self.others)
        write_atomically(path, earlier + lines, durable=True)
        self.announce(
            f"{len(self.others)} figures with another cache, limit or card were moved to {path}"
        )

    def _without_figures(self) -> dict[str, str]:
        """Return the reasons for what is missing, without what an earlier replay has measured."""
        groups = self.measurements.values()
        return {
            key: why
            for key, why in self.missing.items()
            if not groups or not all(key in group and group[key].measured for group in groups)
        }

    def _all(self) -> tuple[Measurement, ...]:
        return tuple(
            measurement for group in self.measurements.values() for measurement in group.values()
        )

    def _run_info(self, profile: ProfileRecord, source: str) -> RunInfo:
        options = {
            "powercap": ",".join(setpoint.label for setpoint in self.setpoints),
            "cache": self.options.cache,
            "step": str(self.options.step),
            "runs": str(self.options.runs) if self.options.runs else "as needed",
            "model": profile.model,
            "weights": profile.weights,
            "profile": profile.work,
        }
        if source not in ("", profile.model):
            options["export"] = source
        revision = git_revision_of(self.folder)
        return run_info(self.station.device, new_run_id(), options, git_revision=revision)

    def _chosen(self, calls: Sequence[UniqueCall]) -> Sequence[UniqueCall]:
        """Return the calls that the user has chosen, by their ids or those of their kernels."""
        names = set(self.options.kernels)
        ids = {call.id: {call.id, *(form.kernel for form in call.launches)} for call in calls}
        if unknown := sorted(names.difference(*ids.values())):
            raise InputError(
                f"The prefill and decode step {self.options.step} of {self.folder} have no kernel "
                f"{unknown[0]!r}: give ids from operator_calls.jsonl or "
                "unique_kernels_compute.jsonl."
            )
        chosen = [call for call in calls if not names or ids[call.id] & names]
        left_out = {call.id for call in calls} - {call.id for call in chosen}
        self.missing |= dict.fromkeys(sorted(left_out), "it was not chosen")
        return chosen

    def _measure_all(
        self,
        harness: Harness,
        settings: Mapping[str, MeterSettings],
        setpoint: Setpoint,
        enforced: Setpoint,
        items: Iterable[Replayable],
    ) -> None:
        """Measure items one by one; which come next may depend on the figures of those before."""
        for item in items:
            default = _BRIEF if self.options.brief else None
            self._measure(harness, item, setpoint, enforced, settings.get(item.key, default))

    def _measure(
        self,
        harness: Harness,
        what: Replayable,
        setpoint: Setpoint,
        enforced: Setpoint,
        settings: MeterSettings | None,
    ) -> None:
        group = self.measurements.setdefault(setpoint.label, {})
        is_measured = what.key in group
        if all(self.ranks.gathered(is_measured)) if what.together else is_measured:
            return
        profile = self.options.folder.name / self.folder.relative_to(self.options.folder)
        name = what.key if len(self.setpoints) == 1 else f"{what.key}@{setpoint.label}"
        if settings is not None:
            settings = dataclasses.replace(settings, min_launches=self.options.runs)
        try:
            found = harness.measure_callable(
                what.repeater,
                what.workload,
                Subject(f"{profile}::{name}", what.label, setpoint, enforced),
                "replay",
                settings=settings,
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
        found = replace(found, kernel=replace(found.kernel, details=dict(what.details)))
        found = found.flagged(*self.station.judge_setpoint())
        if not found.measured:
            self.missing[name] = found.error or "it has no figures"
        group[what.key] = found
        RunFolder(self.results).append(found)
        if found.time_ms is None or found.raw_energy_mj is None:
            self.announce(f"{name}: {found.error}")
            return
        self.announce(
            f"{name}: {found.time_ms * 1e3:.4g} µs, {found.raw_energy_mj:.4g} mJ"
            f"{emulated_mark(self.station.device.emulated)}"
        )

    def _idle(self, plan: ReplayPlan) -> MeasuredPower:
        """Measure the card's power directly after a load, with its contexts and clocks of then."""
        device = self.station.device
        source = choose_source(device)
        for load in [item for item in (*plan.calls, *plan.steps) if not item.together][:1]:
            with load.repeater() as repeater:
                repeater.start()
                device.clock.sleep_s(_LOAD_S)
                repeater.stop()
        device.clock.sleep_s(_IDLE_AFTER_S)
        edges = [source.probe()]
        idle_s = _IDLE_BRIEF_S if self.options.brief else _IDLE_S
        while edges[-1].time_s - edges[0].time_s < idle_s:
            edges.append(source.next_edge(1))

        def power_w(begin: Edge, end: Edge) -> float:
            return (end.energy_mj - begin.energy_mj) / (end.time_s - begin.time_s) / 1e3

        powers_w = [power_w(*pair) for pair in pairwise(edges)]
        spread_w = stdev(powers_w) if len(powers_w) > 1 else 0.0
        half_width_w = _IDLE_QUANTILE * spread_w / math.sqrt(len(powers_w))
        return MeasuredPower(power_w(edges[0], edges[-1]), half_width_w)

    def _savings(self, steps: Sequence[int], calls: Sequence[UniqueCall]) -> Iterator[Saving]:
        """Yield the savings relative to the limit as it was found, or else to the highest."""
        if len(self.setpoints) < 2:
            return
        for step in steps:
            yield from savings(step, calls, self.measurements, self.reference.label)


def call_settings(
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    in_windows: Collection[str] = (),
    *,
    brief: bool = False,
) -> dict[str, MeterSettings]:
    """Return the settings, by id, for the calls that are measured for a shorter time than usual.

    Args:
        calls: The calls of all steps.
        steps: The steps that are accounted for.
        in_windows: The ids of the calls that are also measured together with others, so that the
            prediction has the error of these measurements in place of their own.
        brief: Whether calls that take much of a step are measured briefly, too.
    """

    def time_us(call: UniqueCall, step: int) -> float:
        return max(call.steps.get(step, 0), call.in_graph.steps.get(step, 0)) * call.call_us

    total_us = {step: sum(time_us(call, step) for call in calls) for step in steps}
    shares = {
        call.id: max(
            time_us(call, step) / total_us[step] if total_us[step] else 0.0 for step in steps
        )
        for call in calls
    }

    def settings(key: str, share: float) -> MeterSettings:
        together = key in in_windows
        if brief:
            most = (_MINOR_SHARE, math.inf) if together else (_SLIGHT_SHARE, _MINOR_SHARE)
        else:
            most = (_TRIFLING_SHARE, _MINOR_SHARE if together else _SLIGHT_SHARE)
        if share < most[0]:
            return _TRIFLING
        return _SLIGHT if share < most[1] else _BRIEF

    return {
        key: settings(key, share) for key, share in shares.items() if brief or share < _MINOR_SHARE
    }


def slight_modules(
    calls: Sequence[UniqueCall], steps: Sequence[int], modules: Sequence[str]
) -> frozenset[str]:
    """Return the keys of the modules outside of layers that take a slight share of a step.

    Their calls are measured alone, so that a brief replay need not measure them as wholes, too.

    Args:
        calls: The calls of all steps.
        steps: The steps that are accounted for.
        modules: The names of the modules, as the profile has them.
    """

    def total_us(step: int, level: str) -> float:
        return sum(calls_at(call, step, level, modules) * call.call_us for call in calls)

    return frozenset(
        step_key(step, level)
        for step in steps
        for level in map(module_level, modules)
        if total_us(step, level) < _SLIGHT_SHARE * total_us(step, GRAPH)
    )


def is_from_host(window: Replayable) -> bool:
    """Return whether only the host makes the calls of a window in their order."""
    return WINDOW_HOST in window.workload.parameters


def host_gaps(
    plan: ReplayPlan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
) -> Iterator[Replayable]:
    """Yield empty kernels that the host launches as often as it launched those of each step."""
    for step in steps:
        whole = measured.get(step_key(step, EAGER))
        launched = launches_at(calls, step, EAGER, ())
        if plan.host_gaps is None or whole is None or whole.time_ms is None or not launched:
            continue
        found = plan.host_gaps(step, max(1, round(1e6 * whole.time_ms / launched)))
        if found is not None:
            yield found


def spaced_calls(
    plan: ReplayPlan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
) -> Iterator[Replayable]:
    """Yield, with gaps, the calls whose figures the power limit would make wrong in an account."""
    limited: set[str] = set()
    for step, level in product(steps, (GRAPH, EAGER)):
        whole = measured.get(step_key(step, level))
        if whole is not None and whole.measured:
            limited |= {*account_for_step(step, level, whole, calls, measured, 0.0, None).limited}
    found = []
    for call in calls:
        time_ms = measured[call.id].time_ms if call.id in limited else None
        if not call.is_exchange and time_ms is not None:
            gaps = max(1, math.ceil(_GAP_SHARE * time_ms / GAP_MS))
            found.append(plan.spaced(call.id, gaps, spaced_key(call.id)))
    spaced = [item for item in found if item is not None]
    if spaced and plan.gap is not None:
        yield from (plan.gap, *spaced)


def spaced_windows(
    plan: ReplayPlan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
) -> Iterator[Replayable]:
    """Yield windows with gaps, which the power limit slows down more than a step of the host.

    They have as large a share of gaps as the step, so that the limit leaves them the same clocks.
    """
    for step in steps:
        whole = measured.get(step_key(step, EAGER))
        launched_ms = sum(call.steps.get(step, 0) * call.call_us for call in calls) / 1e3
        if plan.gap is None or whole is None or whole.time_ms is None or not launched_ms:
            continue
        by_host = {call.id for call in calls if call.steps.get(step)}
        for item in plan.windows:
            found = measured.get(item.key)
            if item.workload.parameters.get(WINDOW_STEP) != step or not by_host.issuperset(
                window_calls(item)
            ):
                continue
            if found is None or found.time_ms is None or not is_held_back(found, whole):
                continue
            in_gaps_ms = found.time_ms * (whole.time_ms / launched_ms - 1)
            spaced = plan.spaced(item.key, max(1, round(in_gaps_ms / GAP_MS)), spaced_key(item.key))
            if spaced is not None:
                yield from (plan.gap, spaced)


def spaced_exchanges(
    plan: ReplayPlan,
    calls: Sequence[UniqueCall],
    steps: Sequence[int],
    measured: Mapping[str, Measurement],
    ranks: Ranks,
) -> Iterator[Replayable]:
    """Yield what `links_power` needs: the most frequent exchange of each step with gaps, and a gap.

    All ranks take the same number of gaps.
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
