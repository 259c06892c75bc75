"""Measures at which clock the calls of a prefill run: alone, with gaps, and in the step.

    python studies/step_clocks.py gemma-2b --json step-clocks.json

Needs a GPU, CuPy, PyTorch and transformers. The mean clock of a graph does not tell the clock of
its parts: between calls, a kernel of one thread notes the cycles of its SM and the GPU's
nanoseconds, in the graph itself. Energies and times of the graphs are those of the harness. Calls
that take most of the step's time are heavy if they are linear layers, and light otherwise; both are
measured alone, and heavy ones with gaps after them. Results are written after each measurement.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from account_models import CONFIGS
from study_command import study_parser

from pytest_gpuenergy import devices
from pytest_gpuenergy.control import CURRENT, Setpoint
from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import Harness, Station, Subject
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import WorkloadInfo
from pytest_gpuenergy.replay.profile.language_models import BUILT_IN

MODELS = sorted({*CONFIGS, *BUILT_IN})
_GAP_MS = 0.02
_GAP_CYCLES = 36_000
_SETTINGS = MeterSettings(
    warmup_s=0.6,
    warmup_max_s=0.6,
    steady_slope_per_s=0.03,
    min_measure_s=0.5,
    max_measure_s=1.0,
    relative_half_width=0.01,
    preheat_s=0.0,
)
_HEAVY, _LIGHT, _INSTANCES = 3, 7, 8
_HEAVY_GAPS = (0.5, 1.5)
"""The time of the gaps after a heavy call, as multiples of the call's."""


class Notes:
    """A kernel that notes the clock where it is launched, in graphs too."""

    def __init__(self) -> None:
        import cupy

        self._module = cupy.cuda.function.Module()
        self._module.load(devices.NOTE_PTX)
        self._note = self._module.get_function("note")
        self._notes = cupy.zeros(3 * devices.MAX_NOTES, dtype="u8")
        self._count = cupy.zeros(1, dtype="u4")
        self._cupy = cupy
        self._began = 0

    def restart(self) -> None:
        """Forget the notes so far."""
        self._cupy.cuda.Device().synchronize()
        self._began = int(self._count.get()[0])

    def __call__(self) -> None:
        """Enqueue a note on CuPy's current stream."""
        self._note((1,), (1,), (self._notes, self._count))

    def latest(self) -> list[tuple[int, int, int]]:
        """Return the nanoseconds, cycles and SM of the latest notes since the restart, in order."""
        self._cupy.cuda.Device().synchronize()
        total = int(self._count.get()[0])
        kept = self._notes.get().reshape(-1, 3).tolist()
        first = max(self._began, total - devices.MAX_NOTES)
        return [tuple(kept[number % devices.MAX_NOTES]) for number in range(first, total)]


def spans(notes: Sequence[tuple[int, int, int]], labels: Sequence[str]) -> dict[str, Any]:
    """Return by label the mean time of the spans that end with its notes, and the clock in them.

    Args:
        notes: The latest notes; the last one is the last of ``labels``.
        labels: The label of each note of a period.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    whole = len(notes) - len(notes) % len(labels)
    for number in range(len(notes) - whole + 1, len(notes)):
        (ns, cycles, sm), (before_ns, before_cycles, before_sm) = notes[number], notes[number - 1]
        label = labels[(number - len(notes)) % len(labels)]
        found = sums[label]
        found[0] += 1
        found[1] += ns - before_ns
        if sm == before_sm and ns > before_ns:
            found[2] += ns - before_ns
            found[3] += cycles - before_cycles
    return {
        label: {
            "spans": int(number),
            "us": total / number / 1e3,
            "mhz": 1e3 * cycles / clocked if clocked else None,
        }
        for label, (number, total, clocked, cycles) in sums.items()
    }


def key_of(func: Any, args: Any, keywords: Any) -> str:
    """Return the operator of a call, with the shapes of its tensors."""
    from torch.utils._pytree import tree_leaves

    shapes = [
        "x".join(map(str, leaf.shape))
        for leaf in tree_leaves((args, keywords))
        if hasattr(leaf, "shape")
    ]
    return f"{func} {' '.join(shapes)}"


def modes(notes: Notes) -> tuple[Any, Any]:
    """Return the class of a context that notes calls, and of one that keeps them."""
    from pytest_gpuenergy.replay.profile.capture import OperatorMode

    class Noting(OperatorMode):
        """Makes a note after each call, or before and after the chosen ones."""

        def __init__(self, chosen: Sequence[str] = ()) -> None:
            super().__init__()
            self.chosen = frozenset(chosen)
            self.labels: list[str] = []

        def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            key = key_of(func, args, keywords)
            is_noted = key in self.chosen if self.chosen else not func.is_view
            if is_noted and self.chosen:
                notes()
                self.labels.append("others")
            returned = func(*args, **keywords)
            if is_noted:
                notes()
                self.labels.append(key)
            return returned

    class Keeping(OperatorMode):
        """Keeps the first calls of each chosen form."""

        def __init__(self, chosen: Sequence[str]) -> None:
            super().__init__()
            self.kept: dict[str, list[Callable[[], object]]] = {key: [] for key in chosen}

        def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            group = self.kept.get(key_of(func, args, keywords))
            if group is not None and len(group) < _INSTANCES:
                group.append(partial(func, *args, **keywords))
            return func(*args, **keywords)

    return Noting, Keeping


class Study:
    """Measures graphs one after another, and keeps what was found in a file."""

    def __init__(self, harness: Harness, enforced: Setpoint, notes: Notes, path: Path) -> None:
        self._harness = harness
        self._enforced = enforced
        self._notes = notes
        self._path = path
        self.found: list[dict[str, Any]] = []

    def measure(
        self,
        name: str,
        functions: Sequence[Callable[[], object]],
        labels: Callable[[], Sequence[str]] = tuple,
    ) -> dict[str, Any]:
        """Measure a graph of ``functions`` in turn.

        Args:
            name: The name of the measurement.
            functions: What each turn launches.
            labels: Returns the labels of the notes of one turn, once it has been captured.
        """
        import torch

        following = iter(())

        def call() -> object:
            nonlocal following
            function = next(following, None)
            if function is None:
                following = iter(functions)
                function = next(following)
            with torch.inference_mode():
                return function()

        @contextmanager
        def repeater() -> Iterator[Any]:
            self._notes.restart()
            with torch.inference_mode():
                yield devices.GraphRepeater([call], multiple=len(functions))

        subject = Subject(f"step_clocks::{name}", name, CURRENT, self._enforced)
        workload = WorkloadInfo(name, {"replays": name}, 0, 0)
        one = self._harness.measure_callable(
            repeater, workload, subject, "replay", settings=_SETTINGS
        )
        interval = one.energy_mj_ci95
        row = {
            "name": name,
            "time_ms": one.time_ms,
            "energy_mj": one.raw_energy_mj,
            "half_width_mj": None if interval is None else (interval.high - interval.low) / 2,
            "mhz": one.effective_sm_clock_mhz,
            "temperature_c": one.temperature_c,
            "change_per_k": one.energy_change_per_k,
            "at_limit": one.cap_binding,
            "error": one.error,
            "spans": spans(self._notes.latest(), labels()) if labels() else {},
        }
        self.found.append(row)
        self._path.write_text(json.dumps(self.found, indent=1))
        time_ms, energy_mj = one.time_ms or math.nan, one.raw_energy_mj or math.nan
        print(
            f"{name[:100]}: {time_ms * 1e3:.1f} us {energy_mj:.3f} mJ {energy_mj / time_ms:.0f} W "
            f"{one.effective_sm_clock_mhz or math.nan:.0f} MHz"
        )
        for label, span in list(row["spans"].items())[:4] if len(functions) > 1 else ():
            print(f"    {label[:60]}: {span['us']:.1f} us {span['mhz'] or math.nan:.0f} MHz")
        sys.stdout.flush()
        return row


@contextmanager
def study_of(model: str, path: Path) -> Iterator[tuple[Study, Notes, Any, str]]:
    """Open a GPU and load one of `MODELS` on it.

    Args:
        model: The name of the model.
        path: The file of the results.

    Yields:
        A study, its notes, the model and PyTorch's name of the GPU.
    """
    import torch

    from pytest_gpuenergy.replay import load_model

    with (
        open_device("auto") as device,
        Station(device) as station,
        station.under(CURRENT) as enforced,
        torch.inference_mode(),
    ):
        harness = station.harness(cache="hot", min_launches=0)
        gpu = f"cuda:{device.ordinal}" if hasattr(device, "ordinal") else "cpu"
        with tempfile.TemporaryDirectory() as folder, harness.heating():
            if model in CONFIGS:
                Path(folder, "config.json").write_text(json.dumps(CONFIGS[model]))
            program = load_model(folder if model in CONFIGS else model, device=gpu)
        notes = Notes()
        yield Study(harness, enforced, notes, path), notes, program, gpu


def main() -> int:
    """Measure a step and its calls; see the module's documentation."""
    parser = study_parser(__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()

    from pytest_gpuenergy.replay import capture_step
    from pytest_gpuenergy.replay.play.turns import gap
    from pytest_gpuenergy.replay.profile.programs import Prompt, told_of_capture

    with study_of(options.model, options.json) as (study, notes, program, gpu):
        noting, keeping = modes(notes)
        prompt = Prompt(options.prompt_tokens, 1, options.batch)
        _, levels = capture_step(program, program.inputs(prompt, gpu), 0)
        (step,) = levels["graph"]
        study.measure("step", [step])

        def noted(name: str, chosen: Sequence[str] = ()) -> dict[str, Any]:
            mode = noting(chosen)

            def function() -> object:
                mode.labels.clear()
                with mode:
                    return step()

            return study.measure(name, [function], lambda: mode.labels)["spans"]

        in_step = noted("step, noted")
        counts = {key: span["spans"] * span["us"] for key, span in in_step.items()}
        order = sorted(counts, key=lambda key: -counts[key])
        heavy = [key for key in order if key.startswith("aten.linear")][:_HEAVY]
        light = [key for key in order if key not in heavy][:_LIGHT]
        noted("step, heavy noted", heavy)
        mode = keeping([*heavy, *light])
        with told_of_capture(True), mode:
            step()
        kept = mode.kept
        study.measure("gap", [gap])

        def then(call: Callable[[], object], gaps: int) -> Callable[[], object]:
            def function() -> object:
                returned = call()
                notes()
                if gaps:
                    for _ in range(gaps):
                        gap()
                    notes()
                return returned

            return function

        for key in filter(kept.get, [*heavy, *light]):
            alone_ms = study.measure(f"{key}, alone", kept[key])["time_ms"] or 1.0
            for share in (0.0, *_HEAVY_GAPS) if key in heavy else (0.0,):
                gaps = round(share * alone_ms / _GAP_MS)
                study.measure(
                    f"{key}, noted, with {gaps} gaps",
                    [then(call, gaps) for call in kept[key]],
                    ["call", "gaps"].copy if gaps else ["call"].copy,
                )
        study.measure("step again", [step])
    return 0


if __name__ == "__main__":
    sys.exit(main())
