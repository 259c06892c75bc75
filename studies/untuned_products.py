"""How good are the products that nobody tuned for, and what does a row that is not aligned cost?

    python studies/untuned_products.py --out untuned.jsonl [--products 40] [--curve] [--joules 8]

Products are drawn with a seed: linear layers of models with several numbers of tokens (--models
says of which ones), and random sizes of which half are odd, in four layouts. In 8-bit modes only
those in ``tn`` are drawn whose rows are a multiple of 16 bytes apart, the only ones that cuBLASLt
multiplies. --also adds others, in the words of ``gpuenergy gemm perf``.

For each mode, the kernel that the estimate chooses is timed, a few others that it ranks high, and
the first algorithms that cuBLASLt's heuristics offer (--screened), of which the fastest is kept.
Kernels of all products are compiled side by side while others are timed.

With --curve, products of 4096 x 4096 with K from 4080 to 4112 come last, 4096 and 4097 first.

A time is that of replays of a CUDA graph back to back, after some that do not count: all kernels of
a product are timed in turn, over half of `WINDOW_S`, and then in reverse order over the other half.
With `3xtf32`, cuBLASLt's float32 is timed. Each kernel of ours is first compared with a product in
float64. With --joules, the first choice and cuBLASLt are then measured longer for some products,
with their energy between updates of the energy counter, after some load: the power limit takes
effect with a delay, and lowers the clock of what runs then. --until ends the products, the curve
and the energies after so many seconds. Each line of the result is a kernel. After an error that
leaves the card unusable, exit code 3 says so. With --cold, launches use several copies of the
tensors in turn, which together exceed the L2 by far: each finds its operands in memory.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.devices import NvrtcCompilers, encoded_map
from pytest_gpuenergy.devices.cuda.driver import EarlyLaunch
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import KernelFault, UnavailableError, cache_dir, decode
from pytest_gpuenergy.tuners import (
    TEMPLATE_FORM,
    FittedCosts,
    cublas_call,
    estimated_cycles,
    fitted,
    rank_kernels,
)
from pytest_gpuenergy.tuning import CardResources
from pytest_gpuenergy.workloads import FLOAT8_MODES, LAYOUTS, Gemm, Mode, measured_products

HOPPER = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
"""The resources of an H100 SXM and an H200."""
MODES = ("bfloat16", "float32", "3xtf32", "tf32", "float16")
OF_LIBRARY: dict[Mode, Mode] = {"3xtf32": "float32"}
"""The modes of cuBLASLt with which others are compared."""
LINEAR = {
    "llama3-8b": ([(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 4096)], 1),
    "qwen2-7b": ([(4608, 3584), (3584, 3584), (18944, 3584), (3584, 18944)], 1),
    "qwen2-0.5b": ([(1152, 896), (896, 896), (4864, 896), (896, 4864)], 1),
    "mixtral-8x7b": ([(14336, 4096), (4096, 14336), (6144, 4096)], 1),
    "bloom-560m": ([(3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)], 1),
    "bloom-7b1": ([(12288, 4096), (16384, 4096), (4096, 16384)], 1),
    "vit-b": ([(2304, 768), (768, 768), (3072, 768), (768, 3072)], 197),
    "vit-h": ([(3840, 1280), (1280, 1280), (5120, 1280), (1280, 5120)], 257),
}
"""Columns and depth of linear layers, and the tokens of an image, or 1."""
TOKENS = (16, 64, 128, 200, 333, 512, 1000, 1024, 2048, 4096)
IMAGES = (1, 3, 8, 16, 32)
LATER_LINEAR = {
    "phi3-mini": ([(9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192)], 1),
    "nemo-12b": ([(6144, 5120), (5120, 4096), (28672, 5120), (5120, 14336)], 1),
    "gemma2-2b": ([(4096, 2304), (2304, 2048), (18432, 2304), (2304, 9216)], 1),
    "deepseek-v2-lite": ([(3072, 2048), (576, 2048), (2816, 2048), (2048, 1408), (2048, 10944)], 1),
    "siglip-so400m": ([(3456, 1152), (1152, 1152), (4304, 1152), (1152, 4304)], 729),
    "dinov2-g": ([(4608, 1536), (1536, 1536), (8192, 1536), (1536, 4096)], 257),
}
LATER_TOKENS = (8, 24, 96, 160, 300, 450, 768, 1500, 3000)
MODELS = {
    "first": (LINEAR, TOKENS),
    "all": ({**LINEAR, **LATER_LINEAR}, (*TOKENS, *LATER_TOKENS)),
}
"""What --models names: the layers, and the numbers of tokens."""
KIND_TRAITS = ("turned", "copying", "split", "in_turn", "slices", "swapped", "together")
"""The parameters that make a kernel another kind."""
SAMPLED_RANKS, SAMPLED_SHARE = 200, 1.6
"""The best of each template of which --sample draws some, and the most time that may be expected of
them, relative to the first choice."""
MMA_RANKS = 40
"""The ranks within which kinds of the template `mma` are timed where others are chosen."""
_ALIGNED = 16
"""What the columns and the depth of an 8-bit product are a multiple of."""
MAX_FLOPS = 6e11
"""The largest product that is drawn, which takes 12 ms in float32."""
WINDOW_S, SHORT_S, WARM_S, GRAPH_S = 0.03, 0.006, 0.006, 0.004
JOULES_S = 0.42
COLD_BYTES = 400 << 20
"""The bytes of all copies with --cold: eight times the L2 of an H100."""
TOLERANCE = {
    "float32": 1e-5,
    "3xtf32": 1e-5,
    "tf32": 1.5e-3,
    "float16": 1e-3,
    "bfloat16": 6e-3,
    **dict.fromkeys(FLOAT8_MODES, 1e-2),
}
"""The largest error allowed, relative to the largest element of the result."""


def drawn(count: int, seed: int, models: str = "first") -> list[tuple[str, Gemm]]:
    """Return products with where they come from: three in five are layers of models."""
    chance, found = random.Random(seed), {}
    linear, some_tokens = MODELS[models]
    while len(found) < count:
        if chance.random() < 0.6:
            source = chance.choice(sorted(linear))
            layers, tokens = linear[source]
            n, k = chance.choice(layers)
            m = tokens * chance.choice(IMAGES if tokens > 1 else some_tokens)
            layout = "tn" if chance.random() < 0.5 else chance.choice(LAYOUTS)
        else:
            source = chance.choice(("odd", "any"))
            m, n, k = (round(math.exp(chance.uniform(math.log(100), 9))) for _ in range(3))
            if source == "odd":
                m, n, k = m | 1, n | 1, k | 1
            layout = chance.choice(LAYOUTS)
        gemm = Gemm("g", m, n, k, layout)
        if gemm.flops <= MAX_FLOPS:
            found[gemm.signature] = (source, gemm)
    return list(found.values())


def curve() -> list[tuple[str, Gemm]]:
    """Return products of 4096 x 4096 with K around 4096; the first ones differ most."""
    first = (4096, 4097, 4095, 4098, 4092, 4088, 4090, 4104, 4099, 4080, 4112, 4100, 4085, 4107)
    depths = [*first, *sorted(set(range(4080, 4113)) - set(first))]
    return [("curve", Gemm("g", 4096, 4096, k, "tn")) for k in depths]


def chosen(
    gemm: Gemm, others: int, sample: int = 0, against: FittedCosts | None = None
) -> list[tuple[int, float, str, Kernel]]:
    """Return the first choice and others: the best of other templates, then of other tiles.

    The first choice of an estimate to compare `against` comes before the others. Last come `sample`
    kernels that are drawn from the `SAMPLED_RANKS` best of each template, as far as they are
    expected to take no more than `SAMPLED_SHARE` of the first choice's time. Each has its rank, the
    cycles that are expected of it, its recipe, and the kernel.
    """
    ranked = rank_kernels(gemm, HOPPER)
    expected = estimated_cycles(gemm, HOPPER, ranked, fitted()) if sample else [0.0]
    before = 0 if against is None else ranked.index(rank_kernels(gemm, HOPPER, against)[0])
    kinds: dict[tuple[object, ...], int] = {}
    tiles: dict[tuple[object, ...], int] = {}
    for rank, one in enumerate(ranked):
        traits = (getattr(one, name, 0) for name in KIND_TRAITS)
        kind = (one.template, *traits)
        kinds.setdefault(kind, rank)
        tiles.setdefault((*kind, one.tile_m, one.tile_n, one.cluster, one.blocks > 0), rank)
    likely = [rank for kind, rank in kinds.items() if kind[0] != "mma" or rank < MMA_RANKS]
    picks = list(dict.fromkeys([0, before, *likely, *tiles.values()]))[: 1 + others]
    best: dict[str, list[int]] = {}
    for rank, (one, cycles) in enumerate(zip(ranked, expected, strict=False)):
        if cycles <= SAMPLED_SHARE * expected[0]:
            best.setdefault(one.template, []).append(rank)
    rest = [rank for ranks in best.values() for rank in ranks[:SAMPLED_RANKS] if rank not in picks]
    picks += random.Random(gemm.signature).sample(rest, min(sample, len(rest)))
    picked = [ranked[rank] for rank in picks]
    return [
        (rank, round(cycles), TEMPLATE_FORM.recipe(one), one.kernel(gemm))
        for rank, one, cycles in zip(
            picks, picked, estimated_cycles(gemm, HOPPER, picked, fitted()), strict=True
        )
    ]


@dataclass(frozen=True)
class Timed:
    """A kernel's time, and its energy if it was measured."""

    time_ms: float
    power_w: float | None = None


@dataclass(frozen=True)
class Replay:
    """A CUDA graph with launches of a kernel.

    Attributes:
        graph: the graph.
        calls: how often it launches the kernel.
        turn_s: about how long it takes.
    """

    graph: Any
    calls: int
    turn_s: float


class Card:
    """Launches kernels on tensors of PyTorch and times them."""

    def __init__(self) -> None:
        import cupy
        import pynvml
        import torch

        self.cupy, self.torch = cupy, torch
        cupy.cuda.Device(0).use()
        torch.zeros(1, device="cuda")
        pynvml.nvmlInit()
        bus = cupy.cuda.runtime.deviceGetPCIBusId(0)
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
        self.name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        self._joules = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        self.errors = (
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.runtime.CUDARuntimeError,
        )
        self.space = torch.empty(32 << 20, device="cuda", dtype=torch.uint8)
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def check(self, instead: str) -> None:
        """End the process with exit code 3 if it cannot use the card any more; say what to do."""
        try:
            self.torch.cuda.synchronize()
        except Exception as error:
            print(f"The card cannot be used any more ({error}). {instead}", flush=True)
            os._exit(3)

    def tensors(self, gemm: Gemm) -> dict[str, Any]:
        """Return inputs drawn from a normal distribution, by name, and room for C.

        Scales are between 0.5 and 2.
        """
        torch, found = self.torch, {}
        kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        for one in gemm.tensors:
            kind = kinds.get(one.dtype) or getattr(torch, one.dtype)
            values = torch.randn(one.shape, device="cuda", dtype=torch.float32)
            if one.name in gemm.ranges:
                values = values.uniform_(*gemm.ranges[one.name])
            found[one.name] = values.to(kind)
        return found

    def reference(self, gemm: Gemm, tensors: dict[str, Any]) -> Any:
        """Return the product in float64."""
        given = {one.name: self.cupy.asarray(tensors[one.name].double()) for one in gemm.inputs}
        return self.torch.as_tensor(gemm.reference(given)["C"], device="cuda")

    def launcher(
        self, kernel: Kernel, binary: Any, tensors: dict[str, Any]
    ) -> tuple[Callable[[], None], Any]:
        """Return a function that launches a kernel, and what must be kept for that."""
        cupy, torch = self.cupy, self.torch
        spaces = {
            one.name: torch.empty(one.nbytes, device="cuda", dtype=torch.uint8)
            for one in kernel.workspaces
        }
        import numpy as np

        addresses = {name: one.data_ptr() for name, one in {**tensors, **spaces}.items()}
        values: dict[str, Any] = {name: np.uint64(at) for name, at in addresses.items()}
        for one in kernel.tensor_maps:
            values[one.name] = encoded_map(one, addresses[one.tensor])
        module = cupy.cuda.function.Module()
        module.load_file(str(binary.path))
        plan = []
        for launch in kernel.launches:
            function = module.get_function(binary.symbols[launch.entry])
            if launch.shared_bytes > 48 * 1024:
                attribute = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                cupy.cuda.driver.funcSetAttribute(function.ptr, attribute, launch.shared_bytes)
            arguments = tuple(values[name] for name in launch.arguments)
            if launch.early:
                shape = launch.grid, launch.block, launch.shared_bytes
                function = EarlyLaunch(function, *shape, arguments)
            plan.append((function, launch, arguments))

        def enqueue() -> None:
            for function, launch, arguments in plan:
                if isinstance(function, EarlyLaunch):
                    function(cupy.cuda.get_current_stream().ptr)
                else:
                    function(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)

        return enqueue, (module, spaces)

    def error(self, launch: Callable[[], None], tensors: dict[str, Any], reference: Any) -> float:
        """Return the largest error of a launch, relative to the largest element."""
        tensors["C"].fill_(math.nan)
        self.torch.cuda.synchronize()
        with self.stream:
            launch()
        self.stream.synchronize()
        found = (tensors["C"].double() - reference).abs().max() / reference.abs().max()
        return float(found)

    def replay(self, launch: Callable[[], None]) -> Replay:
        """Capture launches in a CUDA graph that takes about `GRAPH_S`."""
        cuda = self.cupy.cuda
        with self.stream as stream:
            launch()
            begin, end = cuda.Event(), cuda.Event()
            begin.record(stream)
            launch()
            end.record(stream)
            end.synchronize()
            rough_s = max(1e-6, cuda.get_elapsed_time(begin, end) / 1000)
            calls = max(1, min(512, round(GRAPH_S / rough_s)))
            stream.begin_capture()
            for _ in range(calls):
                launch()
            graph = stream.end_capture()
            graph.launch(stream)
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
        return Replay(graph, calls, max(1e-6, cuda.get_elapsed_time(begin, end) / 1000))

    def sets(self, gemm: Gemm, cold: bool) -> list[dict[str, Any]]:
        """Return tensors of a product, and with `cold` as many copies as exceed the L2 by far."""
        first = self.tensors(gemm)
        count = max(2, math.ceil(COLD_BYTES / gemm.bytes_moved)) if cold else 1
        copies = ({name: one.clone() for name, one in first.items()} for _ in range(count - 1))
        return [first, *copies]

    def timed(self, replay: Replay, window_s: float, joules: bool = False) -> Timed:
        """Return the time of a launch in replays back to back, and the power with `joules`."""
        cuda = self.cupy.cuda
        with self.stream as stream:
            begin, end = cuda.Event(), cuda.Event()
            for _ in range(max(1, round(WARM_S / replay.turn_s))):
                replay.graph.launch(stream)
            turns = max(1, math.ceil(window_s / replay.turn_s))
            begin.record(stream)
            for _ in range(turns):
                replay.graph.launch(stream)
            end.record(stream)
            power_w = self._power_w(end) if joules else None
            end.synchronize()
        return Timed(cuda.get_elapsed_time(begin, end) / (turns * replay.calls), power_w)

    def in_turn(self, replays: Sequence[Replay], joules: bool) -> list[Timed]:
        """Return the mean times and powers of replays, each measured twice: in turn, and back.

        The power limit takes effect with a delay, and then lowers the clock for a while: what is
        measured first would have a higher power than what follows, and less time.
        """
        runs: list[list[Timed]] = [[] for _ in replays]
        window_s = JOULES_S if joules else WINDOW_S / 2
        if joules:
            self.timed(replays[-1], window_s)
        for place in (*range(len(replays)), *reversed(range(len(replays)))):
            runs[place].append(self.timed(replays[place], window_s, joules))
        means = []
        for one in runs:
            time_ms = fmean(run.time_ms for run in one)
            energies = [run.power_w * run.time_ms for run in one if run.power_w is not None]
            means.append(Timed(time_ms, fmean(energies) / time_ms if energies else None))
        return means

    def _power_w(self, end: Any) -> float | None:
        """Return the mean power between the first and last update of the counter until `end`."""
        edges: list[tuple[float, float]] = []
        last = self._joules()
        while not end.done:
            joules, now = self._joules(), time.perf_counter()
            if joules != last:
                edges.append((now, joules))
                last = joules
        edges = edges[1:] if len(edges) > 3 else edges  # the first ones may be of what ran before
        if len(edges) < 3:
            return None
        (first_s, first), (last_s, total) = edges[0], edges[-1]
        return (total - first) / (last_s - first_s)

    def cublas(
        self, gemm: Gemm, sets: Sequence[dict[str, Any]], screened: int
    ) -> Iterator[tuple[int, list[Callable[[], None]]]]:
        """Yield the places of cuBLASLt's algorithms in its heuristics, and a launch for each set.

        There are none of a product that it does not compute.
        """
        from pytest_gpuenergy.devices.cuda.cublaslt import matmul_plan, offered_algorithms

        space = self.space
        try:
            call = cublas_call(gemm)
            offers = offered_algorithms(call, gemm.io)
        except (UnavailableError, KernelFault) as error:
            print(error)
            return
        places = [
            {
                parameter: space.data_ptr() if name == "workspace" else tensors[name].data_ptr()
                for parameter, name in call.tensors.items()
            }
            for tensors in sets
        ]
        for place, offer in enumerate(offers[:screened]):
            try:
                plan = matmul_plan(offer, gemm.io)
            except KernelFault:
                continue
            yield place, [partial(plan.launch, each, self.stream.ptr) for each in places]


def one_after_another(launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """Return a function whose calls are those of several in turn."""
    turns = itertools.cycle(launches)
    return lambda: next(turns)()


@dataclass(frozen=True)
class Task:
    """A product whose kernels are timed.

    Attributes:
        source: the model, or what else the product is from.
        gemm: the product.
        others: how many kernels are timed besides the first choice.
        sample: how many more are drawn.
        screened: how many of cuBLASLt's algorithms are tried.
        joules: whether energies are measured.
        until_s: when the task is left out.
    """

    source: str
    gemm: Gemm
    others: int
    sample: int
    screened: int
    joules: bool
    until_s: float


def planned(options: Any) -> list[Task]:
    """Return the tasks: drawn products and others, those whose energy is measured, the curve."""
    modes = options.modes.split(",")
    of_products, of_curve, of_joules = options.until
    products = drawn(options.products, options.seed, options.models)

    def tasks(
        chosen: Sequence[tuple[str, Gemm]],
        few: bool,
        joules: bool,
        until_s: float,
        of_modes: Sequence[str] = modes,
    ) -> Iterator[Task]:
        for source, gemm in chosen:
            for mode in of_modes:
                layout = "tn" if mode in FLOAT8_MODES else gemm.layout
                one = Gemm("g", gemm.M, gemm.N, gemm.K, layout, mode)
                beyond_library = one.N % _ALIGNED or one.K % _ALIGNED
                if one.is_float8 and beyond_library and source != "curve":
                    continue
                others, sample = (0, 0) if few else (options.others, options.sample)
                screened = 2 if few else options.screened
                yield Task(source, one, others, sample, screened, joules, until_s)

    found = list(tasks(products, few=False, joules=False, until_s=of_products))
    named = measured_products(options.also) if options.also else ()
    also = [replace(one, name="g") for one in named]
    others, sample, screened = options.others, options.sample, options.screened
    found += (Task("also", one, others, sample, screened, False, of_products) for one in also)
    found += tasks(products[: options.joules], few=True, joules=True, until_s=of_joules)
    if options.joules:
        found += (Task("also", one, 0, 0, 2, True, of_joules) for one in also)
    depths = curve()[: options.curve]
    found += tasks(depths, few=True, joules=False, until_s=of_curve)
    if options.joules:
        found += tasks(depths, True, True, of_joules, modes[:1])
    return found


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = study_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="The file of results")
    parser.add_argument("--products", type=int, default=40, help="How many are drawn (default: 40)")
    parser.add_argument("--seed", type=int, default=46, help="Of the draw (default: 46)")
    parser.add_argument("--models", choices=MODELS, default="first", help="Whose layers are drawn")
    parser.add_argument("--also", help='Further products: "B=32 MNK=512 mode=bfloat16; ..."')
    parser.add_argument("--modes", default=",".join(MODES), help="Modes, separated by commas")
    parser.add_argument(
        "--curve", type=int, nargs="?", const=33, default=0, help="How many K around 4096, too"
    )
    parser.add_argument("--joules", type=int, default=0, help="The products with energies")
    parser.add_argument("--screened", type=int, default=6, help="Algorithms of cuBLASLt tried")
    parser.add_argument("--others", type=int, default=6, help="Kernels besides the first choice")
    parser.add_argument(
        "--against", type=Path, help="An estimate.json, whose choice is the first of the others"
    )
    parser.add_argument("--sample", type=int, default=0, help="Further kernels, drawn at random")
    parser.add_argument(
        "--until", type=float, nargs=3, default=(1e9,) * 3, help="Ends of the parts"
    )
    parser.add_argument("--first", type=int, default=0, help="How many products are left out")
    parser.add_argument("--cold", action="store_true", help="Find operands in memory, not the L2")
    parser.add_argument("--dry", action="store_true", help="List the products only")
    options = parser.parse_args(words)
    started_s = time.monotonic()
    against = None
    if options.against is not None:
        against = decode(options.against.read_bytes(), FittedCosts, str(options.against))
    tasks = planned(options)[options.first :]
    if options.dry:
        for one in tasks:
            gemm = one.gemm
            print(f"{one.source:14} {gemm.M:6} {gemm.N:6} {gemm.K:6} {gemm.layout} {gemm.mode}")
        return
    cores = min(16, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        firsts = {task.gemm: task for task in reversed(tasks)}
        futures = {
            gemm: pool.submit(chosen, gemm, firsts[gemm].others, firsts[gemm].sample, against)
            for gemm in dict.fromkeys(task.gemm for task in tasks)
        }
        ranked = [futures[task.gemm] for task in tasks]
        compilers = NvrtcCompilers("sm_90a", cache_dir("untuned"), processes=cores)
        try:
            with options.out.open("a") as out:
                measure(tasks, ranked, compilers, out, started_s, options.first, options.cold)
        finally:
            compilers.close()
            pool.shutdown(cancel_futures=True)


def measure(
    tasks: Sequence[Task],
    ranked: Sequence[Future[Any]],
    compilers: NvrtcCompilers,
    out: TextIO,
    started_s: float,
    first: int,
    cold: bool,
) -> None:
    """Time the kernels of all products, and write a line of each."""
    card = Card()
    submitted: dict[int, Any] = {}

    def submit_from(first: int) -> None:
        """Let kernels of this product and of all further ones that are ranked be compiled."""
        for number in range(first, len(tasks)):
            if number not in submitted and (number == first or ranked[number].done()):
                submitted[number] = [
                    (*one, compilers.submit(one[-1]))
                    for one in ranked[number].result()[
                        : 1 + tasks[number].others + tasks[number].sample
                    ]
                ]

    def write(row: Mapping[str, Any], timed: Timed | None, **more: object) -> None:
        line = {**row, **more, "time_ms": None if timed is None else timed.time_ms}
        if timed is not None and timed.power_w is not None:
            line["energy_mj"] = timed.power_w * timed.time_ms
        out.write(json.dumps(line) + "\n")
        out.flush()

    done = 0
    for number, task in enumerate(tasks):
        gemm = task.gemm
        if time.monotonic() - started_s > task.until_s:
            continue
        submit_from(number)
        sets = card.sets(gemm, cold)
        tensors = sets[0]
        reference = card.reference(gemm, tensors)
        about = {"source": task.source, "gpu": card.name, **({"cache": "cold"} if cold else {})}
        about |= {"workload": {"name": "g", **gemm.parameters}}
        timed: list[tuple[Mapping[str, Any], Replay, Any]] = []
        for rank, cycles, recipe, kernel, future in submitted[number]:
            row = {**about, "rank": rank, "cycles": cycles, **json.loads(recipe)}
            try:
                launch, kept = card.launcher(kernel, future.result(), tensors)
                error = card.error(launch, tensors, reference)
                if not error <= TOLERANCE[gemm.mode]:
                    print("WRONG", gemm.signature, recipe, error)
                    write(row, None, error=str(error))
                    continue
                more = [card.launcher(kernel, future.result(), each) for each in sets[1:]]
                launches = [launch, *(launch for launch, _ in more)]
                timed.append((row, card.replay(one_after_another(launches)), (kept, more)))
            except (KernelFault, *card.errors) as fault:
                print("FAULT", gemm.signature, recipe, str(fault)[:200], flush=True)
                write(row, None, error=str(fault)[:200])
                card.check(f"--first {first + number + 1} leaves this product out.")
        library = replace(gemm, mode=OF_LIBRARY.get(gemm.mode, gemm.mode))
        plans = list(card.cublas(library, sets, task.screened))
        replays = [card.replay(one_after_another(launches)) for _, launches in plans]
        short = [card.timed(one, SHORT_S).time_ms for one in replays]
        if short:
            best = short.index(min(short))
            row = {**about, "contender": "cublas", "place": plans[best][0], "default_ms": short[0]}
            timed.append((row, replays[best], plans))
            error = card.error(plans[best][1][0], tensors, reference)
            if not error <= TOLERANCE[library.mode]:
                print("cuBLASLt differs", gemm.signature, error)
        if not timed:
            continue
        means = card.in_turn([replay for _, replay, _ in timed], task.joules)
        ours_ms = {}
        for (row, *_), mean in zip(timed, means, strict=True):
            write(row, mean)
            if "rank" in row:
                ours_ms[row["rank"]] = mean.time_ms
        if 0 in ours_ms and short:
            speed, best_speed = (
                means[-1].time_ms / time_ms for time_ms in (ours_ms[0], min(ours_ms.values()))
            )
            name = f"{gemm.M}x{gemm.N}x{gemm.K} {gemm.layout} {gemm.mode}"
            print(f"{name}: {speed:.2f} best {best_speed:.2f}", flush=True)
        done += 1
        del sets, tensors, reference, timed, plans, replays
        gc.collect()
    print(f"{done} of {len(tasks)} in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
