"""Verifies a callable once more after its measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from pytest_gpuenergy.engine.arena_check import falsified
from pytest_gpuenergy.engine.array_memory import overlap, overwrite
from pytest_gpuenergy.engine.host_arrays import arrays_in, contents_of, numbers_of
from pytest_gpuenergy.engine.results import Expected
from pytest_gpuenergy.support.errors import KernelFault, ResultError
from pytest_gpuenergy.workloads.workload import Array


class Replayed(Protocol):
    """A measured callable that can be launched again, such as a `GraphRepeater`."""

    launches: int

    def relaunch(self, turn: int, prepare: Callable[[object], object], *, once: bool) -> object: ...


class CallableCheck:
    """Checks a callable after its measurement; created once its first result has been compared.

    Args:
        expected: what it must return.
        args: its arguments; arrays among them that share no memory with the result must keep their
            current contents.
        draw: chooses the elements to make wrong; by default unpredictable.
    """

    def __init__(
        self,
        expected: Expected,
        args: tuple[object, ...],
        draw: np.random.Generator | None = None,
    ) -> None:
        self._expected = expected
        self._args = dict(arrays_in(args, "args"))
        self._before = {name: contents_of(part) for name, part in self._args.items()}
        self._draw = draw or np.random.default_rng()

    def __call__(self, replayed: Replayed) -> None:
        """Overwrite the result and have the callable, or its graph, compute it again.

        As in `check_again`, it first runs as it was measured, and then once. Parts of the result
        that are not arrays, such as numbers, are not overwritten.

        Raises:
            KernelFault: the result is wrong now, or an argument has changed.
            ResultError: an array of the result cannot be overwritten or compared.
        """
        right = self._made_again(replayed, {}, once=False)
        false = {name: falsified(value, self._draw) for name, value in right.items()}
        self._made_again(replayed, false, once=True)

    def _made_again(
        self, replayed: Replayed, contents: Mapping[str, Array], *, once: bool
    ) -> dict[str, Array]:
        """The result, computed in memory that held ``contents``, or poison if that is empty."""

        def prepare(returned: object) -> None:
            for name, part in arrays_in(returned, "result"):
                content = contents[name] if contents else _poison(_copy(part))
                try:
                    overwrite(part, content)
                except Exception as error:
                    raise ResultError(
                        f"The callable's {name} cannot be overwritten ({error}), so it cannot be "
                        "verified after the measurement: return a writable array."
                    ) from None

        returned = replayed.relaunch(0, prepare, once=once)
        result = dict(arrays_in(returned, "result"))
        try:
            self._expected.check(returned)
            self._check_arguments(result)
        except KernelFault as fault:
            raise KernelFault(
                fault.outcome,
                f"Correct at first, wrong after {replayed.launches} calls: {fault}"
                f"{self._in_place(result)}",
            ) from None
        return {name: _copy(part) for name, part in result.items()}

    def _check_arguments(self, result: Mapping[str, object]) -> None:
        for name, part in self._args.items():
            shared = any(overlap(part, other) for other in result.values())
            if not shared and contents_of(part) != self._before[name]:
                raise KernelFault("correctness", f"The argument {name} has changed.")

    def _in_place(self, result: Mapping[str, object]) -> str:
        """A possible cause, if the result shares memory with an argument."""
        for name, part in result.items():
            for argument, other in self._args.items():
                if overlap(part, other):
                    return (
                        f" The {name} shares memory with {argument}: if that is also an input, "
                        "the first call overwrote it, and the calls that were measured computed "
                        "something else."
                    )
        return ""


def _copy(part: object) -> Array:
    return np.array(numbers_of(part, "An array of the callable's result"))


def _poison(array: Array) -> Array:
    """NaN everywhere; in integers the largest value."""
    dtype: Any = array.dtype
    if dtype.kind == "b":
        return np.ones_like(array)
    return np.full_like(array, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)
