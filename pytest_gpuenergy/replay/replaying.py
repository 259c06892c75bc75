"""Replays the calls of a profiled model under the energy meter, and closes the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.station import Station
from pytest_gpuenergy.record.infos import WorkloadInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.replay.account import EAGER, GRAPH, LAYERS, Account, account
from pytest_gpuenergy.replay.calls import UniqueCall, read_calls
from pytest_gpuenergy.replay.models import load_model
from pytest_gpuenergy.replay.profiling import (
    PROFILE_JSON,
    ProfileRecord,
    Prompt,
    prompt_of,
    settle,
)
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_file, write_atomically
from pytest_gpuenergy.support.json_output import dump, encode

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.live import Cache, Step, Turns

REPORT_JSON = "results/gpu_energy_report.json"
MEASUREMENTS_JSONL = "results/measurements.jsonl"

_IDLE_AFTER_S = 0.5
_IDLE_S = 3.0
_COLD_FACTOR = 3


class ReplayReport(Struct, frozen=True):
    """What a replay found; stands in ``results/gpu_energy_report.json``.

    Attributes:
        profile: what was profiled.
        cache: state of the L2 cache in the replays.
        idle_w: power of the card between launches.
        accounts: of each step and level that could be measured.
        missing: by the id of a call that was not replayed, or the name of a level, the reason.
        measurements: of calls, layers and steps.
    """

    profile: ProfileRecord
    gpu: str
    driver: str
    cache: str
    idle_w: float
    accounts: tuple[Account, ...]
    missing: dict[str, str]
    measurements: tuple[Measurement, ...]
    schema_version: int = 1


@dataclass
class Replay:
    """One run of ``gpuenergy replay``.

    Attributes:
        folder: of the profile.
        station: holds the GPU.
        device: PyTorch's name of it.
        cache: see `live.turns_of`.
        step: the decode step to replay, besides the prefill.
        kernels: ids of the unique calls or unique kernels to replay; empty for all.
        announce: called with a line about each measurement.
    """

    folder: Path
    station: Station
    device: str
    cache: Cache = "model"
    step: int = 1
    kernels: Sequence[str] = ()
    announce: Callable[[str], None] = lambda _: None
    missing: dict[str, str] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)

    def run(self) -> ReplayReport:
        """Replay, measure, close the sum, and write the report.

        Raises:
            InputError: the folder is no profile's, or the model runs differently now.
            DeviceError: the GPU does not respond.
            OSError: the report cannot be written.
        """
        import torch

        record = read_profile(self.folder)
        steps = (0, self.step) if record.new_tokens > 1 else (0,)
        if self.step >= record.new_tokens > 1:
            raise InputError(
                f"{self.folder} has {record.new_tokens - 1} decode steps: give --step 1 to "
                f"{record.new_tokens - 1}."
            )
        calls = [one for one in read_calls(self.folder) if any(one.steps.get(s) for s in steps)]
        chosen = self._chosen(calls)
        model = load_model(
            record.model,
            dtype=record.dtype,
            attention=record.attention,
            seed=record.seed,
            device=self.device,
        )
        prompt = Prompt(record.prompt_tokens, record.new_tokens, record.batch, record.seed)
        with torch.inference_mode():
            tokens = prompt_of(model, prompt, self.device)
            turns = self._turns(chosen, model, tokens)
            whole = [self._captured(model, tokens, step) for step in steps]
        results = self.folder / MEASUREMENTS_JSONL
        results.parent.mkdir(exist_ok=True)
        write_atomically(results, "".join(map(_line, self.measurements.values())))
        harness = self.station.harness(cache="cold" if self.cache == "cold" else "hot")
        for one in whole:  # first: without them the figures of calls say little
            self._measure_step(harness, one, record.model)
        for call in calls:
            if call.id in turns:
                self._measure(harness, call.id, record.model, turns[call.id])
        idle_w = self._idle_w()
        report = ReplayReport(
            profile=record,
            gpu=self.station.gpu.name,
            driver=self.station.device.describe().get("driver", ""),
            cache=self.cache,
            idle_w=idle_w,
            accounts=tuple(self._accounts(steps, calls, idle_w)),
            missing=self.missing,
            measurements=tuple(self.measurements.values()),
        )
        write_atomically(self.folder / REPORT_JSON, dump(report))
        return report

    def resume(self) -> None:
        """Keep what an earlier replay with the same cache has measured on this card.

        A line that a killed replay has not finished is left out.
        """
        path = self.folder / MEASUREMENTS_JSONL
        for line in path.read_bytes().splitlines() if is_file(path) else ():
            try:
                found = msgspec.json.decode(line, type=Measurement)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            same = found.workload.parameters.get("cache") == self.cache
            if same and found.gpu_uuid == self.station.device.uuid:
                self.measurements[found.kernel.label] = found

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

    def _turns(self, calls: Sequence[UniqueCall], model: Any, tokens: Any) -> dict[str, Turns]:
        """What to replay for each call, by its id, where it launches what the profile recorded."""
        import torch

        from pytest_gpuenergy.replay.live import capture_calls, differs, launched_by, turns_of

        numbers = [number for one in calls for number in one.turns]
        live, recorder = capture_calls(model, tokens, numbers, self.step + 1)
        cold_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(self.device).L2_cache_size
        turns = {}
        for one in calls:
            if differs(one, recorder):
                self.missing[one.id] = "the model makes another call in its place now"
            else:
                turns[one.id] = turns_of(one, live, self.cache, cold_bytes)
        plans = launched_by([turns[one].functions[0] for one in turns], self.device)
        by_id = {one.id: one for one in calls}
        for key, launched in zip(tuple(turns), plans, strict=True):
            if launched != [form.plan for form in by_id[key].launches]:
                names = ", ".join(str(plan[0]) for plan in launched) or "nothing"
                self.missing[key] = f"alone it launches {names}"
                del turns[key]
        return turns

    def _captured(self, model: Any, tokens: Any, step: int) -> Step:
        from pytest_gpuenergy.replay.live import capture_step

        return capture_step(model, tokens, step)

    def _measure_step(self, harness: Harness, step: Step, model: str) -> None:
        from pytest_gpuenergy.replay.live import Turns

        if step.layers:
            self._measure(harness, _key(step.number, LAYERS), model, Turns(step.layers))
        whole = Turns([step.whole])
        self._measure(harness, _key(step.number, GRAPH), model, whole)
        self._measure(harness, _key(step.number, EAGER), model, whole, from_host=True)

    def _measure(
        self, harness: Harness, key: str, model: str, turns: Turns, *, from_host: bool = False
    ) -> None:
        import torch

        from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater

        if key in self.measurements:
            return

        @contextmanager
        def repeater() -> Iterator[GraphRepeater]:
            with torch.inference_mode():
                yield GraphRepeater(
                    [turns.rotating()], multiple=len(turns.functions), from_host=from_host
                )

        try:
            found = harness.measure_callable(
                repeater,
                WorkloadInfo(model, {"cache": self.cache, "turns": len(turns.functions)}, 0, 0),
                Subject(f"{self.folder.name}::{key}", key),
                "replay",
            )
        except RuntimeError as error:  # CUDA's, too
            self.missing[key] = str(error).strip().partition("\n")[0]
            self.announce(f"{key}: not replayed: {self.missing[key]}")
            settle(self.device)
            return
        if not found.measured:
            self.missing[key] = found.error or "it has no figures"
        self.measurements[key] = found
        with (self.folder / MEASUREMENTS_JSONL).open("a", encoding="utf-8") as file:
            file.write(_line(found))
        self.announce(_figures(key, found))

    def _idle_w(self) -> float:
        """The card's power directly after a load, with its contexts and clocks as they are then."""
        device = self.station.device
        source = choose_source(device)
        device.clock.sleep_s(_IDLE_AFTER_S)
        begin = source.probe()
        end = begin
        while end.time_s - begin.time_s < _IDLE_S:
            end = source.next_edge(1)
        return (end.energy_mj - begin.energy_mj) / (end.time_s - begin.time_s) / 1e3

    def _accounts(
        self, steps: Sequence[int], calls: Sequence[UniqueCall], idle_w: float
    ) -> Iterator[Account]:
        for step in steps:
            for level in (GRAPH, EAGER, LAYERS):
                whole = self.measurements.get(_key(step, level))
                if whole is not None and whole.measured:
                    yield account(step, level, whole, calls, self.measurements, idle_w)


def read_profile(folder: Path) -> ProfileRecord:
    """What a run's folder is the profile of.

    Raises:
        InputError: it has no profile, or a damaged one.
    """
    path = folder / PROFILE_JSON
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProfileRecord)
    except OSError:
        raise InputError(
            f"The folder {folder} has no {PROFILE_JSON}: name one that gpuenergy profile has "
            "written."
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): profile again.") from None


def _figures(key: str, found: Measurement) -> str:
    if found.time_ms is None or found.raw_energy_mj is None:
        return f"{key}: {found.error}"
    return f"{key}: {found.time_ms * 1e3:.4g} µs, {found.raw_energy_mj:.4g} mJ"


def _line(found: Measurement) -> str:
    return encode(found).decode() + "\n"


def _key(step: int, level: str) -> str:
    return f"step{step}-{level}"
