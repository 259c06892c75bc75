"""Callables that cheat on energy are refused or flagged on a card, and honest ones are not."""

from __future__ import annotations

import ast
import ctypes
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
CORPUS = Path(__file__).parents[2] / "bench/corpus"


def used_names(table: str) -> list[str]:
    """Names of the callables of a table in ``cheats.py``, which cannot be imported without CuPy."""
    tree = ast.parse((CORPUS / "cheats.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table:
            assert isinstance(node.value, ast.DictComp)
            return ast.unparse(node.value.generators[0].iter).strip("()").split(", ")
    raise AssertionError(table)


def validity_of(pytester: pytest.Pytester, table: str, *names: str) -> dict[str, list[str] | None]:
    """The flags of the figures of each callable; None for one that has been refused."""
    pytester.makepyfile(
        f"""
        import sys

        import pytest

        sys.path.insert(0, {str(CORPUS)!r})

        @pytest.mark.parametrize("name", {names!r})
        def test_callable(name, energy_benchmark):
            import cheats
            import cupy

            x = cupy.random.standard_normal(cheats.ELEMENTS, dtype=cupy.float32)
            call = cheats.{table}[name]()
            energy_benchmark(call, x, cupy.zeros_like(x), reference=cheats.expected)
        """
    )
    result = pytester.runpytest_subprocess("--gpuenergy-json", "r.json", "--powercap", "current")
    outcomes = result.parseoutcomes()
    measured = json.loads((pytester.path / "r.json").read_text())["measurements"]
    flags = {
        one["parameters"]["name"]: list(one.get("validity", ()))
        for one in measured
        if one["outcome"] == "correct"
    }
    assert outcomes.get("passed", 0) == len(flags)
    assert outcomes.get("failed", 0) == len(names) - len(flags)
    return {name: flags.get(name) for name in names}


@pytest.mark.parametrize("name", used_names("CHEATS"))
def test_a_cheat_is_refused_or_flagged(pytester, name):
    assert validity_of(pytester, "CHEATS", name) != {name: []}


def test_honest_callables_are_measured(pytester):
    for name, flags in validity_of(pytester, "HONEST", *used_names("HONEST")).items():
        assert flags is not None, name
        assert "host_gaps" not in flags, name


def test_nothing_is_set_aside_in_the_cache_when_a_cold_measurement_begins():
    import cupy

    from pytest_gpuenergy.devices import reset_persisting_l2

    limit = ctypes.c_size_t(1)
    cupy.cuda.Device().synchronize()  # creates the context
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuCtxSetLimit(6, ctypes.c_size_t(8 << 20))
    reset_persisting_l2(disable=True)
    assert cuda.cuCtxGetLimit(ctypes.byref(limit), 6) == 0
    assert limit.value == 0
