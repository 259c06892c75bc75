"""Plans the replay of a model on a GPU: its calls alone, its layers, its whole steps and changes.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from pytest_gpuenergy import devices
from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.account import (
    EAGER,
    GRAPH,
    LAYERS,
    calls_at,
    step_key,
)
from pytest_gpuenergy.replay.account.call_figures import (
    figures_of,
)
from pytest_gpuenergy.replay.account.change_savings import CallChange
from pytest_gpuenergy.replay.extract.calls import UniqueCall
from pytest_gpuenergy.replay.play.call_windows import LONGEST, CallWindow, choose_windows
from pytest_gpuenergy.replay.play.changes import ResultReads, call_changes, fusible_modules
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
    PlannedChange,
    Planner,
    Repeat,
    ReplayPlan,
    ReplayWorkloads,
)
from pytest_gpuenergy.replay.play.step_capture import (
    capture_step,
    with_calls_of,
    with_empty_kernels,
)
from pytest_gpuenergy.replay.play.turns import (
    CallTurns,
    cold_bytes,
    gap,
    replayable_turns,
    spaced_launches,
    window_turns,
)
from pytest_gpuenergy.replay.profile.capture import (
    LiveCall,
)
from pytest_gpuenergy.replay.profile.language_models import load_program
from pytest_gpuenergy.replay.profile.profiling import failure_words, settle
from pytest_gpuenergy.replay.profile.programs import told_of_capture
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.support import DeviceError, GpuEnergyError

_CHANGED = 8
"""The number of calls of a step that are changed, those that take most energy."""


_FUSED = 3
"""The number of kinds of modules of a step whose calls are fused."""


def live_planner(device: str, cache: Cache, source: str = "", ranks: Ranks = ALONE) -> Planner:
    """Return what plans the replay of a model on a GPU."""

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
        has_loaded: Callable[[], object],
    ) -> ReplayPlan:
        name = source or profile.model
        program = load_program(
            name,
            dtype=profile.dtype,
            attention=profile.attention,
            seed=profile.seed,
            device=device,
            ranks=ranks,
        )
        has_loaded()
        in_order = sorted(chosen, key=lambda call: (not call.is_exchange, call.replayed_turns))
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        try:
            with torch.inference_mode():
                inputs = program.inputs(profile.prompt, device)
                turns, durations_us, missing, runs = replayable_turns(
                    *(in_order, program, inputs, max(steps), device, cache, ranks),
                    graph_differs=profile.graph_differs,
                )
                windows: list[tuple[CallWindow, CallTurns, float]] = []
                replayed = {
                    call.id: call for call in chosen if call.id in turns and not call.is_exchange
                }
                for made_by, longest in product(runs[::-1], LONGEST):
                    from_host = made_by is not runs[-1]
                    alike = choose_windows(
                        made_by.ids(calls, from_host=from_host),
                        made_by.layers,
                        replayed,
                        steps,
                        [window for window, _, _ in windows],
                        longest=longest,
                        from_host=from_host,
                    )
                    # All ranks run the model again if one does, because of its exchanges.
                    if not any(ranks.gathered(bool(alike))):
                        continue
                    try:
                        of_kind, apart = window_turns(
                            alike,
                            replayed,
                            program,
                            inputs,
                            max(steps),
                            device,
                            cache,
                            made_by,
                        )
                        windows += of_kind
                        missing |= apart
                    except Exception as problem:  # whatever a program raises, calls come first
                        if ranks.count > 1:  # the other ranks wait in an exchange
                            raise
                        settle(device)
                        missing["windows"] = str(problem).strip().partition("\n")[0]
                limit_bytes = cold_bytes(device)
                captured = [
                    (step, *capture_step(program, inputs, step, limit_bytes)) for step in steps
                ]
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"{profile.model} does not fit into the memory of {device} together with the "
                "arguments of its calls: choose fewer with --kernels, or profile a smaller size."
            ) from None
        except GpuEnergyError:
            raise
        except Exception as error:  # a program may raise anything
            raise DeviceError(failure_words(program, profile.prompt, device, error)) from error
        workloads = ReplayWorkloads(profile, cache)

        def as_counted(function: Callable[[], object]) -> Callable[[], object]:
            """Return a function to capture, which makes the calls that the account counts."""
            return with_calls_of(function, is_capturing=True) if profile.graph_differs else function

        wholes, gapped = [], []
        for step, whole, inside in captured:
            if LAYERS not in inside:
                missing[step_key(step, LAYERS)] = "no layers of the model are known"
            for level, functions in {**inside, EAGER: [whole]}.items():
                if not any(calls_at(call, step, level, profile.modules) for call in calls):
                    continue  # it launches nothing, as dropout does
                in_turn = functions if level == EAGER else list(map(as_counted, functions))
                own = CallTurns(in_turn)
                repeat = partial(_repeater, own, device, ranks, from_host=level == EAGER)
                wholes.append(workloads.step(step, level, repeat))
            (graph,) = inside[GRAPH]
            own = CallTurns([with_empty_kernels(as_counted(graph))])
            gapped.append(workloads.gapped_step(step, partial(_repeater, own, device, ranks)))

        def changes(measured: Mapping[str, Measurement]) -> Iterator[PlannedChange]:
            """Yield changes of the whole steps, of modules in layers, and of calls."""

            def item(key: str, label: str, functions: Sequence[Callable[[], object]]) -> Replayable:
                repeat = partial(_repeater, CallTurns(functions), device, ALONE)
                return workloads.changed(key, label, repeat, len(functions))

            with torch.inference_mode():
                reads = [ResultReads(program.modules), ResultReads(program.modules)]
                for in_graph, noting in enumerate(reads):
                    with told_of_capture(bool(in_graph)), noting:
                        program.run(inputs, max(steps) + 1)
                for step, _, inside in captured:
                    if profile.graph_differs:
                        key = f"{step_key(step, GRAPH)}-from-host"
                        change = CallChange(
                            "capture the calls that are made from the host",
                            *(step_key(step, GRAPH), key, {step: 1}),
                        )
                        from_host = with_calls_of(*inside[GRAPH], is_capturing=False)
                        yield PlannedChange(change, [item(key, GRAPH, [from_host])])
                for call in most_energy(calls, measured, steps):
                    if call.id not in turns:
                        continue
                    own = [one for one in turns[call.id].calls if isinstance(one, LiveCall)]
                    for found in call_changes(call, own, reads[0 if call.turns else 1]):
                        change = CallChange(
                            f"{call.operator}: {found.words}",
                            *(call.id, f"{call.id}-{found.name}"),
                            {step: n for step, n in call.in_graph.steps.items() if step in steps},
                            found.error,
                        )
                        changed = item(change.after, call.operator, found.calls)
                        yield PlannedChange(change, [changed])
                for step, whole, _ in captured:
                    with told_of_capture(True):
                        fusible = fusible_modules(program.layers, whole, _FUSED)
                    for number, group in enumerate(fusible):
                        before = f"step{step}-fusible{number}-{group.name}"
                        try:
                            functions, error = group.compiled()
                        except Exception as problem:  # the compiler may raise anything
                            missing[before] = str(problem).strip().partition("\n")[0]
                            continue
                        change = CallChange(
                            f"fuse the {group.operators} calls of {group.name} by torch.compile",
                            *(before, f"{before}-fused", {step: group.count}, error),
                        )
                        now = item(before, group.name, group.plain())
                        fused = item(change.after, group.name, functions)
                        yield PlannedChange(change, [now, fused])

        def host_gaps(step: int, period_ns: int) -> Replayable:
            own = CallTurns([spaced_launches(1e-9 * period_ns)])
            repeat = partial(_repeater, own, device, ALONE, from_host=True)
            return workloads.host_gaps(step, period_ns, repeat)

        def repeat_call(call: UniqueCall) -> tuple[Repeat, int]:
            """Return what launches a call, and the number of its turns."""
            own, shared_by = turns[call.id], ranks if call.is_exchange else ALONE
            return partial(_repeater, own, device, shared_by), len(own.calls)

        # In case that the replay is interrupted; all ranks have exchanges in the same order.
        exchanges = [call for call in in_order if call.is_exchange]
        others = [call for call in in_order if not call.is_exchange]
        most_time_first = [*exchanges, *sorted(others, key=lambda call: -call.total_us)]

        def with_restores(found: Replayable, own: CallTurns) -> list[Replayable]:
            """Return calls, and what is done before each of them, if anything is."""
            if not own.restores:
                return [found]
            repeat = partial(_repeater, CallTurns(own.restores), device, ALONE)
            return workloads.with_restores(found, repeat)

        calls_alone = [
            item
            for call in most_time_first
            if call.id in turns
            for item in with_restores(
                workloads.call(call, *repeat_call(call), durations_us[call.id]), turns[call.id]
            )
        ]
        in_windows = [
            item
            for window, own, gpu_us in windows
            for item in with_restores(
                workloads.window(
                    *(window.step, window.number, window.calls, len(window.numbers)),
                    *(partial(_repeater, own, device, ALONE), len(own.calls), gpu_us),
                    is_layer=window.is_layer,
                    from_host=window.from_host,
                ),
                own,
            )
        ]
        planned = {item.key: item for item in (*calls_alone, *in_windows)}
        all_turns = turns | {window.key: own for window, own, _ in windows}

        def spaced(key: str, gaps: int, spaced_key: str) -> Replayable:
            own, found = replace(all_turns[key], gaps=gaps), planned[key]
            repeat = partial(_repeater, own, device, ranks if found.together else ALONE)
            return workloads.spaced(found, repeat, gaps, spaced_key)

        return ReplayPlan(
            wholes,
            calls_alone,
            missing,
            spaced,
            workloads.gap(partial(_repeater, CallTurns([gap]), device, ALONE)),
            name,
            gapped,
            changes if ranks.count == 1 else None,
            in_windows,
            host_gaps,
        )

    return plan


def most_energy(
    calls: Sequence[UniqueCall], measured: Mapping[str, Measurement], steps: Sequence[int]
) -> list[UniqueCall]:
    """Return the calls that take most energy of a step, as graphs, each once."""

    def energy_mj(call: UniqueCall, step: int) -> float:
        found = figures_of(measured.get(call.id), measured, None)
        return call.in_graph.steps.get(step, 0) * (0.0 if found is None else found.energy_mj)

    found = {
        call.id: call
        for step in steps
        for call in sorted(calls, key=lambda one: -energy_mj(one, step))[:_CHANGED]
        if energy_mj(call, step) > 0
    }
    return list(found.values())


@contextmanager
def _repeater(
    turns: CallTurns, device: str, ranks: Ranks, *, from_host: bool = False
) -> Iterator[Repeater]:
    try:
        with torch.inference_mode():
            try:
                repeater = devices.GraphRepeater(
                    [turns.rotating()],
                    multiple=len(turns.calls),
                    from_host=from_host,
                    most=ranks.most,
                )
            except (RuntimeError, GpuEnergyError):
                raise
            except Exception as error:  # a module may raise anything
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
            yield repeater
    except RuntimeError:
        settle(device)
        raise
