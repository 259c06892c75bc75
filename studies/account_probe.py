"""Locates what an account misses: pieces of a step, launched as graphs, with time and energy.

For a language model of transformers it measures, for the prefill and a decode step: the whole step,
the layers, the step without its layers, each part outside of the layers alone and in sequence; and
prints what a CUDA graph of the step launches beside what the host launches.

    python studies/account_probe.py MODEL --json probe.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import SWINGS_S, Station, Subject
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import WorkloadInfo
from pytest_gpuenergy.replay.play.live import CallTurns, capture_step, gap
from pytest_gpuenergy.replay.profile.language_models import load_program
from pytest_gpuenergy.replay.profile.profiling import profiler_on
from pytest_gpuenergy.replay.profile.programs import Prompt

BRIEF = MeterSettings(
    warmup_s=0.5,
    warmup_max_s=0.5,
    restrained_warmup_s=SWINGS_S,
    steady_slope_per_s=0.03,
    min_measure_s=0.5,
    max_measure_s=0.8,
    relative_half_width=0.01,
    preheat_s=0.0,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--gpu-device", default="auto")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with open_device(options.gpu_device, index=0) as device, Station(device) as station:
        name = f"cuda:{device.ordinal}"
        torch.cuda.set_device(name)
        probe = Probe(station.harness(cache="hot"), rows, options.json)
        program = load_program(
            options.model, dtype="float16", attention="auto", seed=0, device=name
        )
        with torch.inference_mode():
            inputs = program.inputs(Prompt(options.prompt_tokens, 2, 1, 0), name)
            program.run(inputs, 2)
            for step in (0, 1):
                examine(probe, program, inputs, step, name)
            gaps(probe)
    probe.write()


class Probe:
    def __init__(self, harness, rows, path) -> None:
        self.harness, self.rows, self.path = harness, rows, path
        self.notes: dict[str, object] = {}

    def measure(self, key: str, *functions, multiple: int = 0) -> None:
        from pytest_gpuenergy.devices import GraphRepeater

        turns = CallTurns(functions)

        @contextmanager
        def repeat():
            with torch.inference_mode():
                yield GraphRepeater([turns.rotating()], multiple=len(functions))

        try:
            found = self.harness.measure_callable(
                repeat, WorkloadInfo(key, {}, 0, 0), Subject(key, key), "probe", settings=BRIEF
            )
        except Exception as error:
            print(f"{key}: {type(error).__name__} {str(error)[:200]}", flush=True)
            return
        row = {
            "key": key,
            "us": round(1e3 * (found.time_ms or 0), 3),
            "mj": round(found.raw_energy_mj or 0, 4),
            "w": round(found.power_w or 0, 1),
            "mhz": round(found.effective_sm_clock_mhz or 0),
            "c": found.temperature_c,
            "cap": found.cap_binding,
        }
        self.rows.append(row)
        print(*row.values(), flush=True)

    def write(self) -> None:
        self.path.write_text(json.dumps({"rows": self.rows, "notes": self.notes}))


def examine(probe: Probe, program, inputs, step: int, device: str) -> None:
    whole, inside = capture_step(program, inputs, step)
    layers = inside["layers"]
    prefix = f"step{step}"
    compare_launches(probe, whole, device, f"{prefix}-whole")
    probe.measure(f"{prefix}-whole", whole)
    probe.measure(f"{prefix}-layers", layers)
    model = program.model
    body, head = model.base_model, model.get_output_embeddings()
    kept: dict[str, tuple] = {}

    def keep(name):
        def hook(module, args, kwargs):
            kept.setdefault(name, (args, kwargs))

        return hook

    hooks = [head.register_forward_pre_hook(keep("head"), with_kwargs=True)]
    for name, part in body.named_children():
        if not isinstance(part, torch.nn.ModuleList):
            hooks.append(part.register_forward_pre_hook(keep(name), with_kwargs=True))
    whole()
    for hook in hooks:
        hook.remove()
    parts = {
        name: (head if name == "head" else getattr(body, name), *arguments)
        for name, arguments in kept.items()
    }
    calls = {
        name: (lambda module=module, args=args, kwargs=kwargs: module(*args, **kwargs))
        for name, (module, args, kwargs) in parts.items()
    }
    logits = calls["head"]()
    calls["argmax"] = lambda: logits[:, -1:].argmax(dim=-1)
    print(list(calls), flush=True)
    for name, call in calls.items():
        probe.measure(f"{prefix}-{name}", call)
    probe.measure(f"{prefix}-head+argmax", lambda: calls["head"]()[:, -1:].argmax(dim=-1))

    def outside():
        for call in calls.values():
            call()

    probe.measure(f"{prefix}-outside", outside)

    def layers_and_head():
        layers()
        return calls["head"]()

    probe.measure(f"{prefix}-layers+head", layers_and_head)

    def layers_and_argmax():
        layers()
        return calls["argmax"]()

    probe.measure(f"{prefix}-layers+argmax", layers_and_argmax)

    def layers_and_outside():
        layers()
        outside()

    probe.measure(f"{prefix}-layers+outside", layers_and_outside)

    def spaced_head():
        calls["head"]()
        for _ in range(12):
            gap()

    probe.measure(f"{prefix}-head+12gaps", spaced_head)


def compare_launches(probe: Probe, function, device: str, key: str) -> None:
    """Print what the host launches beside what a graph launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
        function()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = function()
        for _ in range(3):
            graph.replay()
    torch.cuda.synchronize()
    found = {}
    for name, run in (("host", function), ("graph", graph.replay)):
        for _ in range(30):
            run()
        with profiler_on(device) as profiler:
            for _ in range(4):
                run()
            torch.cuda.synchronize()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        kernels = sorted(
            (float(event["ts"]), float(event["dur"]), str(event["name"]))
            for event in events
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        )
        found[name] = kernels
    summary = {}
    for name, kernels in found.items():
        each: dict[str, list[float]] = defaultdict(list)
        for _, dur, kernel in kernels:
            each[kernel].append(dur)
        summary[name] = {k: (len(v) / 4, sum(v) / 4) for k, v in each.items()}
        span = kernels[-1][0] + kernels[-1][1] - kernels[0][0]
        print(
            f"{key} {name}: {len(kernels) / 4} launches, {sum(k[1] for k in kernels) / 4:.1f} us "
            f"busy, span of four {span:.1f} us",
            flush=True,
        )
    names = sorted(
        summary["host"].keys() | summary["graph"].keys(),
        key=lambda k: -abs(summary["graph"].get(k, (0, 0))[1] - summary["host"].get(k, (0, 0))[1]),
    )
    for kernel in names[:12]:
        host, graphed = (summary[n].get(kernel, (0, 0)) for n in ("host", "graph"))
        print(
            f"  {host[0]:g} x {host[1]:.1f} host, {graphed[0]:g} x {graphed[1]:.1f} graph: {kernel[:90]}"
        )
    kernels = found["graph"]
    count = len(kernels) // 4
    one = kernels[2 * count : 3 * count + 1]
    lines = []
    for (ts, dur, kernel), (following, _, _) in zip(one, one[1:], strict=False):
        lines.append((round(dur, 2), round(following - ts - dur, 2), kernel[:60]))
    probe.notes[key] = {
        "lines": lines,
        "summary": {n: {k[:90]: v for k, v in s.items()} for n, s in summary.items()},
    }
    gaps = [gap for _, gap, _ in lines]
    print(
        f"  gaps in the graph: median {median(gaps):.2f} us, sum {sum(gaps):.1f}, largest {sorted(gaps)[-4:]}"
    )
    for line in [*lines[:14], ("...",), *lines[-14:]]:
        print("  ", *line)
    probe.write()
    del graph, kept


def gaps(probe: Probe) -> None:
    """Measure the power of empty kernels by what runs before them."""
    x = torch.zeros(1, device="cuda")
    big = torch.zeros(64 << 20, dtype=torch.float16, device="cuda")
    out = torch.zeros_like(big)
    a = torch.randn(2048, 2048, dtype=torch.float16, device="cuda")
    kinds = {
        "empty": lambda: x.fill_(0.0),
        "copy": lambda: out.copy_(big),
        "product": lambda: torch.mm(a, a),
        "spin": gap,
    }
    for name, busy in kinds.items():
        probe.measure(f"gap-{name}", busy)
        for count in (4, 32):

            def both(busy=busy, count=count):
                busy()
                for _ in range(count):
                    x.fill_(0.0)

            probe.measure(f"gap-{name}+{count}", both)


if __name__ == "__main__":
    sys.exit(main())
