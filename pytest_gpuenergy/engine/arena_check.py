"""Checks the contents of arenas after a run, and again after all launches of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices import (
    GUARD_BYTES,
    SINGLES,
    Arena,
    Arrays,
    Bytes,
    HostArrays,
    Relaunching,
    changed_guard_bytes,
)
from pytest_gpuenergy.engine.comparison import Reference, compare, places
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import (
    NUMPY,
    Array,
    ArrayMath,
    ErrorBound,
    Extremes,
    numbers,
    stored,
    stored_as,
)

A = TypeVar("A", bound=Array)


class ArenaCheck:
    """Checks arenas after a run: outputs correct, inputs and guard bands unchanged.

    Args:
        arenas: the arenas by tensor name, all on the same device; the inputs must keep their
            current contents.
        reference: computes the correct outputs, by tensor name.
        bounds: the largest error allowed for each output.
        seed: the seed of the inputs, for messages.
        draw: chooses the elements that `falsify` makes wrong; by default unpredictable.
    """

    def __init__(
        self,
        arenas: Mapping[str, Arena],
        reference: Callable[[], Reference],
        bounds: Mapping[str, ErrorBound],
        seed: int,
        draw: np.random.Generator | None = None,
    ) -> None:
        self._arenas = arenas
        self._draw = draw or np.random.default_rng()
        self._outputs = {n: a for n, a in arenas.items() if a.tensor.is_written}
        self._arrays: Arrays = next(iter(arenas.values())).memory.arrays if arenas else HostArrays()
        self._inputs: dict[str, Bytes] = {}
        self._initial: dict[str, Array] = {}
        self._before: dict[str, Array] = {}
        with self._arrays.used():
            self._guards = {
                name: [self._arrays.put(band).view(np.uint8) for band in arena.expected_guards()]
                for name, arena in arenas.items()
            }
            self.expect(reference, bounds, seed)

    def expect(
        self, reference: Callable[[], Reference], bounds: Mapping[str, ErrorBound], seed: int
    ) -> None:
        """Check the next run on the present contents of the arenas, with other correct outputs.

        The arguments are those of the class.
        """
        self._reference = reference
        self._bounds = bounds
        self._seed = seed
        with self._arrays.used():
            for name, arena in self._arenas.items():
                if arena.tensor.role == "input":
                    self._inputs[name] = self._copied(arena.image(), self._inputs.get(name))
                if arena.tensor.role == "inout":
                    self._initial[name] = self._copied(arena.elements(), self._initial.get(name))
                if arena.tensor.is_written:
                    self._before[name] = self._copied(arena.elements(), self._before.get(name))
        self._extremes: dict[str, Extremes] = {}
        self._is_repeated = False
        self._right: tuple[Reference, dict[str, Array], ErrorBound] | None = None

    def __call__(self) -> ErrorBound:
        """Return the errors of the outputs, see `compare`.

        Raises:
            InputError: the reference is not finite.
            KernelFault: an output is wrong, or an input or guard band has changed. The message
                says where.
        """
        reference = self._reference()
        with self._arrays.used():
            untouched = self._begin_untouched()
            if reference.arrays is None:  # otherwise the outputs are compared in the same wait
                untouched()
            if (known := self._known_errors(reference)) is not None:
                return known
            errors = self._compared(reference, untouched)
            self._remember(reference, errors)
            return errors

    def _compared(self, reference: Reference, untouched: Callable[[], None]) -> ErrorBound:
        there = reference.arrays

        def values_of(name: str, elements: Array) -> Array:
            values = self._arrays.numbers(elements, self._outputs[name].tensor.dtype)
            return self._arrays.get(values) if there is None else values

        outputs = {name: values_of(name, arena.elements()) for name, arena in self._outputs.items()}
        distances = {}
        with nullcontext() if there is None else there.used():
            if there is not None:
                outputs = {name: there.put(values) for name, values in outputs.items()}
                distances = {
                    name: there.begin_distance(outputs[name], expected, self._bounds[name].steps)
                    for name, expected in reference.items()
                }
                untouched()
            return compare(
                outputs,
                reference,
                self._bounds,
                self._seed,
                lambda name: values_of(name, self._before[name]),
                distances,
            )

    def _begin_untouched(self) -> Callable[[], None]:
        """Begin to compare all guard bands and inputs with what they must be.

        Returns:
            A function that waits for the result; it raises KernelFault if anything has changed.
        """
        guards = [
            pair
            for name, expected in self._guards.items()
            for pair in zip(expected, self._arenas[name].guards(), strict=True)
        ]
        inputs = [(before, self._arenas[name].image()) for name, before in self._inputs.items()]
        differing = self._arrays.begin_differing([*guards, *inputs])

        def check() -> None:
            if differing():
                self._tell_changes()

        return check

    def _tell_changes(self) -> None:
        """Raise a KernelFault that says which guard band or input has changed."""
        for arena in self._arenas.values():
            _check_guards(arena, self._arrays)
        for name, before in self._inputs.items():
            arena = self._arenas[name]
            changed = arena.payload(before != arena.image())
            if changed.any():
                mask = np.any(changed.reshape(*arena.tensor.shape, -1), axis=-1)  # by element
                raise KernelFault(
                    "correctness", f"{places(name, mask)} changed, although {name} is an input."
                )
        raise KernelFault(
            "correctness",
            "Guard bands or inputs changed, and changed back while they were compared.",
        )

    def _copied(self, present: A, earlier: A | None) -> A:
        """Return a copy; it takes the memory of an earlier copy, which is ready for use."""
        if earlier is None:
            return self._arrays.copy(present)
        earlier[...] = present
        return earlier

    def _known_errors(self, reference: Reference) -> ErrorBound | None:
        """Return the errors of the outputs if their bits were found right before; else None."""
        if self._right is None or self._right[0] is not reference:
            return None
        _, right, errors = self._right
        same = all(np.array_equal(right[n], arena.words()) for n, arena in self._outputs.items())
        return errors if same else None

    def _remember(self, reference: Reference, errors: ErrorBound) -> None:
        """Keep right outputs for `_known_errors`, unless they depend on what the run found."""
        if not self._is_repeated or not isinstance(self._arrays, HostArrays):
            return
        sizes = [reference.sizes[name][0] for name in reference]
        if reference.arrays is None and all(map(math.isfinite, sizes)):
            right = {name: arena.words().copy() for name, arena in self._outputs.items()}
            self._right = reference, right, errors

    def poison(self) -> None:
        """Fill the outputs with NaN; integers with -1 or, if unsigned, their largest value.

        Tensors of role ``inout`` get their initial contents again.
        """
        self._is_repeated = True
        with self._arrays.used():
            for name, arena in self._outputs.items():
                arena.fill(self._initial.get(name))
                self._before[name][...] = arena.elements()

    def falsify(self) -> None:
        """Restore inout tensors, and make a few elements of each other output wrong."""
        with self._arrays.used():
            for name, arena in self._outputs.items():
                if name in self._initial:
                    arena.fill(self._initial[name])
                else:
                    dtype, elements = arena.tensor.dtype, arena.elements(writable=True)
                    if name not in self._extremes:  # the outputs are right whenever this is called
                        self._extremes[name] = self._arrays.extremes(elements, dtype)
                    falsify(elements, self._draw, dtype, self._arrays, self._extremes[name])
                self._before[name][...] = arena.elements()


def check_again(kernel: Relaunching, check: ArenaCheck, *, once: bool = False) -> None:
    """Verify a kernel once more, after all its launches so far.

    It is first launched again as before, on poisoned outputs, which reveals elements that it no
    longer writes. Then single launches, directly after others, start from outputs that are correct
    except for a few elements. This reveals a kernel that skips work where its outputs look right,
    and one that skips launches.

    Args:
        kernel: a kernel that was correct at first.
        check: the check of its arenas.
        once: whether the first of these launches is a single one too, because the kernel has not
            been launched many times.

    Raises:
        KernelFault: the kernel is wrong now. The message gives the number of launches and the
            place.
    """
    check.poison()
    if _check_launches(kernel, check, once=once):
        for _ in range(SINGLES):
            check.falsify()
            _check_launches(kernel, check, once=True)


def _check_launches(kernel: Relaunching, check: ArenaCheck, *, once: bool) -> int:
    """Launch and check; return how many launches there have been, 0 if nothing was launched."""
    launches = 0
    for launches in kernel.relaunch(once=once):
        try:
            check()
        except KernelFault as fault:
            raise KernelFault(
                fault.outcome, f"Correct at first, wrong after {launches} launches: {fault}"
            ) from None
    return launches


def falsified(right: Array, draw: np.random.Generator) -> Array:
    """Return ``right`` with a few elements wrong, see `falsify`."""
    false = right.copy()
    falsify(false, draw, right.dtype.name)
    return false


def falsify(
    right: Array,
    draw: np.random.Generator,
    dtype: str,
    arrays: ArrayMath = NUMPY,
    extremes: Extremes | None = None,
) -> None:
    """Make a few elements of ``right`` wrong: as many as the square root of its size.

    Each is off by at least a quarter of the largest value, but stays within the range of the
    correct values if that is wide enough: neither spot checks nor the range give them away.

    Args:
        right: the correct values, contiguous; the range leaves out those that are not finite.
        draw: chooses the positions.
        dtype: the type of the elements.
        arrays: computes where ``right`` is.
        extremes: the extremes of the correct values, if they are known.
    """
    if not right.size:
        return
    low, high, peak = arrays.extremes(right, dtype) if extremes is None else extremes
    places = draw.integers(right.size, size=math.ceil(math.sqrt(right.size)))
    chosen = numbers(arrays.take(right, places), dtype)
    if not math.isfinite(peak):  # such elements count as 0
        low, high = min(low, 0.0), max(high, 0.0)
        chosen = np.where(np.isfinite(chosen), chosen, np.zeros_like(chosen))
    arrays.put_at(right, places, stored(_wrong_values(chosen, low, high), dtype))


def _wrong_values(right: Array, low: float, high: float) -> Array:
    """Return wrong values in place of correct ones, which range from ``low`` to ``high``."""
    if right.dtype.kind == "b":
        return np.logical_not(right)
    values = right.astype(np.float64)
    largest = max(-low, high) or 1.0
    if right.dtype.kind not in "iu":
        wrong = largest * _shift_cyclically(
            values / largest, low / largest, high / largest, 1.0, 0.0
        )
        return wrong.astype(right.dtype)
    with np.errstate(invalid="ignore"):  # 64-bit integers that a double cannot represent
        cast = np.rint(_shift_cyclically(values, low, high, largest, 1.0)).astype(right.dtype)
    return np.where(cast == right, np.bitwise_xor(right, np.ones_like(right)), cast)


def _shift_cyclically(
    values: npt.NDArray[np.float64], low: float, high: float, largest: float, step: float
) -> npt.NDArray[np.float64]:
    """Shift values cyclically by half their range or, if that is narrow, by half of ``largest``."""
    reach = high - low + step
    if reach < largest / 2:
        return values - np.where(values > 0, largest / 2, -largest / 2)
    half = math.ceil(reach / 2) if step else reach / 2
    return low + (values - low + half) % reach


def _check_guards(arena: Arena, arrays: Arrays) -> None:
    tensor = arena.tensor
    before, after = (arrays.get(band).view(np.uint8) for band in arena.guards())
    changed = changed_guard_bytes(tensor.name, before, after, tensor.nbytes)
    end = GUARD_BYTES + tensor.nbytes
    for offsets, where in (
        (changed[changed < end], "before the start"),
        (changed[changed >= end], "past the end"),
    ):
        if offsets.size:
            size = stored_as(tensor.dtype).itemsize
            first, last = ((int(i) - GUARD_BYTES) // size for i in offsets[[0, -1]])
            raise KernelFault(
                "correctness",
                f"The kernel writes {where} of {tensor.name}, which has {tensor.size} elements: "
                f"between elements {first} and {last}.",
            )
