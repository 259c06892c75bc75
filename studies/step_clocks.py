"""Measures at which clock the calls of a prefill run: alone, with gaps, and in the step.

    python studies/step_clocks.py gemma-2b --json step-clocks.json

Needs a GPU, CuPy, PyTorch and transformers. The mean clock of a graph does not tell the clock of
its parts, so marks between its calls do. Energies and times of the graphs are those of the harness.
Calls that take most of the step's time are heavy if they are linear layers, and light otherwise. A
heavy call is measured alone, with gaps after it, and in blocks with gaps; a light call alone, and
after a heavy one. Results are written after each measurement.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
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
_BLOCKS = (8, 64)
"""The numbers of calls before as many gaps: how long a load lasts without a gap."""


def key_of(func: Any, args: Any, keywords: Any) -> str:
    """Return the operator of a call, with the shapes of its tensors."""
    from torch.utils._pytree import tree_leaves

    shapes = [
        "x".join(map(str, leaf.shape))
        for leaf in tree_leaves((args, keywords))
        if hasattr(leaf, "shape")
    ]
    return f"{func} {' '.join(shapes)}"


def modes(marks: Any) -> tuple[Any, Any]:
    """Return the class of a context that marks calls, and of one that keeps them."""
    from pytest_gpuenergy.replay.profile.capture import OperatorMode

    class Marking(OperatorMode):
        """Makes a mark after each call, or before and after the chosen ones."""

        def __init__(self, chosen: Sequence[str] = ()) -> None:
            super().__init__()
            self.chosen = frozenset(chosen)
            self.labels: list[str] = []

        def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            key = key_of(func, args, keywords)
            is_marked = key in self.chosen if self.chosen else not func.is_view
            if is_marked and self.chosen:
                marks.mark()
                self.labels.append("others")
            returned = func(*args, **keywords)
            if is_marked:
                marks.mark()
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

    return Marking, Keeping


class Study:
    """Measures graphs one after another, and keeps what was found in a file."""

    def __init__(self, harness: Harness, enforced: Setpoint, marks: Any, path: Path) -> None:
        self._harness = harness
        self._enforced = enforced
        self._marks = marks
        self._path = path
        self.found: list[dict[str, Any]] = []

    def _spans(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the mean time and clock of the spans that end with marks of each label."""
        found = self._marks.spans(labels)
        return {
            label: {
                "in_period": labels.count(label),
                "us": span.time_us,
                "mhz": span.clock_mhz,
            }
            for label, span in found.items()
        }

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
            labels: Returns the labels of the marks of one turn, once it has been captured.
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
            self._marks.restart()
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
            "spans": self._spans(labels()) if labels() else {},
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


def main() -> int:
    """Measure a step and its calls; see the module's documentation."""
    parser = study_parser(__doc__)
    parser.add_argument("model", choices=sorted(CONFIGS))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    import torch

    from pytest_gpuenergy.replay import capture_step, load_model
    from pytest_gpuenergy.replay.play.turns import gap
    from pytest_gpuenergy.replay.profile.programs import Prompt

    with (
        open_device("auto") as device,
        Station(device) as station,
        station.under(CURRENT) as enforced,
        torch.inference_mode(),
    ):
        harness = station.harness(cache="hot", min_launches=0)
        gpu = f"cuda:{device.ordinal}" if hasattr(device, "ordinal") else "cpu"
        with tempfile.TemporaryDirectory() as folder, harness.heating():
            Path(folder, "config.json").write_text(json.dumps(CONFIGS[options.model]))
            program = load_model(folder, device=gpu)
        marks = devices.ClockMarks()
        marking, keeping = modes(marks)
        prompt = Prompt(options.prompt_tokens, 1, options.batch)
        _, levels = capture_step(program, program.inputs(prompt, gpu), 0)
        (step,) = levels["graph"]
        study = Study(harness, enforced, marks, options.json)
        study.measure("step", [step])

        def marked(name: str, chosen: Sequence[str] = ()) -> dict[str, Any]:
            mode = marking(chosen)

            def function() -> object:
                mode.labels.clear()
                with mode:
                    return step()

            return study.measure(name, [function], lambda: mode.labels)["spans"]

        in_step = marked("step, marked")
        counts = {key: span["in_period"] * span["us"] for key, span in in_step.items()}
        order = sorted(counts, key=lambda key: -counts[key])
        heavy = [key for key in order if key.startswith("aten.linear")][:_HEAVY]
        light = [key for key in order if key not in heavy][:_LIGHT]
        marked("step, heavy marked", heavy)
        mode = keeping([*heavy, *light])
        with mode:
            step()
        kept = mode.kept
        study.measure("gap", [gap])

        def sequence(*parts: Callable[[], object]) -> Callable[[], object]:
            def function() -> object:
                return [part() for part in parts]

            return function

        def spaced(key: str, block: int, gaps: int) -> None:
            calls = kept[key]
            several = [[calls[(turn + i) % len(calls)] for i in range(block)] for turn in range(8)]
            study.measure(
                f"{key}, {block} with {gaps} gaps",
                [sequence(*group, marks.mark, *[gap] * gaps, marks.mark) for group in several],
                lambda: ["call", "gaps"],
            )

        alone_ms = {}
        for key in heavy:
            study.measure(f"{key}, alone", kept[key])
            row = study.measure(
                f"{key}, alone, marked",
                [sequence(call, marks.mark) for call in kept[key]],
                lambda: ["call"],
            )
            alone_ms[key] = row["time_ms"] or 1.0
            for share in _HEAVY_GAPS:
                spaced(key, 1, max(1, round(share * alone_ms[key] / _GAP_MS)))
        for key in light:
            row = study.measure(
                f"{key}, alone, marked",
                [sequence(call, marks.mark) for call in kept[key]],
                lambda: ["call"],
            )
            alone_ms[key] = row["time_ms"] or 1.0
            count = max(1, round(alone_ms[heavy[0]] / alone_ms[key]))
            several = [
                (first, [kept[key][(turn + i) % len(kept[key])] for i in range(count)])
                for turn, first in enumerate(kept[heavy[0]])
            ]
            study.measure(
                f"{key}, {count} after heavy",
                [sequence(first, marks.mark, *others, marks.mark) for first, others in several],
                lambda: ["heavy", "light"],
            )
        for block in _BLOCKS:
            spaced(heavy[0], block, max(1, round(block * alone_ms[heavy[0]] / _GAP_MS)))
        study.measure("step again", [step])
    return 0


if __name__ == "__main__":
    sys.exit(main())
