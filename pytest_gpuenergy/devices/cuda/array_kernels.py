"""`ArrayMath` on a GPU, by kernels of our own instead of CuPy's.

CuPy compiles a kernel for each function and type when a machine first needs it, one after another:
on an H200 5.5 s for a first product. Ours are one text, which another process compiles meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import cuda_dir
from pytest_gpuenergy.workloads import (
    BFLOAT16,
    FLOAT8,
    NUMPY,
    Allowance,
    Array,
    ArrayMath,
    BytePair,
    Distance,
    Extremes,
    Values,
    numbers,
    sliced_axes,
)

_ENTRIES = (
    "widen",
    "to_single",
    "survey",
    "row_maxima",
    "column_maxima",
    "change",
    "add",
    "react",
    "distance",
    "count_within",
    "differ",
    "skipped",
    "take",
    "put",
)
_KINDS = {"float64": 0, "float32": 1, "float16": 2, BFLOAT16: 3, **dict.fromkeys(FLOAT8, 4)}
"""The kinds of elements, as in the text."""
_THREADS, _MAX_BLOCKS = 256, 1024
_ROWS_OF_BLOCKS = 64
_RELATIVE, _ABSOLUTE = 0.01, 1e-8
"""The tolerances within which reactions are the same, those of `ArrayMath.larger_reaction`."""


@functools.cache
def array_kernels() -> Kernel:
    """Return the kernels as one text with an entry for each."""
    text = (cuda_dir() / "checks" / "checks.cu").read_text(encoding="utf-8")
    one = (1, 1, 1)
    return Kernel(text, tuple(Launch(name, one, (_THREADS, 1, 1), ()) for name in _ENTRIES))


class KernelMath(ArrayMath):
    """Functions on a GPU's arrays, by our kernels if an array is contiguous and its type is known.

    CuPy computes what our kernels cannot.

    Args:
        binary: returns the compiled `array_kernels`; None where nobody compiles them, and CuPy's
            functions compute everything.
        are_tested: whether another process has found on this GPU that they agree with NumPy. Here
            that would take a tenth of a second while a kernel heats the card.
    """

    def __init__(
        self, binary: Callable[[], Binary | None] | None, *, are_tested: bool = False
    ) -> None:
        self._binary = binary
        self._are_tested = are_tested

    def numbers(self, values: Array, dtype: str) -> Array:
        if dtype != BFLOAT16 and dtype not in FLOAT8:
            return values
        if (kind := self._kind_of(dtype, values)) is None:
            return super().numbers(values, dtype)
        single: Array = self._cupy.empty(values.shape, np.float32)
        self._launch("to_single", values.size, values, *kind, np.int64(values.size), single)
        return single

    def widened(self, values: Array, dtype: str) -> Values:
        if (kind := self._kind_of(dtype, values)) is None:
            return super().widened(values, dtype)
        wide: Values = self._cupy.empty(values.shape, np.float64)
        self._launch("widen", values.size, values, *kind, np.int64(values.size), wide)
        return wide

    def extremes(self, values: Array, dtype: str | None = None) -> Extremes:
        kind = self._kind_of(dtype or values.dtype.name, values)
        if kind is None:
            return super().extremes(values, dtype)
        low, high, peak, _ = self._survey(values, kind)
        return Extremes(low, high, peak) if low <= high else Extremes(0.0, 0.0, peak)

    def root_mean_square(self, values: Values) -> float:
        kind = self._kind_of(values.dtype.name, values)
        if kind is None:
            return super().root_mean_square(values)
        return math.sqrt(self._survey(values, kind)[3] / values.size)

    def sample(self, values: Array, step: int) -> Array:
        if not self._handles(values):
            return super().sample(values, step)
        count = -(-values.size // step)
        taken = self._cupy.empty(count, values.dtype)
        size = np.int32(values.dtype.itemsize)
        sizes = np.int64(step), np.int64(count)
        self._launch("take", count, values, size, self._absent, *sizes, taken)
        on_host: Array = taken.get()
        return on_host

    def has_small_slice(self, values: Values, limit: float) -> bool:
        if values.ndim != 2 or not self._handles(values, np.float64):
            return super().has_small_slice(values, limit)
        rows, columns = values.shape
        maxima = [self._cupy.zeros(count, np.float64) for count in (rows, columns)]
        sizes = np.int64(rows), np.int64(columns)
        self._function("row_maxima")(
            (min(rows, _MAX_BLOCKS),), (_THREADS,), (values, *sizes, maxima[0])
        )
        blocks = -(-columns // _THREADS), min(rows, _ROWS_OF_BLOCKS)
        self._function("column_maxima")(blocks, (_THREADS,), (values, *sizes, maxima[1]))
        of_rows = maxima[0].get()
        slices = [(of_rows, maxima[1].get())[axis] for axis in sliced_axes(values.shape)]
        slices.append(of_rows.max(keepdims=True))  # each slice is a part of the whole
        # The least of an element's slices is small if one is, and is not 0 if none is.
        with np.errstate(invalid="ignore"):
            none_is_zero = all((maximum > 0).any() for maximum in slices)
            return none_is_zero and any(
                ((maximum > 0) & (maximum < limit)).any() for maximum in slices
            )

    def changed(
        self, values: Values, floor: float, fraction: float, bits: npt.NDArray[np.uint8]
    ) -> Values:
        if not self._handles(values, np.float64):
            return super().changed(values, floor, fraction, bits)
        changed = self._cupy.empty_like(values)
        sizes = np.int64(values.size), np.float64(floor), np.float64(fraction)
        there = self._cupy.asarray(bits)
        self._launch("change", values.size, values, *sizes, there, changed)
        found: Values = changed
        return found

    def larger_reaction(
        self, result: Values, right: Values, fraction: float, before: Values | None
    ) -> tuple[Values, bool]:
        arrays = [result, right, *([] if before is None else [before])]
        if result.shape != right.shape or not all(
            self._handles(each, np.float64) for each in arrays
        ):
            return super().larger_reaction(result, right, fraction, before)
        reactions, differing = self._cupy.empty_like(right), self._cupy.zeros(1, np.uint64)
        self._launch(
            "react",
            right.size,
            result,
            right,
            np.int64(right.size),
            np.float64(fraction),
            *self._given(before),
            np.float64(_RELATIVE),
            np.float64(_ABSOLUTE),
            reactions,
            differing,
        )
        return reactions, before is not None and not int(differing.get()[0])

    def added(self, one: Values, other: Values) -> Values:
        if one.shape != other.shape or not all(
            self._handles(each, np.float64) for each in (one, other)
        ):
            return super().added(one, other)
        sums: Values = self._cupy.empty_like(one)
        self._launch("add", one.size, one, other, np.int64(one.size), sums)
        return sums

    def begin_distance(
        self,
        output: Array,
        expected: Values,
        steps: int = 0,
        size: tuple[float, float] | None = None,
    ) -> Callable[[], Distance]:
        kind = self._kind_of(output.dtype.name, output)
        if kind is None or not self._handles(expected, np.float64):
            return super().begin_distance(output, expected, steps, size)
        blocks = self._blocks(output.size)
        results = self._cupy.empty((blocks, 4), np.float64)
        sizes = np.int64(output.size), np.float64(steps)
        self._launch("distance", output.size, output, *kind, expected, *sizes, results)

        def distance() -> Distance:
            rows = results.get()
            largest, scale = (float(rows[:, column].max()) for column in (0, 2))
            norm, expected_norm = (math.sqrt(rows[:, column].sum()) for column in (1, 3))
            return Distance(largest, norm, scale or 1.0, expected_norm or 1.0)

        return distance

    def count_within(self, output: Array, expected: Values, allowance: Allowance) -> int:
        kind = self._kind_of(output.dtype.name, output)
        sizes = [each for each in (allowance.own, allowance.terms) if each is not None]
        if kind is None or not all(self._handles(e, np.float64) for e in (expected, *sizes)):
            return super().count_within(output, expected, allowance)
        count = self._cupy.zeros(1, np.uint64)
        self._launch(
            "count_within",
            output.size,
            output,
            *kind,
            expected,
            np.int64(output.size),
            *map(
                np.float64, (allowance.sums, allowance.rounding, allowance.least, allowance.scale)
            ),
            *self._given(allowance.own),
            *self._given(allowance.terms),
            count,
        )
        return int(count.get()[0])

    def differing(self, pairs: Sequence[BytePair]) -> list[int]:
        return self.begin_differing(pairs)()

    def begin_differing(self, pairs: Sequence[BytePair]) -> Callable[[], list[int]]:
        if not all(self._handles(image) for pair in pairs for image in pair):
            return functools.partial(super().differing, pairs)
        found = self._cupy.zeros(len(pairs), np.int32)
        for place, (one, other) in enumerate(pairs):
            size = 1 if one.nbytes % 8 else 8
            count = one.nbytes // size
            where = np.int32(size), np.int64(count), np.int32(place)
            self._launch("differ", count, one, other, *where, found)
        return lambda: np.flatnonzero(found.get()).tolist()

    @property
    def is_loaded(self) -> bool:
        """Whether the kernels are there."""
        return self._module is not None

    def is_skipped(self, before: Any, now: Any, first: Any, size: int) -> bool:
        """Return whether an element is as before, although the first launch has changed it.

        Args:
            before: the bytes of the elements before the launch, in the GPU's memory.
            now: their bytes after it.
            first: their bytes after the first launch.
            size: the size of an element in bytes, at most 8.
        """
        if not self.is_loaded:
            there, here, then = (each.get().view(f"u{size}") for each in (before, now, first))
            return bool(((there == here) & (there != then)).any())
        found, count = self._cupy.zeros(1, np.int32), now.nbytes // size
        arguments = before, now, first, np.int32(size), np.int64(count), found
        self._launch("skipped", count, *arguments)
        return bool(int(found.get()[0]))

    def fill_bytes(self, image: npt.NDArray[np.uint8], value: int) -> None:
        there: Any = image
        there.data.memset(value, there.nbytes)

    def take(self, values: Array, places: npt.NDArray[np.int64]) -> Array:
        if not self._handles(values):
            return super().take(values, places)
        count, taken = np.int64(places.size), self._cupy.empty(places.size, values.dtype)
        there, size = self._cupy.asarray(places), np.int32(values.dtype.itemsize)
        self._launch("take", places.size, values, size, there, np.int64(0), count, taken)
        on_host: Array = taken.get()
        return on_host

    def put_at(self, values: Array, places: npt.NDArray[np.int64], new: Array) -> None:
        if not (self._handles(values) and isinstance(new, np.ndarray)):
            super().put_at(values, places, new)
            return
        there, given = self._cupy.asarray(places), self._cupy.asarray(new.astype(values.dtype))
        size, count = np.int32(values.dtype.itemsize), np.int64(places.size)
        self._launch("put", places.size, values, size, there, given, count)

    @functools.cached_property
    def _cupy(self) -> Any:
        import cupy

        return cupy

    @functools.cached_property
    def _absent(self) -> Any:
        """An array in the place of one that is not read."""
        return self._cupy.empty(1, np.float64)

    def _given(self, values: Values | None) -> tuple[Any, ...]:
        """Return an array that may be absent, and the flag that says whether it is there."""
        return (self._absent, np.int32(0)) if values is None else (values, np.int32(1))

    @functools.cached_property
    def _module(self) -> Any:
        """The loaded kernels; None if they cannot be compiled or loaded, or disagree with NumPy."""
        if self._binary is None:
            return None
        if (binary := self._binary()) is None:
            return None
        # Whatever fails here, CuPy's functions judge the outputs instead.
        with contextlib.suppress(Exception):
            module = self._cupy.cuda.function.Module()
            module.load_file(str(binary.path))
            tried = KernelMath(None)
            tried.__dict__["_module"] = module
            if self._are_tested or tried._agrees_with_numpy():
                return module
        return None

    def _agrees_with_numpy(self) -> bool:
        """Return whether the kernels compute what NumPy computes, of a small array."""
        expected = np.linspace(-3.0, 3.0, 400).reshape(20, 20)
        output = (1.001 * expected).astype(np.float32)
        bits, places = np.arange(50, dtype=np.uint8), np.array([0, 7, 399])
        allowance, fraction = Allowance(1e-3, 1e-4, 1e-4, 3.0), 2.0**-20
        right, off = map(self._cupy.asarray, (expected, output))
        image = expected.view(np.uint8).reshape(-1)
        other = image.copy()
        other[-8:] ^= 1
        same, changed = map(self._cupy.asarray, (image, other))
        half = output.astype(np.float16)
        wide: Any = self.widened(self._cupy.asarray(half), "float16")
        moved = self._cupy.asarray(output)
        self.put_at(moved, places, output[0, :3])
        perturbed: Any = self.changed(right, 0.5, fraction, bits)
        reaction: Any
        reaction, is_same = self.larger_reaction(right, self.added(right, right), fraction, right)
        wanted, is_so = NUMPY.larger_reaction(expected, 2 * expected, fraction, expected)
        return bool(
            self.extremes(off) == NUMPY.extremes(output)
            and np.allclose(self.distance(off, right), NUMPY.distance(output, expected))
            and math.isclose(self.root_mean_square(right), NUMPY.root_mean_square(expected))
            and self.count_within(off, right, allowance)
            == NUMPY.count_within(output, expected, allowance)
            and self.has_small_slice(right, 3.0) == NUMPY.has_small_slice(expected, 3.0)
            and np.array_equal(perturbed.get(), NUMPY.changed(expected, 0.5, fraction, bits))
            and np.array_equal(reaction.get(), wanted)
            and is_same == is_so
            and np.array_equal(wide.get(), NUMPY.widened(half, "float16"))
            and np.array_equal(self.take(off, places), output.reshape(-1)[places])
            and np.array_equal(self.take(moved, places), output[0, :3])
            and self.differing([(same, same), (same, changed), (same[1:], changed[1:])]) == [1, 2]
            and self.is_skipped(same, same, changed, 8)
            and not self.is_skipped(same, changed, changed, 8)
        )

    def _function(self, name: str) -> Any:
        return self._module.get_function(name)

    def _handles(self, values: Any, dtype: type[np.generic] | None = None) -> bool:
        """Return whether kernels can read an array as it is."""
        return bool(
            self._module is not None
            and isinstance(values, self._cupy.ndarray)
            and values.size
            and values.flags.c_contiguous
            and dtype in (None, values.dtype)
        )

    def _kind_of(self, dtype: str, values: Array) -> tuple[Any, ...] | None:
        """Return the arguments that describe the elements of an array; None if none do."""
        if dtype not in _KINDS or not self._handles(values):
            return None
        table: Any = self._table(dtype) if dtype in FLOAT8 else self._absent
        return np.int32(_KINDS[dtype]), table

    def _table(self, dtype: str) -> Any:
        every = numbers(np.arange(256, dtype=np.uint8), dtype)
        return self._cupy.asarray(np.ascontiguousarray(every, np.float32))

    def _survey(self, values: Array, kind: tuple[Any, ...]) -> tuple[float, ...]:
        results = self._cupy.empty((self._blocks(values.size), 4), np.float64)
        self._launch("survey", values.size, values, *kind, np.int64(values.size), results)
        rows = results.get()
        low, high, peak = rows[:, 0].min(), rows[:, 1].max(), rows[:, 2].max()
        return float(low), float(high), float(peak), float(rows[:, 3].sum())

    @staticmethod
    def _blocks(count: int) -> int:
        return min(_MAX_BLOCKS, -(-count // _THREADS))

    def _launch(self, name: str, count: int, *arguments: Any) -> None:
        """Launch a kernel on the current stream, with a thread for each of ``count`` or fewer."""
        self._function(name)((self._blocks(count),), (_THREADS,), arguments)
