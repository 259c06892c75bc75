"""Replays the figures that a card has recorded for a profile, on an emulated GPU.

Without a limit the emulated card takes the recorded time, power and clock. The effect of a lower
limit comes from the emulated card's model, which no recorded figure backs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_gpuenergy.emulator import EmulatedDevice, recorded_demand
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import Measurement, check
from pytest_gpuenergy.replay.account.account import (
    EAGER,
    GRAPH,
    LAYERS,
    WINDOW_COUNT,
    WINDOW_HOST,
    WINDOW_LAYER,
    WINDOW_STEP,
    calls_at,
    gaps_key,
    host_gaps_key,
    module_level,
    step_key,
)
from pytest_gpuenergy.replay.account.call_figures import (
    GAP,
    RESTORES,
    profiled_gpu_us,
)
from pytest_gpuenergy.replay.extract.calls import UniqueCall
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
    Planner,
    Repeat,
    ReplayPlan,
    ReplayWorkloads,
    replayed_key,
    window_calls,
)
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.support import FormError, InputError, decode, is_file, shown

RECORDED = "results/measurements.jsonl"

_DIGITS = 3
"""The largest number of digits in the name of a type, such as ``float32``."""
_BITS = {"bool": 8, "float8": 8, "bfloat16": 16, "complex64": 64, "complex128": 128}


def recorded_planner(device: EmulatedDevice, folder: Path, cache: Cache) -> Planner:
    """Return what plans the replay of recorded figures."""
    recorded = {
        replayed_key(measurement): measurement
        for measurement in read_measurements(folder / RECORDED)
        if measurement.measured
        and measurement.power_limit_w is measurement.sm_clock_mhz is None
        and measurement.workload.parameters.get("cache") == cache
    }
    if not recorded:
        raise InputError(
            f"An emulated GPU replays figures that a real one has recorded, and {folder / RECORDED}"
            f" has none with --cache {cache}: run gpuenergy replay on a real GPU first."
        )

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
        has_loaded: Callable[[], object],
    ) -> ReplayPlan:
        has_loaded()
        if profile.device != device.name:
            raise InputError(
                f"The figures in {folder} are those of {profile.device}, and {device.name} is "
                "emulated here: name the emulated GPU of that model with --gpu-device."
            )
        player = _Player(device, ReplayWorkloads(profile, cache), recorded)
        wholes = [(step, level) for step in steps for level in (LAYERS, GRAPH, EAGER)]
        wholes += [
            (step, level)
            for step in steps
            for level in map(module_level, profile.modules)
            if step_key(step, level) in recorded
        ]
        by_id = {call.id: call for call in chosen}
        keys = [*(step_key(*whole) for whole in wholes), *(call.id for call in chosen)]
        calls_alone = [
            item
            for call in chosen
            if call.id in recorded
            for item in player.with_restores(player.call(call))
        ]
        in_windows = [
            item
            for found in recorded.values()
            if found.workload.parameters.get(WINDOW_STEP) in steps
            and (ids := window_calls(found))
            and by_id.keys() >= set(ids)
            for item in player.with_restores(player.window(found, by_id))
        ]
        planned = {item.key: item for item in (*calls_alone, *in_windows)}
        return ReplayPlan(
            [player.step(*whole, calls) for whole in wholes if step_key(*whole) in recorded],
            calls_alone,
            {key: "no figures of it are recorded" for key in keys if key not in recorded},
            lambda key, _, spaced: (
                player.spaced(planned[key], by_id, spaced) if spaced in recorded else None
            ),
            player.workloads.gap(player.repeat(GAP, 0, 1)) if GAP in recorded else None,
            windows=in_windows,
            gapped_steps=[
                player.gapped_step(step, calls) for step in steps if gaps_key(step) in recorded
            ],
            host_gaps=lambda step, _: (
                player.host_gaps(step) if host_gaps_key(step) in recorded else None
            ),
        )

    return plan


def read_measurements(path: Path) -> Iterator[Measurement]:
    """Yield the measurements in the lines of a file, if it exists; skip damaged lines."""
    for line in path.read_bytes().splitlines() if is_file(path) else ():
        try:
            measurement = decode(line, Measurement)
            check(measurement)
        except FormError:
            continue
        yield measurement


@dataclass(frozen=True)
class _Player:
    """Makes what an emulated card plays, from recorded figures."""

    device: EmulatedDevice
    workloads: ReplayWorkloads
    recorded: Mapping[str, Measurement]

    def call(self, call: UniqueCall) -> Replayable:
        """Return a call; it reads from DRAM if its turns together do not fit into the L2 cache."""
        repeat = self.repeat(call.id, self._dram_bytes(call), len(call.launches))
        found = self.recorded[call.id]
        return self.workloads.call(call, repeat, _number(found, "turns"), profiled_gpu_us(found))

    def window(self, found: Measurement, calls: Mapping[str, UniqueCall]) -> Replayable:
        """Return successive calls of a layer, with the bytes and launches of all of them."""
        of_window = found.workload.parameters
        ids = window_calls(found)
        key = replayed_key(found)
        repeat = self.repeat(
            key,
            sum(self._dram_bytes(calls[call]) for call in ids),
            sum(len(calls[call].launches) for call in ids),
        )
        step, is_layer = int(of_window[WINDOW_STEP]), WINDOW_LAYER in of_window
        number = int(key.rpartition("layer" if is_layer else "window")[2])
        counts = _number(found, WINDOW_COUNT), _number(found, "turns")
        return self.workloads.window(
            *(step, number, ids, counts[0], repeat, counts[1], profiled_gpu_us(found)),
            is_layer=is_layer,
            from_host=WINDOW_HOST in of_window,
        )

    def with_restores(self, item: Replayable) -> list[Replayable]:
        """Return a call or window, and what was recorded as done before it, if anything was."""
        key = self.recorded[item.key].workload.parameters.get(RESTORES)
        if key not in self.recorded:
            return [item]
        return self.workloads.with_restores(item, self.repeat(str(key), 0, 1))

    def spaced(self, item: Replayable, calls: Mapping[str, UniqueCall], key: str) -> Replayable:
        """Return a call or window with as many gaps as were recorded."""
        gaps = _number(self.recorded[key], "gaps")
        own = [calls[call] for call in window_calls(item) or [item.key]]
        launches = gaps + sum(len(call.launches) for call in own)
        repeat = self.repeat(key, sum(map(self._dram_bytes, own)), launches)
        return self.workloads.spaced(item, repeat, gaps, key)

    def step(self, step: int, level: str, calls: Sequence[UniqueCall]) -> Replayable:
        """Return a whole step, with the bytes and launches of all its calls."""
        repeat = self._all_calls(step_key(step, level), step, level, calls)
        return self.workloads.step(step, level, repeat)

    def gapped_step(self, step: int, calls: Sequence[UniqueCall]) -> Replayable:
        """Return a whole step with empty kernels, each of which counts as a part of its call."""
        return self.workloads.gapped_step(step, self._all_calls(gaps_key(step), step, GRAPH, calls))

    def host_gaps(self, step: int) -> Replayable:
        """Return the empty kernels that the host launched for the gaps of a step."""
        key = host_gaps_key(step)
        period_ns = _number(self.recorded[key], "period_ns")
        return self.workloads.host_gaps(step, period_ns, self.repeat(key, 0, 1))

    def _all_calls(self, key: str, step: int, level: str, calls: Sequence[UniqueCall]) -> Repeat:
        modules = self.workloads.profile.modules
        counts = [(calls_at(call, step, level, modules), call) for call in calls]
        return self.repeat(
            key,
            sum(count * self._dram_bytes(call) for count, call in counts),
            sum(count * len(call.launches) for count, call in counts),
        )

    def repeat(self, key: str, dram_bytes: int, launches: int) -> Repeat:
        """Return what plays the figures recorded under ``key``."""
        found = self.recorded[key]
        assert found.time_ms is not None
        assert found.energy_mj is not None
        demand = recorded_demand(
            found.time_ms,
            found.energy_mj / found.time_ms,  # `power_w` is of all launches; their time varies
            dram_bytes=dram_bytes,
            launches=launches,
            profile=self.device.profile,
            clock_mhz=found.effective_sm_clock_mhz,
        )
        return partial(self.device.play, demand)

    def _dram_bytes(self, call: UniqueCall) -> int:
        size, turns = argument_bytes(call.arguments), len(call.replayed_turns)
        return size if size * turns > self.device.profile.l2_bytes else 0


def argument_bytes(arguments: Any) -> int:
    """Return the size of all tensors among recorded arguments."""
    if isinstance(arguments, list):
        return sum(map(argument_bytes, arguments))
    if not isinstance(arguments, dict):
        return 0
    if not {"shape", "dtype"} <= arguments.keys():
        return sum(map(argument_bytes, arguments.values()))
    dtype = str(arguments["dtype"]).removeprefix("torch.")
    bits = next((bits for prefix, bits in _BITS.items() if dtype.startswith(prefix)), None)
    if bits is None:
        bits = int("".join(filter(str.isdigit, dtype))[:_DIGITS] or "0")
    return math.prod(arguments["shape"]) * bits // 8


def _number(measurement: Measurement, name: str) -> int:
    number = measurement.workload.parameters.get(name)
    if not isinstance(number, int) or number < 1:
        raise InputError(
            f"The figures of {replayed_key(measurement)} were recorded with {name} of "
            f"{shown(number)}, which is no number above zero: run gpuenergy replay on a real GPU "
            "again."
        )
    return number
