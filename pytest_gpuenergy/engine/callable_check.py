"""Whether a callable that was right at first still is after it has been measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from pytest_gpuenergy.engine.arena_check import falsified
from pytest_gpuenergy.engine.array_memory import overlap, overwrite
from pytest_gpuenergy.engine.results import Expected, host_array, is_array, numbers_of, parts_of
from pytest_gpuenergy.support.errors import KernelFault, ResultError
from pytest_gpuenergy.workloads.workload import Array


class Replayed(Protocol):
    """A callable that has been measured, as a `GraphRepeater` does it."""

    launches: int

    def relaunch(self, turn: int, prepare: Callable[[object], object], *, once: bool) -> object: ...


class CallableCheck:
    """Checks a callable after its measurement. Made when its result has been compared once.

    Args:
        expected: what it must return.
        args: its arguments; the arrays among them that share no memory with the result must stay
            as they are now.
        draw: chooses what is made wrong; by default no callable can know it.
    """

    def __init__(
        self,
        expected: Expected,
        args: tuple[object, ...],
        draw: np.random.Generator | None = None,
    ) -> None:
        self._expected = expected
        self._args = dict(_arrays(args, "args"))
        self._before = {name: _bytes(part) for name, part in self._args.items()}
        self._draw = draw or np.random.default_rng()

    def __call__(self, replayed: Replayed) -> None:
        """Overwrite the result, and have the callable or its graph make it again.

        First as it was measured, and then once, as `check_again` does with a kernel. What cannot be
        overwritten, such as a number, is only made again.

        Raises:
            KernelFault: the result is wrong by now, or an argument has changed.
            ResultError: an array of the result cannot be overwritten, or cannot be compared.
        """
        right = self._made_again(replayed, {}, once=False)
        false = {name: falsified(value, self._draw) for name, value in right.items()}
        self._made_again(replayed, false, once=True)

    def _made_again(
        self, replayed: Replayed, contents: Mapping[str, Array], *, once: bool
    ) -> dict[str, Array]:
        """The result, made on memory that held ``contents`` before, or else poison."""

        def prepare(returned: object) -> None:
            for name, part in _arrays(returned, "result"):
                content = contents[name] if contents else _poison(_copy(part))
                try:
                    overwrite(part, content)
                except Exception as error:
                    raise ResultError(
                        f"The callable's {name} cannot be overwritten ({error}), and so it cannot "
                        "be verified after it has been measured: return an array that can be."
                    ) from None

        returned = replayed.relaunch(0, prepare, once=once)
        result = dict(_arrays(returned, "result"))
        try:
            self._expected.check(returned)
            self._check_arguments(result)
        except KernelFault as fault:
            raise KernelFault(
                fault.outcome,
                f"Right at first and wrong after {replayed.launches} calls: {fault}"
                f"{self._in_place(result)}",
            ) from None
        return {name: _copy(part) for name, part in result.items()}

    def _check_arguments(self, result: Mapping[str, object]) -> None:
        for name, part in self._args.items():
            shared = any(overlap(part, other) for other in result.values())
            if not shared and _bytes(part) != self._before[name]:
                raise KernelFault("correctness", f"{name} has changed, and it is an argument.")

    def _in_place(self, result: Mapping[str, object]) -> str:
        """What may be the reason, for a result in the memory of an argument."""
        for name, part in result.items():
            for argument, other in self._args.items():
                if overlap(part, other):
                    return (
                        f" The {name} is in the memory of {argument}: if that is an input too, it "
                        "was gone after the first call, and what was measured is another "
                        "computation."
                    )
        return ""


def _arrays(value: object, name: str) -> Iterator[tuple[str, Any]]:
    return ((place, part) for place, part in parts_of(value, name) if is_array(part))


def _copy(part: object) -> Array:
    return np.array(numbers_of(part, "An array of the callable's result"))


def _bytes(part: object) -> bytes:
    """What an array holds; nothing if it cannot be read."""
    try:
        return host_array(part, "An argument").tobytes()
    except ResultError:
        return b""


def _poison(array: Array) -> Array:
    """NaN everywhere, the largest in integers."""
    dtype: Any = array.dtype
    if dtype.kind == "b":
        return np.ones_like(array)
    return np.full_like(array, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)
