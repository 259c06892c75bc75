"""How good is the first choice of the estimate, and what do stored trials teach it?

    python studies/fit_estimate.py [TRIALS.jsonl[.gz] ...] [--json regret.json]
    python studies/fit_estimate.py [TRIALS.jsonl[.gz] ...] --replay 16
    python studies/fit_estimate.py [TRIALS.jsonl[.gz] ...] --write

The estimate (pytest_gpuenergy/tuners/gemm/estimate.py) ranks the kernels of a product before any is
compiled. This fits its costs and its correcting trees to stored trials: the long searches and the
experiment with transposed A in bench/results, all records in bench/records, and all
`gemm-trials*.jsonl.gz` in bench/results. Each line of those, and of files that are named, is a
trial: `{"gpu", "workload", "template", "parameters", "time_ms", "energy_mj"}`; the last may be
missing.

Without --write, each size is left out in turn (with --folds, several at once), with all its modes
and layouts, and the estimate that was fitted to the others chooses among its measured kernels.
Regret is the time, energy or EDP of the choice relative to the least, less 1. The time is that of a
trial, before the power limit
takes effect, or that under steady load, of kernels whose energy was measured, also in the reports
of products in bench/results. It can only be judged among measured kernels, and those
were chosen by a search that trusted an earlier estimate: they are better than random ones, and a
kernel that nobody measured may be better still. A single trial lasts 30 ms; where a product has
hundreds, the least time is partly luck.

With --replay, the long searches are made once more, see first_trials.py; each begins with the
estimate that was fitted to other sizes.

With --write, all trials are fitted and pytest_gpuenergy/tuners/gemm/estimate.json is written. With
--families, only these families' costs are fitted, and those of others stay as they are written. The
trees are always fitted.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import random
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
from first_trials import searches, table as first_trials_table, times_again_ms
from msgspec import structs
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.tuners import (
    TEMPLATE_FORM,
    TENSOR_TRAITS,
    TRAITS,
    Costs,
    FittedCosts,
    MmaParameters,
    SimtParameters,
    SkinnyParameters,
    Trees,
    WgmmaFloat8Parameters,
    WgmmaTf32Parameters,
    estimated_cycles,
    fitted,
)
from pytest_gpuenergy.tuning import IDENTITY_FILE, TRIALS_FILE, CardResources
from pytest_gpuenergy.workloads import MODES, Gemm, from_parameters, stored_as

ROOT = Path(__file__).resolve().parent.parent
HOPPER = CardResources(90, 132, 128, 2048, 228 << 10, 227 << 10)
"""The resources of the cards that made the trials, H100 SXM and H200."""
CLOCK_GHZ = 1.755
"""A clock that turns times into cycles; which one has no effect on a ranking."""
WRITTEN = ROOT / "pytest_gpuenergy" / "tuners" / "gemm" / "estimate.json"
SEARCHES = ROOT / "bench" / "results" / "nvidia-h100-2026-11-26" / "gemm-first-trials.tar.gz"
TILES = 8
"""The tiles that products without records tried before the estimate was fitted."""

_PIECE_BYTES = 16
"""The widest copy, a multiple of which the rows of an aligned operand are apart."""
CORES = "simt"
"""The family of costs of `SimtParameters`, the template for CUDA cores."""
HOPPER_FAMILIES = ("hopper", "hopper_tf32")
"""The families of costs of `WgmmaParameters` and `WgmmaTf32Parameters`."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """One measured kernel.

    Attributes:
        source: where it was stored; kernels are only compared within one source.
        gpu: the model of the GPU.
        gemm: the product.
        tiling: the parameters.
        time_ms: the time in a search, before the power limit takes effect.
        energy_mj: the energy of a launch under steady load, if it was measured.
        sustained_ms: the time under steady load, if it was measured.
    """

    source: str
    gpu: str
    gemm: Gemm
    tiling: Any
    time_ms: float
    energy_mj: float | None = None
    sustained_ms: float | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """The size of the product."""
        return self.gemm.M, self.gemm.N, self.gemm.K

    @property
    def family(self) -> str:
        """The templates that share the same costs."""
        return str(self.tiling.family)

    @property
    def group(self) -> tuple[object, ...]:
        """What the trials have in common that may be compared."""
        kind = "records" if self.source == "records" else self.source
        scales = (self.gemm.scaling, self.gemm.accumulation, self.gemm.quantize)
        several = self.gemm.B, self.gemm.groups
        return kind, self.gpu, self.size, self.gemm.layout, several, self.gemm.mode, *scales

    @cached_property
    def cycles(self) -> float:
        """The measured time in clock cycles."""
        return self.time_ms * 1e6 * CLOCK_GHZ


@dataclass(frozen=True)
class Steady:
    """One kernel under steady load, when the power limit may hold it back.

    Attributes:
        gpu: the model of the GPU.
        gemm: the product.
        tiling: the parameters.
        time_ms: the time of a launch.
        energy_mj: its energy.
    """

    gpu: str
    gemm: Gemm
    tiling: Any
    time_ms: float
    energy_mj: float

    @property
    def size(self) -> tuple[int, int, int]:
        """The size of the product."""
        return self.gemm.M, self.gemm.N, self.gemm.K

    @property
    def power_w(self) -> float:
        """The mean power."""
        return self.energy_mj / self.time_ms


def parameters_of(template: str, numbers: Mapping[str, int]) -> Any:
    """Return the parameters, or None if no kernel of today has them."""
    recipe = {"template": template, "parameters": dict(numbers), "time_ms": None}
    try:
        return TEMPLATE_FORM.parameters(json.dumps(recipe))
    except FormError:
        return None


class _UnbatchedTf32(WgmmaTf32Parameters):
    """The template when pieces of A were read, split and written one after another."""

    def preparing_cycles(self, gemm: Gemm, costs: Costs) -> float:
        cycles = super().preparing_cycles(gemm, costs)
        return cycles if gemm.a_transposed and not self.turned else _UNBATCHED_SHARE * cycles


class _EarlierTf32(_UnbatchedTf32):
    """The template when each step ended before the next one began."""

    def overlaps_steps(self, gemm: Gemm) -> bool:
        del gemm
        return False


class _EarlierFloat8(WgmmaFloat8Parameters):
    """The same for 8 bits."""

    def overlaps_steps(self, gemm: Gemm) -> bool:
        del gemm
        return False


class _EarlierMma(MmaParameters):
    """The template when it rounded all elements that it split."""

    def rounds(self, gemm: Gemm) -> bool:
        del gemm
        return True


_UNBATCHED_SHARE = 1.8
_FOLLOWING = frozenset({"untuned-early", "untuned-across-2"})
"""The sources of trials in which blocks of some kernels began while the launch before them ended,
and tiles of `skinny` at different steps."""
_BOXED = _FOLLOWING | {
    *("untuned-157", "untuned-1009", "untuned-1010", "untuned-cold-3"),
    *("untuned-cold-5", "untuned-across", "untuned-middle"),
}
"""The sources of trials in which the transpose of C was stored in boxes."""
_NEWEST = _BOXED | {
    f"untuned-{name}" for name in ("twelfth", "thirteenth", "fourteenth", "139", "cold", "151")
}
_LATEST = {"untuned-ninth", "untuned-tenth", "untuned-eleventh", "untuned-127", *_NEWEST}
_EARLIER: Mapping[type[Any], Sequence[tuple[type[Any], frozenset[str]]]] = {
    WgmmaFloat8Parameters: [(_EarlierFloat8, frozenset({"untuned-eighth", *_LATEST}))],
    WgmmaTf32Parameters: [(_EarlierTf32, frozenset(_LATEST)), (_UnbatchedTf32, _NEWEST)],
    MmaParameters: [(_EarlierMma, _NEWEST)],
}
"""What templates were before their texts changed, the earliest first, and the later sources."""


def as_timed(tiling: Any, source: str) -> Any:
    """Return the parameters with the estimate of the text that was timed."""
    kind = type(tiling)
    for earlier, sources in _EARLIER.get(kind, ()):
        if source not in sources:
            kind = earlier
            break
    if source not in _FOLLOWING and kind.follows:
        kind = _late(kind)
    return tiling if kind is type(tiling) else kind.of(tiling.numbers)


@functools.cache
def _late(kind: type[Any]) -> type[Any]:
    """Return the template when each launch began after the one before it."""
    return type(f"_Late{kind.__name__}", (kind,), {"follows": False})


def first_trials(path: Path) -> Iterator[Trial]:
    """Yield the trials of the long searches."""
    with tarfile.open(path) as archive:
        texts = {
            member.name: file.read().decode()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }
    for name, text in texts.items():
        if not name.endswith("search.json"):
            continue
        search = json.loads(text)
        gemm = cast("Gemm", from_parameters(search["workload"]))
        recipes = texts[name.replace("search.json", "parameters.jsonl")].splitlines()
        trials = texts[name.replace("search.json", "trials.jsonl")].splitlines()
        for recipe, trial in zip(recipes, map(json.loads, trials), strict=True):
            if trial["outcome"] == "timed":
                tiling = TEMPLATE_FORM.parameters(recipe)
                yield Trial("searches", search["gpu"], gemm, tiling, trial["time_ms"])


def transposed(path: Path) -> Iterator[Trial]:
    """Yield the trials of the experiment with transposed A that today's text would make."""
    stored = json.loads(path.read_text())
    for one in stored["results"]:
        if one["kernel"] != "template" or one["order"] != "repo" or not one["ok"]:
            continue
        gemm = Gemm("g", one["M"], one["N"], one["K"], one["layout"])
        numbers = dict(one["parameters"])
        if numbers["transpose_a"]:
            numbers["transpose_a"] = one["along"]
        if (tiling := parameters_of("simt", numbers)) is not None:
            time_ms = gemm.flops / one["tflops"] / 1e9
            yield Trial(
                *("transposed", stored["device"], gemm, tiling, time_ms, one.get("mj"), time_ms)
            )


def records(path: Path) -> Iterator[Trial]:
    """Yield the trials of a record file of our templates."""
    stored = json.loads(path.read_text())
    gemm = cast("Gemm", from_parameters(stored["workload"]))
    for one in stored["records"]:
        recipe, measured = one["record"], one["measured"] or {}
        tiling = parameters_of(recipe["template"], recipe["parameters"])
        yield Trial(
            *("records", stored["gpu"], gemm, tiling, recipe["time_ms"]),
            *(measured.get("energy_mj"), measured.get("time_ms")),
        )


def listed(path: Path) -> Iterator[Trial]:
    """Yield the trials of a file with one per line."""
    content = path.read_bytes()
    try:
        lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, ValueError):
        raise InputError(f"{path} is no text with a trial on each line: see --help.") from None
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            one = json.loads(line)
            gemm = cast("Gemm", from_parameters(one["workload"]))
            tiling = parameters_of(one["template"], one["parameters"])
            trial = Trial(
                *(one.get("source", path.name), one["gpu"], gemm, tiling, float(one["time_ms"])),
                *(one.get("energy_mj"), one.get("sustained_ms")),
            )
        except (InputError, ValueError, KeyError, TypeError):
            raise InputError(f"Line {number} of {path} is no trial: see --help.") from None
        if not 0 < trial.time_ms < math.inf:
            raise InputError(f"Line {number} of {path} has the time {trial.time_ms} ms.")
        if tiling is not None:
            yield trial


def reported(path: Path) -> Iterator[Steady]:
    """Yield our templates' kernels in a report of products, with ordinary inputs and no cap."""
    report = json.loads(path.read_text())
    for one in report.get("measurements", ()):
        details = one["kernel"]["details"]
        if one["outcome"] != "correct" or "template" not in details:
            continue
        gemm = cast("Gemm", from_parameters({**one["workload"]["parameters"], "name": "g"}))
        names = {field for field in details if isinstance(details[field], int)}
        numbers = {name: details[name] for name in names - {"trials", "candidates"}}
        tiling = parameters_of(details["template"], numbers)
        if tiling is not None and gemm.distribution == "normal":
            gpu = report["run"]["gpu_name"]
            yield Steady(gpu, gemm, tiling, one["time_ms"], one["energy_mj"])


def steady_kernels(trials: Iterable[Trial]) -> list[Steady]:
    """Return all kernels whose energy was measured, in trials and in reports."""
    found = [
        Steady(trial.gpu, trial.gemm, trial.tiling, trial.sustained_ms, trial.energy_mj)
        for trial in trials
        if trial.energy_mj and trial.sustained_ms
    ]
    for path in sorted((ROOT / "bench" / "results").glob("*/gemm*.json")):
        found += reported(path)
    return [one for one in found if _alike(one) and one.tiling.resident(one.gemm, HOPPER)]


def stored_trials(more: Sequence[Path]) -> list[Trial]:
    """Return all trials whose kernels an H100 can run and the search space of today contains."""
    results = ROOT / "bench" / "results"
    found = [*first_trials(SEARCHES)]
    found += transposed(SEARCHES.with_name("gemm-transposed.json"))
    for path in sorted((ROOT / "bench" / "records").glob("*/gemm_*.template.json")):
        found += records(path)
    for path in [*sorted(results.glob("*/gemm-trials*.jsonl.gz")), *more]:
        found += listed(path)
    found = [replace(one, tiling=as_timed(one.tiling, one.source)) for one in found if one.tiling]
    unique: dict[tuple[object, ...], Trial] = {}
    for one in found:
        if one.tiling.resident(one.gemm, HOPPER) and _offered(one):
            key = (*one.group, one.tiling, one.time_ms)
            if one.energy_mj is not None or key not in unique:
                unique[key] = one
    return list(unique.values())


def _offered(trial: Trial) -> bool:
    """Whether a search of today could try the kernel, and its text is still alike.

    Some experiments went beyond the search.
    """
    tiling = trial.tiling
    if not _alike(trial) or _copied_otherwise(trial) or _stored_singly(trial):
        return False
    if isinstance(tiling, SkinnyParameters) and tiling.rotates(trial.gemm):
        return trial.source in _FOLLOWING
    if not isinstance(tiling, SimtParameters):
        return True
    rows = trial.gemm.layout == "nn" and not tiling.transpose_a
    return 256 <= tiling.products <= 2048 and not (rows and tiling.thread_m > 8)


def _alike(one: Trial | Steady) -> bool:
    """Whether the text of the kernel is still alike.

    Kernels of records, reports and the first draw added the sums of each step outside the tensor
    cores in ``tf32``, and those of records and reports of an H200 transposed A in ``nt`` with three
    times as many instructions.
    """
    if not isinstance(one.tiling, WgmmaTf32Parameters):
        return True
    source = getattr(one, "source", "records")
    if one.gemm.mode == "tf32":
        return source.startswith("untuned-")
    return not (one.gpu == "NVIDIA H200" and one.gemm.layout == "nt" and source == "records")


_NARROW_BEFORE = ("untuned", "untuned-second", "untuned-third")
"""The sources of trials in which each copy of less than 16 bytes asked whether its piece exists."""
_HALVES_BEFORE = ("untuned", "untuned-second")
"""The sources of trials in which operands of 16 bits were aligned by copies of two bytes."""


def _is_unaligned(gemm: Gemm) -> bool:
    """Whether the rows of an operand are not a multiple of 16 bytes apart."""
    return any(row * gemm.element_bytes % _PIECE_BYTES for row in (gemm.lda, gemm.ldb))


def _copied_otherwise(trial: Trial) -> bool:
    """Whether the kernel copied in a slower way what is not aligned."""
    gemm, tiling = trial.gemm, trial.tiling
    if not _is_unaligned(gemm):
        return False
    if getattr(tiling, "copying", False):
        return trial.source not in _NEWEST
    if tiling.family in HOPPER_FAMILIES:
        return trial.source in _HALVES_BEFORE and gemm.element_bytes == 2
    return trial.source in _NARROW_BEFORE and not getattr(tiling, "turned", False)


def _stored_singly(trial: Trial) -> bool:
    """Whether the kernel wrote the transpose of C otherwise than today.

    Its threads wrote rows of C that are a multiple of 16 bytes apart, and of others they wrote
    neighbours that different lanes did not have.
    """
    if trial.tiling.family not in ("hopper", "float8") or not trial.tiling.swapped:
        return False
    written = trial.gemm.ldc * stored_as(trial.gemm.output_type).itemsize % _PIECE_BYTES
    if written:
        return trial.source in {"untuned-thirteenth", "untuned-fourteenth"}
    return trial.source not in _BOXED


NEAR = 0.12
"""A kernel that is so much slower than the best, as a logarithm, counts half: only the best ones
matter for a choice."""
NOISE_SD, COMMON_SD, OUTLIER = 0.05, 0.1, 0.1
"""The standard deviations of the logarithms of a time and of what a product's times have in common,
and the deviation from which one counts less (Huber)."""


class Groups:
    """Trials in groups whose times may be compared, and how much each trial counts.

    All trials of a product with n of them count about n ** (1 - evenness). What all products
    together count does not depend on that.
    """

    def __init__(self, trials: Sequence[Trial], evenness: float) -> None:
        places = {
            group: place for place, group in enumerate(dict.fromkeys(t.group for t in trials))
        }
        self.of = np.array([places[trial.group] for trial in trials])
        self.log_cycles = np.log([trial.cycles for trial in trials])
        self.evenness = evenness
        self.weights = self.weighted(self.log_cycles)

    def weighted(self, log_estimates: Numbers) -> Numbers:
        """Return the weights of trials, given estimates of them.

        A kernel counts if it is among the best of its product, or is estimated to be: one that is
        slow and would be chosen is what a fit must learn most of all.
        """
        far = np.minimum(self._beyond_best(self.log_cycles), self._beyond_best(log_estimates))
        weights = 1 / (1 + (far / NEAR) ** 2)
        sums = np.bincount(self.of, weights)
        weights /= sums[self.of] ** self.evenness
        return cast("Numbers", weights * np.sqrt(sums).sum() / weights.sum())

    def _beyond_best(self, values: Numbers) -> Numbers:
        best = np.full(self.of.max() + 1, np.inf)
        np.minimum.at(best, self.of, values)
        return values - best[self.of]

    def centred(self, values: Numbers, weights: Numbers) -> Numbers:
        """Values less what all have in common, and less what each product's have."""
        values = values - weights @ values / weights.sum()
        sums = np.bincount(self.of, weights * values)
        return (
            values - (sums / (np.bincount(self.of, weights) + (NOISE_SD / COMMON_SD) ** 2))[self.of]
        )


_ALL: dict[str, tuple[float, float]] = {
    "product_share": (1.1, 0.3),
    "served_share": (1.0, 0.3),
    "step_cycles": (40, 0.7),
    "loaded_bytes_per_cycle": (48, 0.5),
    "loading_share": (0.1, 0.7),
    "latency_cycles": (700, 0.5),
    "first_cycles": (1000, 0.5),
    "stored_bytes_per_cycle": (8, 0.7),
    "launch_cycles": (6_000, 0.25),
    "parts_bytes_per_cycle": (16, 0.5),
    "sharing_share": (1.1, 0.15),
    "start_cycles": (1500, 0.5),
}
_CLUSTERS: dict[str, tuple[float, float]] = {
    "cluster_cycles": (500, 1.0),
    "cluster_m_share": (1.05, 0.1),
    "cluster_n_share": (1.05, 0.1),
}
EXPECTED: dict[str, dict[str, tuple[float, float]]] = {
    CORES: {
        "product_share": (1.15, 0.05),
        "loaded_bytes_per_cycle": (48, 0.4),
        "loading_share": (0.1, 0.7),
        "latency_cycles": (700, 0.5),
        "first_cycles": (1000, 0.5),
        "launch_cycles": (10_000, 0.4),
        "parts_bytes_per_cycle": (16, 0.5),
        "sharing_share": (1.0, 0.1),
        "start_cycles": (1000, 0.7),
        "copy_instructions": (3, 0.5),
        "turning_instructions": (12, 0.7),
        "narrow_instructions": (4, 0.7),
        "barrier_cycles": (700, 0.5),
    },
    "mma": {
        **_ALL,
        "busy_warps": (12, 0.3),
        "cluster_cycles": (1500, 0.5),
        "divided_share": (1.2, 0.1),
        "split_share": (4.0, 0.5),
        "copy_instructions": (3, 0.5),
        "kept_instructions": (6, 0.7),
    },
    "hopper": {
        **_ALL,
        **_CLUSTERS,
        "copied_bytes_per_cycle": (14, 0.25),
        "dividing_cycles": (1500, 0.3),
        "divided_share": (1.5, 0.1),
        "straddling_share": (1.0, 0.5),
    },
    "hopper_tf32": {
        **_ALL,
        **_CLUSTERS,
        "copied_bytes_per_cycle": (14, 0.25),
        "sums_share": (0.5, 1.0),
        "split_share": (1.0, 1.0),
        "prepared_share": (12.0, 0.5),
        "transposed_share": (44.0, 0.1),
        "copied_share": (10.0, 0.5),
        "dividing_cycles": (700, 0.5),
        "divided_share": (1.2, 0.1),
        "turns_share": (1.0, 0.1),
        "waiting_cycles": (150, 1.0),
    },
    "float8": {
        **_ALL,
        **_CLUSTERS,
        "copied_bytes_per_cycle": (16, 0.1),
        "sums_share": (2.0, 0.7),
        "straddling_share": (1.8, 0.05),
        "dividing_cycles": (2000, 0.3),
        "divided_share": (1.5, 0.1),
    },
    "skinny": {
        "product_share": (1.1, 0.3),
        "step_cycles": (100, 0.7),
        "loaded_bytes_per_cycle": (64, 0.5),
        "memory_bytes_per_cycle": (18.9, 0.03),
        "latency_cycles": (1500, 0.5),
        "first_cycles": (1500, 0.5),
        "parts_bytes_per_cycle": (16, 0.5),
        "start_cycles": (1500, 0.05),
        "cluster_cycles": (500, 1.0),
    },
}
"""What is expected of the costs before a trial is seen, and the standard deviations of their
logarithms: the constants with which earlier versions estimated, and rough physics."""


def fit_costs(
    trials: Sequence[Trial], families: Sequence[str], evenness: float, rounds: int = 12
) -> dict[str, Costs]:
    """Fit the costs to times by Levenberg's and Marquardt's method, in logarithms.

    All families that compute in the same modes are fitted at once, since a product's choice is
    among all of them. Energies are left out: trials are over before the power limit takes effect.

    Args:
        trials: the trials of these families.
        families: the families of templates.
        evenness: how evenly products count, see `Groups`.
        rounds: the most steps of the method.
    """
    if not trials:
        return {family: Costs(**_priors(family)) for family in families}
    names = [(family, name) for family in families for name in EXPECTED[family]]
    expected = np.log([EXPECTED[family][name][0] for family, name in names])
    sds = np.array([EXPECTED[family][name][1] for family, name in names])

    def of_families(values: Numbers) -> dict[str, Costs]:
        found: dict[str, dict[str, float]] = {family: {} for family in families}
        for (family, name), value in zip(names, np.exp(values).tolist(), strict=True):
            found[family][name] = float(f"{value:.6g}")
        return {family: Costs(**named) for family, named in found.items()}

    groups = Groups(trials, evenness)
    before = of_families(expected)
    priors = [t.tiling.cycles(t.gemm, HOPPER, before[t.family]) for t in trials]
    kept = groups.weighted(np.log(priors))
    kept = kept > 0.05 * kept.max()
    trials = [trial for trial, keep in zip(trials, kept, strict=True) if keep]
    groups = Groups(trials, evenness)
    everywhere = np.arange(len(trials))
    places = {
        family: np.array([at for at in everywhere if trials[at].family == family], dtype=int)
        for family in families
    }

    def misses(values: Numbers, at: npt.NDArray[np.intp] = everywhere) -> Numbers:
        costs = of_families(values)
        chosen = [trials[place] for place in at]
        cycles = [t.tiling.cycles(t.gemm, HOPPER, costs[t.family]) for t in chosen]
        return cast("Numbers", groups.log_cycles[at] - np.log(cycles))

    def loss(values: Numbers, missed: Numbers, weights: Numbers) -> float:
        size = np.abs(groups.centred(missed, weights))
        each = np.where(size < OUTLIER, size**2, 2 * OUTLIER * size - OUTLIER**2)
        prior = (((values - expected) / sds) ** 2).sum()
        return float((weights * each).sum() / NOISE_SD**2 + prior)

    values, damping = expected.copy(), 1.0
    missed = misses(values)
    for _ in range(rounds):
        near = groups.weighted(groups.log_cycles - missed)
        least = loss(values, missed, near)
        size = np.abs(groups.centred(missed, near))
        weights = near * np.minimum(1, OUTLIER / np.maximum(size, 1e-9))
        residual = groups.centred(missed, weights)
        slopes = np.empty((len(trials), len(names)))
        for place, (family, _) in enumerate(names):
            step, at = np.zeros(len(names)), places[family]
            step[place] = 1e-3
            changed = np.zeros(len(trials))
            changed[at] = (misses(values + step, at) - missed[at]) / 1e-3
            slopes[:, place] = groups.centred(changed, weights)
        weighted = slopes * (weights / NOISE_SD**2)[:, None]
        curvature = weighted.T @ slopes + np.diag(sds**-2.0)
        gradient = weighted.T @ residual + (values - expected) / sds**2
        before = least
        while damping < 1e6:
            move = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            there = values - np.clip(move, -0.5, 0.5)
            missed_there = misses(there)
            if (loss_there := loss(there, missed_there, near)) < least:
                values, missed, least, damping = there, missed_there, loss_there, damping / 4
                break
            damping *= 4
        if before - least < 1e-4 * before:
            break
    return of_families(values)


AT_THE_LIMIT = (0.96, 1.03)
"""The shares of the power limit between which it counts as holding a kernel back. With more, it has
not taken effect yet."""
LIMIT_W = 700.0
"""The power limit of all cards here."""
_ENERGIES = {
    "hopper": {"bfloat16": 0.9, "float16": 0.9, "tf32": 0.95},
    "hopper_tf32": {"tf32": 1.0, "3xtf32": 1.2},
}
"""What is expected of `Costs.energy_shares`, by family."""
_LOADED = 0.01


def fit_energies(steady: Sequence[Steady], family: str, costs: Costs) -> Costs:
    """Fit how long the energy of multiplications and loads lasts, to kernels at the power limit.

    Such a kernel takes as long as its energy lasts. Relative deviations are least squares, with a
    weak prior for what few kernels show.
    """
    modes = list(_ENERGIES[family])
    rows, weak = [], 0.3
    for one in steady:
        least, most = AT_THE_LIMIT
        limited = least <= one.power_w / LIMIT_W <= most
        if not limited or one.tiling.family != family:
            continue
        blocks = one.tiling.tiles(one.gemm) * one.tiling.cluster_blocks
        every = blocks * one.tiling.steps(one.gemm) / HOPPER.multiprocessors
        row = [0.0] * (len(modes) + 1)
        row[modes.index(one.gemm.mode)] = one.tiling.peak_cycles(one.gemm) * every
        row[-1] = one.tiling.loaded_bytes(one.gemm) * every
        rows.append(np.array(row) / (one.time_ms * 1e6 * CLOCK_GHZ))
    expected = np.array([*_ENERGIES[family].values(), _LOADED])
    scale = np.diag(weak / expected)
    matrix = np.vstack([*rows, scale])
    found = np.linalg.lstsq(matrix, np.r_[np.ones(len(rows)), scale @ expected], rcond=None)[0]
    *shares, loaded = [float(f"{max(0.0, value):.4g}") for value in found]
    shares_by_mode = dict(zip(modes, shares, strict=True))
    return structs.replace(costs, energy_shares=shares_by_mode, loaded_energy_cycles=loaded)


MEASURED: Mapping[str, float] = {
    "divided_share": 1.4,
    "dividing_cycles": 1500.0,
    "loaded_energy_cycles": 0.004,
}
"""Costs of the family ``hopper`` that a fit does not find, since few kernels at the power limit
have small tiles, and few tiles were divided. By the fit, the energy of loads lasts 0.011 cycles a
byte, and 300 x 14336 x 4096 would have taken 77 us with tiles of 64 x 192 on an H200, where it took
57. The others are from products of 16 to 44 tiles, whose steps 2 to 4 blocks divided."""
EARLY_CYCLES = 900.0
"""`Costs.early_cycles`, from pairs of launches on an H200 (``gemm-early-and-rotated.jsonl.gz``)."""
COUNTS: Mapping[str, int] = {CORES: 200, "tensor": 400}
"""The number of trees by what they correct."""
DEPTH, RATE, SHRINKAGE, DRAWN = 5, 0.08, 2.5, 0.5
"""The depth of the trees, the share of each that is added, the weight of a leaf's value
0, and the share of the products that are drawn to fit a tree (Friedman, "Stochastic gradient
boosting", 2002): the next tree mends what is wrong for the others."""
EVENNESS = 0.5
"""How evenly products count, see `Groups`."""
LARGEST = 0.3
"""A larger deviation from the estimate is learned as this."""


def fit_trees(
    trials: Sequence[Trial],
    costs: Mapping[str, Costs],
    traits_of: tuple[str, ...],
    evenness: float,
    count: int,
) -> Trees:
    """Fit trees to what the estimate by these costs misses, each to what those before it leave.

    Args:
        trials: the trials of all templates that the trees correct.
        costs: the costs by family of templates.
        traits_of: the names of their traits.
        evenness: how evenly products count, see `Groups`.
        count: the number of trees.
    """
    groups = Groups(trials, evenness)
    estimated = [trial.tiling.cycles(trial.gemm, HOPPER, costs[trial.family]) for trial in trials]
    rows = [
        trial.tiling.traits(trial.gemm, HOPPER, cycles)
        for trial, cycles in zip(trials, estimated, strict=True)
    ]
    traits = np.array(rows, dtype=float)
    near = groups.weighted(np.log(estimated))
    left = groups.centred(groups.log_cycles - np.log(estimated), near)
    left = np.clip(left, -LARGEST, LARGEST)
    limits = [_limits(column) for column in traits.T]
    bins = np.stack(
        [np.searchsorted(limit, column) for limit, column in zip(limits, traits.T, strict=True)]
    )
    nodes, thresholds, values = [], [], []
    chance = np.random.default_rng(1)
    for _ in range(count):
        drawn = near * (chance.random(groups.of.max() + 1) < DRAWN)[groups.of]
        places = np.zeros(len(trials), dtype=int)
        tree, cuts = [], []
        for node in range(2**DEPTH - 1):
            here = np.flatnonzero(places == node)
            seen = here[drawn[here] > 0]
            trait, cut = _best_cut(bins[:, seen], limits, left[seen], drawn[seen])
            tree.append(trait)
            cuts.append(cut)
            places[here] = 2 * node + 1 + (traits[here, trait] > cut)
        leaves = places - len(tree)
        weights = np.bincount(leaves, drawn, 2**DEPTH)
        sums = np.bincount(leaves, drawn * left, 2**DEPTH)
        added = RATE * sums / (weights + SHRINKAGE)
        left = left - added[leaves]
        nodes.append(tree)
        thresholds.append([float(cut) for cut in cuts])
        values.append([round(float(value), 6) for value in added])
    return Trees(traits_of, nodes, thresholds, values)


def _limits(column: Numbers) -> Numbers:
    """Return the thresholds to try, which lie between values; of many, a few are taken."""
    distinct = np.unique(column)
    if len(distinct) > 48:
        distinct = np.unique(np.quantile(column, np.linspace(0, 1, 48)))
    middles = (distinct[1:] + distinct[:-1]) / 2
    return np.unique(np.array([float(f"{middle:.6g}") for middle in middles]))


def _best_cut(
    bins: npt.NDArray[np.intp], limits: Sequence[Numbers], left: Numbers, weights: Numbers
) -> tuple[int, float]:
    """Return the trait and threshold that explain most; if none does, all trials go to one side."""
    best, trait, cut = 1e-9, 0, 1e30
    total, weight = float(weights @ left), float(weights.sum())
    whole = total**2 / (weight + SHRINKAGE)
    for place, limit in enumerate(limits):
        if not len(limit) or not len(left):
            continue
        sums = np.cumsum(np.bincount(bins[place], weights * left, len(limit) + 1))[:-1]
        below = np.cumsum(np.bincount(bins[place], weights, len(limit) + 1))[:-1]
        gains = sums**2 / (below + SHRINKAGE) - whole
        gains += (total - sums) ** 2 / (weight - below + SHRINKAGE)
        gains[(below < 0.3) | (weight - below < 0.3)] = 0
        if gains[at := int(np.argmax(gains))] > best:
            best, trait, cut = float(gains[at]), place, float(limit[at])
    return trait, cut


def fit(
    trials: Sequence[Trial],
    steady: Sequence[Steady] = (),
    kept: Mapping[str, Costs] | None = None,
) -> FittedCosts:
    """Fit everything, but for the costs of families that are `kept`."""
    kept = kept or {}
    of = defaultdict(list)
    for trial in trials:
        of[trial.family].append(trial)
    tensor = [trial for family in EXPECTED if family != CORES for trial in of[family]]
    others = [family for family in EXPECTED if family != CORES and family not in kept]
    costs = {**kept, **fit_costs([t for t in tensor if t.family in others], others, EVENNESS)}
    if CORES not in kept:
        costs |= fit_costs(of[CORES], [CORES], EVENNESS)
    for family in HOPPER_FAMILIES:
        if family not in kept:
            costs[family] = fit_energies(steady, family, costs[family])
    costs["hopper"] = structs.replace(costs["hopper"], **MEASURED)
    for family in ("hopper", "float8", "skinny"):
        costs[family] = structs.replace(costs[family], early_cycles=EARLY_CYCLES)
    trees = {}
    if of[CORES]:
        trees[CORES] = fit_trees(of[CORES], costs, TRAITS, EVENNESS, COUNTS[CORES])
    if tensor:
        trees["tensor"] = fit_trees(tensor, costs, TENSOR_TRAITS, EVENNESS, COUNTS["tensor"])
    return FittedCosts(costs, trees)


def _priors(family: str) -> dict[str, float]:
    return {name: float(value) for name, (value, _) in EXPECTED[family].items()}


@dataclass(frozen=True)
class Choice:
    """What an estimate chooses among the measured kernels of a product.

    Attributes:
        group: the product and where its trials are from; the mode is the last part.
        kernels: the number of measured kernels.
        regrets: the regret of the first choice by what was measured. Of trials these are the time,
            and the time of the better of the first two and of the best of eight tiles.
    """

    group: tuple[object, ...]
    kernels: int
    regrets: Mapping[str, float]


def choices(trials: Iterable[Trial], estimate: FittedCosts) -> list[Choice]:
    """Let an estimate choose for each product of which two kernels or more were timed."""
    by_group: dict[tuple[object, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        by_group[trial.group].append(trial)
    found = []
    for group, members in by_group.items():
        if len({trial.tiling for trial in members}) < 2:
            continue
        ranked = _ranked(members, estimate)
        first: dict[tuple[object, ...], Trial] = {}
        for trial in ranked:
            first.setdefault((trial.family, trial.tiling.tile_m, trial.tiling.tile_n), trial)
        times = [trial.time_ms for trial in ranked]
        tiles = [trial.time_ms for trial in first.values()][:TILES]
        regrets = {
            "time": times[0] / min(times) - 1,
            "better of two": min(times[:2]) / min(times) - 1,
            "best of 8 tiles": min(tiles) / min(times) - 1,
        }
        found.append(Choice(group, len(members), regrets))
    return found


def steady_choices(kernels: Iterable[Steady], estimate: FittedCosts) -> list[Choice]:
    """Let an estimate choose for each product of which two kernels or more ran under steady load.

    A kernel that was measured several times counts with its medians.
    """
    by_group: dict[tuple[object, ...], dict[Any, list[Steady]]] = defaultdict(dict)
    for one in kernels:
        group = (one.gpu, one.size, one.gemm.layout, one.gemm.mode)
        by_group[group].setdefault(one.tiling, []).append(one)
    found = []
    for group, members in by_group.items():
        if len(members) < 2:
            continue
        medians = [
            replace(
                runs[0],
                time_ms=median(one.time_ms for one in runs),
                energy_mj=median(one.energy_mj for one in runs),
            )
            for runs in members.values()
        ]
        ranked = _ranked(medians, estimate)
        values = {
            "steady time": [one.time_ms for one in ranked],
            "energy": [one.energy_mj for one in ranked],
            "EDP": [one.energy_mj * one.time_ms for one in ranked],
        }
        regrets = {name: every[0] / min(every) - 1 for name, every in values.items()}
        found.append(Choice(group, len(medians), regrets))
    return found


_Measured = TypeVar("_Measured", Trial, Steady)


def _ranked(members: Sequence[_Measured], estimate: FittedCosts) -> list[_Measured]:
    """Kernels of one product, the most promising first."""
    tilings = [one.tiling for one in members]
    cycles = estimated_cycles(members[0].gemm, HOPPER, tilings, estimate)
    return [members[place] for place in np.argsort(cycles, kind="stable").tolist()]


def held_out(
    trials: Sequence[Trial],
    steady: Sequence[Steady],
    folds: int | None = None,
    kept: Mapping[str, Costs] | None = None,
) -> list[Choice]:
    """Leave sizes out in turn and let the estimate of the others choose for them.

    Args:
        trials: what was timed.
        steady: what was measured under steady load.
        folds: into how many parts the sizes are divided; None leaves out each one by itself.
        kept: the costs of families that are not fitted.
    """
    found = []
    sizes = sorted({trial.size for trial in trials})
    if folds is not None:
        random.Random(1).shuffle(sizes)
    count = min(folds or len(sizes), len(sizes))
    for left_out in (set(sizes[first::count]) for first in range(count)):
        estimate = fit(
            [trial for trial in trials if trial.size not in left_out],
            [one for one in steady if one.size not in left_out],
            kept,
        )
        found += choices([trial for trial in trials if trial.size in left_out], estimate)
        found += steady_choices([one for one in steady if one.size in left_out], estimate)
    return found


KINDS: Mapping[str, Callable[[Choice], bool]] = {
    "trials, 10 kernels or more": lambda one: "time" in one.regrets and one.kernels >= 10,
    "trials, 2 to 9 kernels": lambda one: "time" in one.regrets and one.kernels < 10,
    "steady load, 2 kernels or more": lambda one: "energy" in one.regrets,
}
"""The products that have a table of their own."""


def tables(named: Mapping[str, Sequence[Choice]]) -> str:
    """Median and worst decile of the regrets in %, by mode, for each estimate."""
    found = []
    for kind, belongs in KINDS.items():
        rows, header = [], ["mode", "products", "estimate"]
        for mode in (*MODES, "all"):
            for name, every in named.items():
                chosen = [
                    one for one in every if belongs(one) and mode in ("all", _mode_of(one.group))
                ]
                if not chosen:
                    continue
                cells = []
                for metric in chosen[0].regrets:
                    values = [100 * one.regrets[metric] for one in chosen]
                    cells.append(f"{np.median(values):.1f}, {np.quantile(values, 0.9):.1f}")
                rows.append([mode, str(len(chosen)), name, *cells])
                header = [*header[:3], *chosen[0].regrets]
        found.append(f"{kind}:\n\n{markdown_table(header, rows)}")
    return "\n\n".join(found)


def decile_table(every: Sequence[Choice]) -> str:
    """Return deciles of the regret in time in %, by mode, of three timed kernels or more."""
    rows = []
    for mode in (*MODES, "all"):
        values = [
            100 * one.regrets["time"]
            for one in every
            if "time" in one.regrets and one.kernels >= 3 and mode in ("all", _mode_of(one.group))
        ]
        if values:
            deciles = np.quantile(values, np.arange(1, 10) / 10)
            rows.append([mode, str(len(values)), *(f"{value:.1f}" for value in deciles)])
    return markdown_table(["mode", "products", *(f"{10 * n} %" for n in range(1, 10))], rows)


def _mode_of(group: tuple[object, ...]) -> str:
    """Return the mode in a `Trial.group`."""
    return next(str(part) for part in group if part in MODES)


def replayed(trials: Sequence[Trial], steady: Sequence[Steady], first: int) -> str:
    """Return what the first trials find of searches that begin with an estimate of other sizes."""
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(SEARCHES) as archive,
        open_device("emulated:h100") as device,
    ):
        archive.extractall(folder, filter="data")
        stored = [path.parent for path in sorted(Path(folder).rglob(TRIALS_FILE))]
        for one, raw in zip(searches(Path(folder)), stored, strict=True):
            named = json.loads((raw / IDENTITY_FILE).read_bytes())["workload"]
            size = (named["M"], named["N"], named["K"])
            estimate = fit(
                [trial for trial in trials if trial.size != size],
                [kernel for kernel in steady if kernel.size != size],
            )
            found.append(replace(one, again_ms=times_again_ms(raw, device, first, estimate)))
    return first_trials_table(found, first)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command; exit code 2 if a file cannot be used."""
    parser = study_parser(__doc__)
    parser.add_argument("trials", type=Path, nargs="*", help="Files of more trials, see above")
    parser.add_argument("--write", action="store_true", help="Fit all trials and write the file")
    parser.add_argument("--families", nargs="*", choices=EXPECTED, help="Fit these costs only")
    parser.add_argument("--folds", type=int, help="Leave sizes out in so many parts, not singly")
    parser.add_argument("--replay", type=int, metavar="N", help="The first N trials of searches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Each regret, to a file")
    arguments = parser.parse_args(words)
    trials = stored_trials(arguments.trials)
    steady = steady_kernels(trials)
    counts = defaultdict(set)
    for trial in trials:
        counts[trial.source, trial.gemm.mode].add((trial.size, trial.gemm.layout, trial.gpu))
    for (source, mode), groups in sorted(counts.items()):
        of_kind = [t for t in trials if (t.source, t.gemm.mode) == (source, mode)]
        print(f"{source}, {mode}: {len(of_kind)} trials of {len(groups)} products")
    for mode in MODES:
        of_mode = [one for one in steady if one.gemm.mode == mode]
        products = {(one.size, one.gemm.layout, one.gpu) for one in of_mode}
        print(f"steady load, {mode}: {len(of_mode)} measurements of {len(products)} products")
    families = EXPECTED if arguments.families is None else arguments.families
    kept = {one: costs for one, costs in fitted().costs.items() if one not in families}
    if arguments.write:
        estimate = msgspec.json.encode(fit(trials, steady, kept))
        WRITTEN.write_bytes(msgspec.json.format(estimate, indent=0) + b"\n")
        print(f"{WRITTEN} was fitted to {len(trials)} trials.")
        return
    if arguments.replay:
        print(replayed(trials, steady, arguments.replay))
        return
    before = Costs(stored_bytes_per_cycle=1e12)  # as earlier versions estimated
    constants = FittedCosts(dict.fromkeys(EXPECTED, before), {})
    named = {
        "as before": [*choices(trials, constants), *steady_choices(steady, constants)],
        "fitted to other sizes": held_out(trials, steady, arguments.folds, kept),
        "as written, to all": [*choices(trials, fitted()), *steady_choices(steady, fitted())],
    }
    print(f"\nMedian and worst decile of the regret in %.\n\n{tables(named)}")
    print(f"\nDeciles, fitted to other sizes:\n\n{decile_table(named['fitted to other sizes'])}")
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(named), indent=1))


if __name__ == "__main__":
    sys.exit(main())
