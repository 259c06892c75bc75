"""Time the first kernels of the estimate, and cuDNN, in many convolutions on one card.

    python studies/convolution_sweep.py TRIALS.json.gz [--compile] [--seconds S] [--modes LIST]

Each convolution (case1 to case7, layers of YOLO and all of ResNet-50, twelve drawn ones that
nothing was tuned for, and drawn ones of the kinds that lost in earlier trials) is computed in each
mode and layout by some kernels of the templates: the first ones of the estimate, each with another
tile, from each way of copying. A kernel is compared with PyTorch's conv2d in float64. Launches are
replays of CUDA graphs, with tensors in the L2 cache if they fit: first a short window for each
kernel, then the best two beside cuDNN in turns, three windows each, of which the median is stored;
their errors are taken again at the end. cuDNN is PyTorch's conv2d with `cudnn.benchmark`, in both
layouts. In bfloat16, only the tiles that were best in float16 are tried.

With `--compile`, all kernels are only compiled, into the cache. With `--seconds`, the joules of the
best of each mode and layout, and of cuDNN, are read from the card's counter over so many seconds.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.devices.cuda.binders import bind
from pytest_gpuenergy.devices.cuda.compiler_pools import CompilerPools
from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import TEMPLATES
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d, network

CARD = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
"""The resources of an H100 and of an H200."""
MODES = ("3xtf32", "tf32", "float16", "bfloat16")
_DRAWN, _SEED = 12, 45
_ODD, _FEW, _KINDRED_SEED = 5, 3, 46
_FRESH, _FRESH_SEED, _UNSEEN_SEED, _BLIND_SEED = 12, 4711, 1129, 291120
_KINDS, _KIND_SEED, _NEW_SEED, _LAST_SEED = 40, 4540, 521288629, 362436069
_FINAL_SEED, _FURTHER_SEED = 88675123, 5783321
_FRESH_WINDOWS = ((1, 1), (1, 1), (3, 3), (3, 3), (5, 5), (1, 7), (7, 1), (2, 3), (4, 4))
_FRESH_ELEMENTS = 1 << 26
"""The most elements of an input or an output of a fresh layer."""
_KERNELS_OF_A_WAY = {1: 8, 2: 6}
_KERNELS_OF_OTHERS = 2
_WINDOW_S, _ROUNDS = 0.002, 3
_HEATING_S = 0.1
_BATCH_S, _QUEUED = 0.005, 10
"""The duration of a batch of replays, and the batches that are under way."""
_ANY = (1, 1, 1, 1, 1, 1, 1, 1, 0)
"""The sizes of some convolution."""
_LAUNCHES_OF_A_GRAPH = 20
_STORED_S = 3
"""The seconds after which what was measured is written again."""
_PROCESSORS_LEFT = 3
"""The processors on which nothing is compiled."""


def drawn_layers() -> list[Conv2d]:
    """Return twelve convolutions with drawn sizes that nothing was tuned for."""
    drawn, layers = random.Random(_SEED), []
    while len(layers) < _DRAWN:
        window = drawn.choice((1, 3, 3, 3, 5, 7))
        dilation = drawn.choice((1, 1, 1, 2)) if window > 1 else 1
        height = drawn.randint(10, 120)
        sizes = (
            *(drawn.choice((1, 1, 2, 4, 8)), height, height + drawn.randint(-9, 9)),
            *(drawn.randint(24, 400), drawn.randint(3, 400)),
            *(window, window, drawn.choice((1, 1, 2)), window * dilation // 2, dilation),
        )
        conv = Conv2d.of(f"drawn{len(layers) + 1:02}", *sizes)
        if 2e8 < conv.flops < 2e10:
            layers.append(conv)
    return layers


GROUPED: tuple[Conv2d, ...] = (
    Conv2d.of("group01", 1, 112, 112, 32, 32, 3, 3, 1, 1, 1, 32),
    Conv2d.of("group02", 1, 56, 56, 144, 144, 3, 3, 2, 1, 1, 144),
    Conv2d.of("group03", 8, 14, 14, 512, 512, 5, 5, 1, 2, 1, 512),
    Conv2d.of("group04", 1, 56, 56, 128, 128, 3, 3, 1, 1, 1, 32),
    Conv2d.of("group05", 8, 28, 28, 240, 120, 3, 3, 1, 1, 1, 3),
)
"""Depthwise convolutions as in MobileNet, and others with groups of 4 to 80 channels."""


def kindred_layers() -> list[Conv2d]:
    """Return convolutions of the kinds that lost against cuDNN in earlier trials, drawn.

    Five have so many channels that they fill no pieces of 16 bytes, and large inputs; three have
    one to four channels and a wide image.
    """
    drawn, layers = random.Random(_KINDRED_SEED), []
    while len(layers) < _ODD:
        height = drawn.randint(30, 120)
        sizes = (drawn.choice((2, 4, 8)), height, height + drawn.randint(-9, 9))
        channels = drawn.randint(24, 400), 2 * drawn.randint(20, 200) + 1
        stride = drawn.choice((1, 2))
        conv = Conv2d.of(f"odd{len(layers) + 1:02}", *sizes, *channels, 3, 3, stride, 1)
        if 1e9 < conv.flops < 2e10:
            layers.append(conv)
    for number in range(1, _FEW + 1):
        window, channels = drawn.choice((3, 5, 7)), drawn.randint(1, 4)
        sizes = (1, drawn.randint(300, 700), drawn.randint(300, 700), 8 * drawn.randint(2, 8))
        layers.append(
            Conv2d.of(
                f"few{number:02}",
                *(*sizes, channels, window, window, drawn.choice((1, 2)), window // 2),
            )
        )
    return layers


def fresh_layers(name: str = "fresh", seed: int = _FRESH_SEED, count: int = _FRESH) -> list[Conv2d]:
    """Return convolutions of any geometry, drawn once all others had been looked at.

    They have windows that are not square, more padding than half a window, strides up to 3,
    dilation up to 4, groups, up to 32 images, and any number of channels.
    """
    drawn, layers = random.Random(seed), []
    while len(layers) < count:
        window = drawn.choice(_FRESH_WINDOWS)
        dilation = drawn.choice((1, 1, 1, 2, 3, 4)) if max(window) > 1 else 1
        groups = drawn.choice((1, 1, 1, 1, 1, 2, 4))
        height = drawn.randint(7, 130)
        width = max(7, height + drawn.randint(-40, 40))
        channels = (groups * round(2 ** drawn.uniform(0, 10) / groups + 0.5) for _ in range(2))
        padding = drawn.choice((0, *[max(window) * dilation // 2] * 3, max(window) * dilation))
        sizes = (drawn.choice((1, 1, 1, 2, 5, 16, 32)), height, width, *channels, *window)
        with suppress(InputError):  # the window may be larger than the input
            more = (drawn.choice((1, 1, 1, 2, 3)), padding, dilation, groups)
            conv = Conv2d.of(f"{name}{len(layers) + 1:02}", *sizes, *more)
            s = conv.shape
            most = s.N * max(s.CI * s.H * s.W, s.CO * s.OH * s.OW)
            if 2e8 < conv.flops < 2e10 and most < _FRESH_ELEMENTS:
                layers.append(conv)
    return layers


def swept_layers() -> list[Conv2d]:
    """Return all convolutions of the sweep; of layers of the same sizes, the first."""
    found: dict[object, Conv2d] = {}
    for conv in (
        *(c for name in ("cases", "resnet", "yolo") for c in network(name)),
        *drawn_layers(),
        *kindred_layers(),
        *fresh_layers(),
        *fresh_layers("unseen", _UNSEEN_SEED),
        *fresh_layers("blind", _BLIND_SEED),
        *fresh_layers("kind", _KIND_SEED, _KINDS),
        *fresh_layers("new", _NEW_SEED),
        *fresh_layers("last", _LAST_SEED),
        *fresh_layers("final", _FINAL_SEED),
        *fresh_layers("further", _FURTHER_SEED),
        *GROUPED,
    ):
        found.setdefault(conv.shape, conv)
    return list(found.values())


@functools.cache
def offered(conv: Conv2d, few: int = 0) -> list[Any]:
    """Return parameters worth a trial: the first of each way to copy, with different tiles.

    Args:
        conv: the convolution.
        few: so many of each way of `implicit`, and one of `implicit_mma`; 0 for more.
    """
    ways: dict[tuple[object, ...], list[Any]] = {}
    for kind in TEMPLATES.values():
        if kind.computes(conv) and kind.suits(CARD):
            for one in sorted(kind.fitting(conv, CARD), key=lambda one: one.cycles(conv, CARD)):
                numbers = one.numbers
                copies = ("boxed", "packed", "unrolled", "line", "pitch", "split_before", "spread")
                way = (kind.template, *(numbers.get(name) for name in copies))
                ways.setdefault(way, []).append(one)
    of_hopper = sum(way[0] == "implicit" for way in ways)
    chosen = []
    for way, ranked in ways.items():
        most = _KERNELS_OF_A_WAY.get(of_hopper, 4) if way[0] == "implicit" else _KERNELS_OF_OTHERS
        names = ("tile_p", "tile_c", "consumers", "splits", "per_multiprocessor", "deep")
        names += ("rows", "columns", "channels", "read_first")
        tiles: dict[tuple[object, ...], Any] = {}
        for one in ranked:
            tiles.setdefault(tuple(one.numbers.get(name) for name in names), one)
        if few:
            most = 1 if way[0] == "implicit_mma" else few
        chosen += list(tiles.values())[:most]
        if way[2] and tiles:
            first = next(iter(tiles.values()))
            chosen.append(replace(first, early=not first.early))
    return chosen


def stored_kernels(
    paths: Sequence[Path], mark: str = "numbers"
) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Return the kernels of files whose rows have a mark, by mode, layout and layer."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path in paths:
        stored = json.loads(gzip.decompress(path.read_bytes()))
        for row in stored["rows"]:
            if "template" in row and mark in row:
                suffix = Conv2d.of("c", *_ANY).varied(mode=row["mode"], layout=row["layout"]).suffix
                key = (row["mode"], row["layout"], row["name"].removesuffix(suffix))
                found.setdefault(key, []).append(row)
    return found


@dataclass
class Sweep:
    """The trials of all convolutions.

    Attributes:
        path: the file to write.
        modes: the modes.
        pools: the compilers.
        seconds: how long the energy of each finalist is measured; 0 for not at all.
        earlier: the best kernels of earlier trials, by mode, layout and layer, to be tried again.
        late: whether no launch begins early.
        brief: whether all modes of a layer come first, those other than 3xtf32 in NHWC only.
        light: how names of layers begin whose energy is not measured.
        full: how names of layers begin that have all modes in both layouts nevertheless.
        few: how many kernels of each way to copy are tried; 0 for more.
        chosen: the kernels to try instead of those, by mode, layout and layer.
        rows: what was measured: kernels, and finalists beside cuDNN.
        compiled: the machine code of kernels.
        best: the best parameters of each convolution in float16, by its layout and shape.
    """

    path: Path
    modes: Sequence[str]
    pools: CompilerPools
    seconds: float
    earlier: Mapping[tuple[str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    late: bool = False
    few: int = 0
    chosen: Mapping[tuple[str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    brief: bool = False
    light: Sequence[str] = ()
    full: Sequence[str] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    compiled: dict[str, Future[Binary]] = field(default_factory=dict)
    best: dict[tuple[object, ...], list[Any]] = field(default_factory=dict)

    def candidates(self, conv: Conv2d) -> list[tuple[Any, Kernel]]:
        """Return parameters and their kernels."""
        like_half = conv.mode == "bfloat16" and not self.brief
        some = self.best.get((conv.layout, conv.shape)) if like_half else None
        name = conv.name.removesuffix(conv.suffix)
        key = (conv.mode, conv.layout, name)
        stored = (*self.earlier.get(key, ()), *self.chosen.get(key, ()))
        tried = [TEMPLATES[row["template"]].of(row["numbers"]) for row in stored]
        if not self.chosen:
            tried += offered(conv, self.few) if some is None else some
        if self.late:
            tried = [
                replace(one, early=False) if one.numbers.get("early") else one for one in tried
            ]
        found = []
        for one in dict.fromkeys(tried):
            with suppress(InputError):
                found.append((one, one.kernel(conv)))
        return found

    def packing_of(self, conv: Conv2d) -> Kernel | None:
        """Return the launch alone that packs for a convolution; None if no kernel has one."""
        for one, kernel in self.candidates(conv):
            if one.numbers.get("packed"):
                return replace(kernel, launches=kernel.launches[:1], tensor_maps=())
        return None

    def varied(self, layers: Sequence[Conv2d]) -> Iterator[tuple[Conv2d, str, list[Conv2d]]]:
        """Yield each layer and mode, with the convolutions of both layouts or of one."""
        every = [(layer, mode) for mode in self.modes for layer in layers]
        if self.brief:
            every = [(layer, mode) for layer in layers for mode in self.modes]
        for layer, mode in every:
            is_brief = self.brief and not layer.name.startswith(tuple(self.full))
            layouts = ("nhwc",) if is_brief and mode != "3xtf32" else CONV_LAYOUTS
            yield layer, mode, [layer.varied(mode=mode, layout=layout) for layout in layouts]

    def compile(self, layers: Sequence[Conv2d]) -> None:
        """Begin to compile all kernels whose parameters are known."""
        for _, mode, convs in self.varied(layers):
            later = mode == "bfloat16" and "float16" in self.modes and not self.brief
            for conv in () if later else convs:
                for _, kernel in self.candidates(conv):
                    self.submit(kernel)
                if (packing := self.packing_of(conv)) is not None:
                    self.submit(packing)

    def compile_aside(self, layers: Sequence[Conv2d]) -> None:
        """Do so on fewer processors, so that replays are never late while energy is measured.

        All is submitted before anything is timed: what another thread computes in Python would
        delay replays by milliseconds.
        """
        every = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, every[: max(1, len(every) - _PROCESSORS_LEFT)])  # the compilers'
        try:
            self.compile(layers)
        finally:
            os.sched_setaffinity(0, every)

    def submit(self, kernel: Kernel) -> Future[Binary]:
        """Begin to compile a kernel, once."""
        if kernel.digest not in self.compiled:
            future = self.pools.submit(kernel)
            assert future is not None
            self.compiled[kernel.digest] = future
        return self.compiled[kernel.digest]

    def store(self, **more: object) -> None:
        """Write what has been measured so far."""
        text = json.dumps({**more, "rows": self.rows}, separators=(",", ":"))
        self.path.write_bytes(gzip.compress(text.encode(), mtime=0))


class Card:
    """The card: runs kernels and PyTorch's conv2d on one stream, in CUDA graphs."""

    def __init__(self) -> None:
        import cupy
        import pynvml
        import torch

        self.cupy, self.torch = cupy, torch
        pynvml.nvmlInit()
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self._nvml = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        torch.backends.cudnn.benchmark = True
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        torch.cuda.set_stream(torch.cuda.ExternalStream(self.stream.ptr))

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """Return normally distributed numbers in a tensor."""
        return self.torch.randn(*shape, device="cuda").to(getattr(self.torch, dtype))

    def array_bytes(self, tensor: Any) -> Any:
        """Return the memory of a contiguous tensor as a CuPy array."""
        return self.cupy.asarray(tensor.reshape(-1).view(self.torch.uint8))

    def graph(self, launch: Callable[[], object], launches: int) -> Any:
        """Return a CUDA graph of launches; they ran before once."""
        graph = self.torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(launches):
                launch()
        except BaseException:
            with suppress(RuntimeError):  # the stream must not go on capturing
                graph.capture_end()
            raise
        graph.capture_end()
        return graph

    def seconds(self, graph: Any, replays: int) -> float:
        """Return the time of replays."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def power(self, graph: Any, graph_s: float, seconds: float) -> dict[str, Any]:
        """Return watts and the time of a replay under a steady load, without gaps.

        The window begins and ends where the card's energy counter advances.
        """
        import pynvml

        batch = max(1, round(_BATCH_S / graph_s))
        events, done, points, last = [], 0, [], None
        begin = time.perf_counter()
        while len(points) < 2 or points[-1][0] - points[0][0] < seconds:
            while len(events) < done + _QUEUED:  # reading the counter may take milliseconds
                for _ in range(batch):
                    graph.replay()
                events.append(self.torch.cuda.Event(enable_timing=True))
                events[-1].record()
            while done < len(events) and events[done].query():
                done += 1
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._nvml)
            now = time.perf_counter()
            advanced = last is not None and millijoules != last
            if advanced and done and now - begin > _HEATING_S:
                points.append((now, millijoules, done - 1))
            last = millijoules
        self.stream.synchronize()
        (t0, e0, n0), (t1, e1, n1) = points[0], points[-1]
        replay_s = float(events[n0].elapsed_time(events[n1])) / 1000 / max(1, (n1 - n0) * batch)
        temperature = pynvml.nvmlDeviceGetTemperature(self._nvml, pynvml.NVML_TEMPERATURE_GPU)
        clock = pynvml.nvmlDeviceGetClockInfo(self._nvml, pynvml.NVML_CLOCK_SM)
        of_parts = [
            (after[1] - before[1]) / 1000 / (after[0] - before[0])
            for before, after in itertools.pairwise(points)
        ]
        return {
            "watts": round((e1 - e0) / 1000 / (t1 - t0), 2),
            "watts_of_parts": [round(watts, 1) for watts in of_parts],
            "graph_us": replay_s * 1e6,
            "celsius": temperature,
            "sm_mhz": clock,
        }


class Tensors:
    """The tensors of a convolution in both layouts, with the reference in float64."""

    def __init__(self, card: Card, layer: Conv2d, dtype: str) -> None:
        s, torch = layer.shape, card.torch
        self.card, self.layer = card, layer
        self.data = card.random((s.N, s.CI, s.H, s.W), dtype)
        self.weight = card.random((s.CO, s.CI // s.groups, s.KH, s.KW), dtype)
        self.options = {
            "stride": s.strides,
            "padding": s.padding,
            "dilation": s.dilation,
            "groups": s.groups,
        }
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = False
        self.reference = torch.nn.functional.conv2d(
            self.data.double(), self.weight.double(), **self.options
        )
        torch.backends.cudnn.benchmark = benchmark
        self.last = {
            name: tensor.contiguous(memory_format=torch.channels_last)
            for name, tensor in (("data", self.data), ("weight", self.weight))
        }

    def payloads(self, conv: Conv2d, kernel: Kernel) -> tuple[dict[str, Any], Any]:
        """Return the memory of all tensors by name, and the output."""
        torch = self.card.torch
        if conv.layout == "nhwc":
            inputs = {name: one.permute(0, 2, 3, 1) for name, one in self.last.items()}
        else:
            inputs = {"data": self.data, "weight": self.weight}
        shape = [
            self.reference.shape[i]
            for i in ((0, 2, 3, 1) if conv.layout == "nhwc" else (0, 1, 2, 3))
        ]
        output = torch.full(shape, float("nan"), dtype=self.data.dtype, device="cuda")
        payloads = {name: self.card.array_bytes(one) for name, one in inputs.items()}
        payloads["output"] = self.card.array_bytes(output)
        for workspace in kernel.workspaces:
            payloads[workspace.name] = self.card.cupy.zeros(workspace.nbytes, "uint8")
        return payloads, output

    def error(self, conv: Conv2d, output: Any) -> float:
        """Return the largest error relative to the greatest element of the reference."""
        return self._error(output.permute(0, 3, 1, 2) if conv.layout == "nhwc" else output)

    def _error(self, found: Any) -> float:
        reference = self.reference
        return float((found.double() - reference).abs().max() / reference.abs().max())

    def cudnn_error(self, layout: str) -> float:
        """Return that of PyTorch's conv2d in a layout."""
        return self._error(self.cudnn(layout)())

    def cudnn(self, layout: str) -> Callable[[], object]:
        """Return PyTorch's conv2d in a layout, after it has chosen an algorithm."""
        functional = self.card.torch.nn.functional
        data, weight = (
            (self.last["data"], self.last["weight"])
            if layout == "nhwc"
            else (self.data, self.weight)
        )
        return lambda: functional.conv2d(data, weight, **self.options)


@dataclass(frozen=True)
class Timed:
    """Something that is launched, in a CUDA graph.

    Attributes:
        row: what is stored of it.
        graph: the graph.
        launches: its launches.
        seconds: the time of a replay.
        parts: what must stay alive with it.
    """

    row: dict[str, Any]
    graph: Any
    launches: int
    seconds: float
    parts: Any


def timed(card: Card, launch: Callable[[], object], row: dict[str, Any], parts: object) -> Timed:
    """Return a launch in a graph, timed in a short window."""
    for _ in range(3):
        launch()
    card.stream.synchronize()
    graph = card.graph(launch, _LAUNCHES_OF_A_GRAPH)
    card.seconds(graph, 1)
    best = min(card.seconds(graph, 1) for _ in range(3))
    return Timed(row, graph, _LAUNCHES_OF_A_GRAPH, best, parts)


def loaded(card: Card, tensors: Tensors, conv: Conv2d, kernel: Kernel, binary: Binary) -> Any:
    """Return the function that launches a kernel, and its output."""
    payloads, output = tensors.payloads(conv, kernel)
    (launch,) = bind(card.cupy, Job.of(kernel, conv), binary, [payloads])
    return launch, output, payloads


def trials_of(card: Card, sweep: Sweep, tensors: Tensors, conv: Conv2d) -> list[Timed]:
    """Return the kernels of a convolution, the fastest first."""
    found = []
    for parameters, kernel in sweep.candidates(conv):
        row = {"name": conv.name, "mode": conv.mode, "layout": conv.layout}
        row |= {"template": parameters.template, "numbers": parameters.numbers}
        row["estimate"] = round(parameters.cycles(conv, CARD))
        sweep.rows.append(row)
        try:
            binary = sweep.submit(kernel).result()
            launch, output, payloads = loaded(card, tensors, conv, kernel, binary)
            launch()
            card.stream.synchronize()
            row["error"] = tensors.error(conv, output)
            if not row["error"] <= conv.error_bound.max_relative:
                row["fault"] = f"error above the bound of {conv.error_bound.max_relative:.3g}"
                continue
            one = timed(card, launch, row, (payloads, output, parameters, launch))
        except (KernelFault, RuntimeError, card.cupy.cuda.driver.CUDADriverError) as error:
            row["fault"] = str(error)[:200]
            if "illegal" in str(error):
                raise
            continue
        row["us"] = round(one.seconds / one.launches * 1e6, 3)
        found.append(one)
    found.sort(key=lambda one: one.seconds)
    if conv.mode == "float16":
        sweep.best[conv.layout, conv.shape] = best = [one.parts[2] for one in found[:2]]
        for parameters in best if "bfloat16" in sweep.modes and not sweep.brief else ():
            sweep.submit(parameters.kernel(conv.varied(mode="bfloat16")))
    return found


def finals(card: Card, some: Sequence[Timed], seconds: float) -> None:
    """Time finalists in turns, and store the medians; then the energy of some.

    These are the best kernel of each layout, and cuDNN in each, of which only the better one in
    3xtf32.
    """
    times: list[list[float]] = [[] for _ in some]
    for _ in range(_ROUNDS):
        for one, own in zip(some, times, strict=True):
            replays = max(1, round(_WINDOW_S / one.seconds))
            own.append(card.seconds(one.graph, replays) / replays / one.launches)
    for one, own in zip(some, times, strict=True):
        one.row["final_us"] = round(statistics.median(own) * 1e6, 3)
    best = min(
        (one for one in some if one.row.get("cudnn")), key=lambda one: float(one.row["final_us"])
    )
    for one in some:
        chosen = one.row["mode"] != "3xtf32" or one is best or "template" in one.row
        if seconds and chosen and one.row.get("first"):
            drawn = card.power(one.graph, one.seconds, seconds)
            one.row["steady_us"] = us = round(drawn.pop("graph_us") / one.launches, 4)
            one.row.update(drawn)
            one.row["mj"] = round(drawn["watts"] * us / 1000, 4)


def packing_us(card: Card, sweep: Sweep, tensors: Tensors, conv: Conv2d) -> float | None:
    """Return the time of the launch that packs, alone; None if no kernel has one."""
    packing = sweep.packing_of(conv)
    if packing is None:
        return None
    binary = sweep.submit(packing).result()
    launch, output, payloads = loaded(card, tensors, conv, packing, binary)
    one = timed(card, launch, {}, (output, payloads, launch))
    return round(one.seconds / one.launches * 1e6, 3)


def converted_us(card: Card, tensors: Tensors) -> dict[str, float]:
    """Return the times of PyTorch's conversions of layout: input, weight and output."""
    torch, found = card.torch, {}
    output = tensors.reference.to(tensors.data.dtype).contiguous(memory_format=torch.channels_last)
    for name, tensor, form in (
        ("data", tensors.data, torch.channels_last),
        ("weight", tensors.weight, torch.channels_last),
        ("output", output, torch.contiguous_format),
    ):

        def convert(tensor: Any = tensor, form: Any = form) -> object:
            return tensor.contiguous(memory_format=form)

        one = timed(card, convert, {}, ())
        found[name] = round(one.seconds / one.launches * 1e6, 3)
    return found


def measure(card: Card, sweep: Sweep, layers: Sequence[Conv2d], until: float) -> None:
    """Measure all convolutions, until the time is over."""
    torch = card.torch
    properties = torch.cuda.get_device_properties(0)
    about = {
        "gpu": properties.name,
        "driver": card.driver,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "layers": {conv.name: [*vars(conv.shape).values()] for conv in layers},
    }
    begin = stored = time.monotonic()
    for layer, mode, convs in sweep.varied(layers):
        if time.monotonic() > until:
            sweep.rows.append({"missed": f"{layer.name} in {mode}"})
            continue
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        tensors = Tensors(card, layer, convs[0].dtype)
        some: list[Timed] = []
        for conv in convs:
            ranked = trials_of(card, sweep, tensors, conv)
            for one in ranked[:1]:
                one.row["first"] = True
                one.row["packing_us"] = packing_us(card, sweep, tensors, conv)
            some += ranked[:2]
        for layout in (conv.layout for conv in convs):
            row = {"name": layer.name, "mode": mode, "layout": layout, "cudnn": True, "first": True}
            sweep.rows.append(row)
            some.append(timed(card, tensors.cudnn(layout), row, tensors))
            row["error"] = tensors.cudnn_error(layout)
            if mode in ("tf32", "float16") and layout == "nchw" and not sweep.brief:
                row["converted_us"] = converted_us(card, tensors)
        has_energy = not layer.name.startswith(tuple(sweep.light))
        finals(card, some, sweep.seconds if has_energy else 0.0)
        for one in some:  # also right after many launches
            if "template" in one.row:
                (conv,) = (c for c in convs if c.layout == one.row["layout"])
                one.row["last_error"] = tensors.error(conv, one.parts[1])
        about["seconds"] = round(time.monotonic() - begin, 1)
        if time.monotonic() - stored > _STORED_S:
            sweep.store(**about)
            stored = time.monotonic()
        del some, tensors
        torch.cuda.empty_cache()
    sweep.store(**about)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Compile or measure."""
    parser = study_parser(__doc__)
    parser.add_argument("trials", type=Path, help="the file to write")
    parser.add_argument("--compile", action="store_true", help="only compile")
    parser.add_argument("--seconds", type=float, default=0.0, help="measure energy for so long")
    parser.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    parser.add_argument("--layers", default="", help="how names begin, with commas; default: all")
    parser.add_argument("--again", type=Path, nargs="+", default=[], help="earlier trials")
    parser.add_argument("--late", action="store_true", help="no launch begins early")
    parser.add_argument(
        "--brief",
        action="store_true",
        help="all modes of a layer first; other modes than 3xtf32 in NHWC only",
    )
    parser.add_argument("--few", type=int, default=0, help="kernels of each way to copy")
    parser.add_argument("--without-energy", default="-", help="how names of such layers begin")
    parser.add_argument("--full", default="-", help="names of layers that are never brief")
    parser.add_argument("--choose", action="store_true", help="only store what would be tried")
    parser.add_argument("--chosen", type=Path, nargs="+", default=[], help="try what was stored")
    parser.add_argument("--after", type=Path, help="measure once this file exists")
    parser.add_argument("--budget", type=float, default=1e9, help="end after so many seconds")
    options = parser.parse_args(words)
    begin = time.monotonic()
    layers = swept_layers()
    if options.layers:
        names = options.layers.split(",")
        layers = [conv for name in names for conv in layers if conv.name.startswith(name)]
    pools = CompilerPools("sm_90")
    sweep = Sweep(
        options.trials,
        options.modes.split(","),
        pools,
        options.seconds,
        stored_kernels(options.again, "final_us"),
        options.late,
        options.few,
        stored_kernels(options.chosen),
        options.brief,
        options.without_energy.split(","),
        options.full.split(","),
    )
    try:
        if options.choose:
            for _, _, convs in sweep.varied(layers):
                for conv in convs:
                    for one, _ in sweep.candidates(conv):
                        row = {"name": conv.name, "mode": conv.mode, "layout": conv.layout}
                        sweep.rows.append({**row, "template": one.template, "numbers": one.numbers})
            sweep.store()
            print(f"{len(sweep.rows)} kernels")
            return
        if options.compile:
            sweep.compile(layers)
            for future in sweep.compiled.values():
                with suppress(KernelFault):
                    future.result()
            print(f"{len(sweep.compiled)} kernels in {time.monotonic() - begin:.0f} s")
            return
        sweep.compile_aside(layers)
        while options.after and not options.after.exists():
            time.sleep(0.1)
        measure(Card(), sweep, layers, begin + options.budget)
    finally:
        pools.close()
    finished = sum("us" in row for row in sweep.rows)
    faults = sum("fault" in row for row in sweep.rows)
    print(f"{finished} times, {faults} faults, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
