"""What arenas must hold after a run, and after all the launches of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.devices.device import GUARD_BYTES, Arena, Relaunching
from pytest_gpuenergy.engine.comparison import Reference, compare, places
from pytest_gpuenergy.support.errors import KernelFault
from pytest_gpuenergy.workloads.workload import Array, ErrorBound


class ArenaCheck:
    """Checks arenas after a run: right outputs, and inputs and guard bands as they were.

    Args:
        arenas: by tensor name; what the inputs hold now is what they must hold.
        reference: gives the right outputs, by tensor name.
        bounds: how far each output may be off.
        seed: of the inputs, for messages.
        draw: chooses what `falsify` makes wrong; by default no kernel can know it.
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
        self._reference = reference
        self._bounds = bounds
        self._seed = seed
        self._draw = draw or np.random.default_rng()
        self._outputs = {n: a for n, a in arenas.items() if a.tensor.role == "output"}
        self._inputs = {
            name: np.array(arena.image())
            for name, arena in arenas.items()
            if arena.tensor.role == "input"
        }

    def __call__(self) -> ErrorBound:
        """The errors of the outputs, see `compare`.

        Raises:
            InputError: the reference is not finite.
            KernelFault: what is wrong with the arenas, and where.
        """
        for arena in self._arenas.values():
            _check_guards(arena)
        for name, before in self._inputs.items():
            arena = self._arenas[name]
            image = arena.image()
            if (before.view(np.uint64) != image.view(np.uint64)).any():
                changed = arena.payload(before != image)
                mask = np.any(changed.reshape(*arena.tensor.shape, -1), axis=-1)
                raise KernelFault(
                    "correctness", f"{places(name, mask)} changed, and it is an input."
                )
        outputs = {name: arena.value() for name, arena in self._outputs.items()}
        return compare(outputs, self._reference(), self._bounds, self._seed)

    def poison(self) -> None:
        """Fill the outputs with NaN, the largest or -1 in integers."""
        for arena in self._outputs.values():
            arena.fill()

    def falsify(self) -> None:
        """Make some elements of each output wrong, see `falsified`."""
        for arena in self._outputs.values():
            arena.fill(falsified(arena.value(), self._draw))


def check_again(kernel: Relaunching, check: ArenaCheck) -> None:
    """Check a kernel that was right at first after all its launches so far.

    It is launched again as before, on poison, which finds whatever it no longer writes. Then a
    single launch, directly after others, meets outputs that are right but for a few elements, which
    finds one that looks at its outputs, and leaves alone what seems right.

    Args:
        kernel: which may have been launched before.
        check: of its arenas.

    Raises:
        KernelFault: it is wrong by now, after how many launches, and where.
    """
    check.poison()
    if _check_launches(kernel, check, once=False):
        check.falsify()
        _check_launches(kernel, check, once=True)


def _check_launches(kernel: Relaunching, check: ArenaCheck, *, once: bool) -> int:
    """How many launches there have been; 0 when nothing was launched."""
    launches = 0
    for launches in kernel.relaunch(once=once):
        try:
            check()
        except KernelFault as fault:
            raise KernelFault(
                fault.outcome, f"Right at first and wrong after {launches} launches: {fault}"
            ) from None
    return launches


def falsified(right: Array, draw: np.random.Generator) -> Array:
    """``right`` with the root of its number of elements made wrong, at random places.

    They are off by a fourth of the largest value or more, within the range of the right ones where
    that is wide enough: neither a look at some of the elements nor their range gives them away.

    Args:
        right: finite values.
        draw: chooses the places.
    """
    false = right.copy()
    if not right.size:
        return false
    places = draw.integers(right.size, size=math.ceil(math.sqrt(right.size)))
    false.reshape(-1)[places] = _far_off(right).reshape(-1)[places]
    return false


def _far_off(right: Array) -> Array:
    if right.dtype.kind == "b":
        return np.logical_not(right)
    values = right.astype(np.float64)
    largest = float(np.abs(values).max()) or 1.0
    if right.dtype.kind not in "iu":
        wrong = largest * _moved(values / largest, 1.0, 0.0)
        return wrong.astype(right.dtype)
    with np.errstate(invalid="ignore"):  # 64-bit integers that a double does not hold
        cast = np.rint(_moved(values, largest, 1.0)).astype(right.dtype)
    return np.where(cast == right, np.bitwise_xor(right, np.ones_like(right)), cast)


def _moved(values: npt.NDArray[np.float64], largest: float, step: float) -> npt.NDArray[np.float64]:
    """Half-way through their range, in a circle; or by half of the largest if that is narrow."""
    low, reach = float(values.min()), float(np.ptp(values)) + step
    if reach < largest / 2:
        return values - np.where(values > 0, largest / 2, -largest / 2)
    half = math.ceil(reach / 2) if step else reach / 2
    return low + (values - low + half) % reach


def _check_guards(arena: Arena) -> None:
    image, tensor = arena.image(), arena.tensor
    size = np.dtype(tensor.dtype).itemsize
    end = GUARD_BYTES + tensor.nbytes
    for start, stop, where in ((0, GUARD_BYTES, "before the start"), (end, None, "past the end")):
        written = np.flatnonzero(image[start:stop] != 0xFF) + start
        if written.size:
            first, last = ((int(i) - GUARD_BYTES) // size for i in written[[0, -1]])
            raise KernelFault(
                "correctness",
                f"The kernel writes {where} of {tensor.name}, which has {tensor.size} elements: "
                f"between elements {first} and {last}.",
            )
