"""Calls a callable again on other inputs, to find one that returns what it has kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pytest_gpuenergy.engine.array_memory import overlap, overwrite
from pytest_gpuenergy.engine.comparison import compare
from pytest_gpuenergy.engine.host_arrays import arrays_in, contents_of, copied, host_array
from pytest_gpuenergy.engine.results import Expected, Specification
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault, ResultError
from pytest_gpuenergy.workloads import Array

Arguments = tuple[object, ...]
_NARROW = 2.0**-5


def first_call(
    function: Callable[..., object], args: Arguments, specification: Specification
) -> tuple[Expected, Correctness]:
    """Call a callable and compare what it returns, for its arguments and for other inputs.

    Raises:
        KernelFault: it returns something else than it must.
        ResultError: as of `expect` and `Expected.check`.
    """
    expected = specification.of(args)
    inputs = _Inputs(args)
    returned = function(*args)
    correctness = expected.check(returned)
    if specification.is_function:
        inputs.check_others(function, returned, expected, specification)
    return expected, correctness


class _Inputs:
    """The arrays among a callable's arguments; created before its first call."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._before = {name: contents_of(part) for name, part in arrays_in(args, "args")}
        self._draw = np.random.default_rng()

    def check_others(
        self,
        function: Callable[..., object],
        returned: object,
        usual: Expected,
        specification: Specification,
    ) -> None:
        """Compare what the callable returns for other inputs, after its first call.

        Floating-point arrays get other contents of the same signs and about the same size: first in
        the same memory, whose address the callable may remember, and then in other memory. At last
        they have their own contents again. Nothing is done where the first call has changed an
        argument, or where callable or reference are not made for such inputs.

        Args:
            function: the callable.
            returned: by its first call; arguments that share its memory are outputs.
            usual: what it must return for its own arguments.
            specification: what it must return for others.

        Raises:
            KernelFault: it returns something else.
        """
        inputs = self._inputs(returned)
        if inputs is None:
            return
        try:
            if not self._was_right(function, self._args, inputs, usual, specification):
                return
        finally:
            _fill(self._args, inputs)
        if (others := _elsewhere(self._args, inputs)) is not None:
            self._was_right(function, others, inputs, usual, specification)

    def _inputs(self, returned: object) -> dict[str, Array] | None:
        """Floating-point contents that may be changed, by place; None if nothing should be."""
        outputs = [part for _, part in arrays_in(returned, "result")]
        found: dict[str, Array] = {}
        for name, part in arrays_in(self._args, "args"):
            if any(overlap(part, output) for output in outputs):
                continue
            if contents_of(part) != self._before[name]:
                return None
            try:
                content = np.array(host_array(part, "An argument"))
            except ResultError:
                return None
            if content.dtype.kind == "f" and content.size:
                found[name] = content
        return found or None

    def _was_right(
        self,
        function: Callable[..., object],
        args: Arguments,
        inputs: Mapping[str, Array],
        usual: Expected,
        specification: Specification,
    ) -> bool:
        """Whether the callable was called with other contents in ``args``, and was right."""
        for narrow in (0.0, _NARROW):
            if not _fill(args, {name: self._other(one, narrow) for name, one in inputs.items()}):
                return False
            try:
                expected = specification.of(args)
                if not _differs(expected, usual):
                    continue
                returned = function(*args)
            except Exception:  # neither of the two has promised to take these inputs
                return False
            try:
                expected.check(returned)
            except KernelFault as fault:
                raise KernelFault(
                    fault.outcome,
                    f"Correct at first, wrong when its arguments have other contents: {fault}",
                ) from None
            return True
        return False

    def _other(self, content: Array, narrow: float) -> Array:
        """Values of other size: all scaled alike, and if ``narrow``, also a little by themselves.

        What is sorted, symmetric or positive definite stays so as long as that is enough.
        """
        factor = self._draw.uniform(0.5, 0.9)
        spread = 1 + narrow * self._draw.uniform(-1.0, 1.0, content.shape)
        return np.asarray((content.astype(np.float64) * factor * spread).astype(content.dtype))


def _differs(one: Expected, other: Expected) -> bool:
    """Whether a result that is right for one would be wrong for the other."""
    try:
        compare(dict(one.arrays), other.arrays, other.bounds, seed=0)
    except Exception:  # of other shapes, for example
        return True
    return False


def _fill(args: Arguments, contents: Mapping[str, Array]) -> bool:
    """Write contents to the arrays among ``args``; whether all can be written to."""
    try:
        for name, part in arrays_in(args, "args"):
            if name in contents:
                overwrite(part, contents[name])
    except Exception:  # whatever their library raises
        return False
    return True


def _elsewhere(args: Arguments, inputs: Mapping[str, Array]) -> Arguments | None:
    """The arguments in other memory; None where they cannot be copied."""
    try:
        others = tuple(map(copied, args))
    except Exception:  # whatever their library raises, for example when there is no room
        return None
    parts, copies = dict(arrays_in(args, "args")), dict(arrays_in(others, "args"))
    return None if any(parts[name] is copies[name] for name in inputs) else others
