"""Changes of a model's calls that may save energy, and what they save. Needs no GPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from replayed_calls import measurement

from pytest_gpuenergy.replay import CallChange, UniqueCall, change_lines, change_savings


def test_a_change_saves_as_often_as_the_step_makes_what_it_changes():
    change = CallChange("multiply in float8", "c1", "c1-float8", {0: 4, 1: 1}, 0.03)
    measured = {"c1": measurement(2.0, 10.0, 0.5), "c1-float8": measurement(1.5, 6.0, 0.5)}
    first, second = change_savings([change], measured, "current")
    assert (first.step, first.calls, first.energy_mj) == (0, 4, 40.0)
    assert (first.saved_mj, first.saved_ms) == (16.0, 2.0)
    assert first.saved_mj_half_width == pytest.approx(4 * 1.0)
    assert (second.step, second.saved_mj) == (1, 4.0)


@pytest.mark.parametrize("lacking", ["before", "after"])
def test_what_was_not_measured_saves_nothing(lacking):
    change = CallChange("fuse", "before", "after", {0: 1})
    measured = {"before": measurement(1.0, 10.0), "after": measurement(1.0, 6.0)}
    measured[lacking] = replace(measured[lacking], time_ms=None, energy_mj=None, raw_energy_mj=None)
    assert change_savings([change], measured, "current") == []
    del measured[lacking]
    assert change_savings([change], measured, "current") == []


def test_only_savings_beyond_their_interval_are_shown_and_the_largest_first():
    measured = {"c1": measurement(1.0, 10.0, 0.5)} | {
        f"c1-{name}": measurement(1.0, energy_mj, 0.5)
        for name, energy_mj in [("a", 9.5), ("b", 12.0), ("c", 8.0), ("d", 4.0)]
    }
    changes = [CallChange(f"change {name}", "c1", f"c1-{name}", {0: 1}) for name in "abcd"]
    head, _, *rows = change_lines(change_savings(changes, measured, "current"), "prefill")
    assert head == "prefill: 2 changes that save most, of 4 that were measured"
    assert [row.split()[-1] for row in rows] == ["d", "c"]
    assert all("nothing" in row for row in rows)


@pytest.mark.torch
class TestWithPyTorch:
    """Changed calls, made on the host."""

    torch: Any

    @pytest.fixture(autouse=True)
    def imported(self) -> None:
        """Skip these tests, and no others, where there is no PyTorch."""
        self.torch = pytest.importorskip("torch", reason="needs PyTorch")

    def linear(self, rows: int, dtype: Any = None) -> Any:
        from pytest_gpuenergy.replay import LiveCall

        generator = self.torch.Generator().manual_seed(0)
        tensors = [
            self.torch.randn(1, rows, 32, generator=generator).to(dtype or self.torch.float32),
            self.torch.randn(16, 32, generator=generator).to(dtype or self.torch.float32),
        ]
        return LiveCall(self.torch.ops.aten.linear.default, tuple(tensors), {}, frozenset())

    def call(self, **changes: object) -> UniqueCall:
        plain = UniqueCall(
            *("c1", "aten.linear.default", [], "prefill", (), 1, 10.0, {0: 1}, {}, (0,))
        )
        return replace(plain, **changes)

    def changes(self, live: Any, read: dict[int, set[int]], **changes: object) -> Any:
        from pytest_gpuenergy.replay import call_changes

        with self.torch.inference_mode():
            found = list(call_changes(self.call(**changes), [live], SimpleNamespace(read=read)))
        return {change.name: change for change in found}

    @pytest.mark.parametrize("rows", [[7], [3, 7], [1, 2, 3], [0, 1, 5]])
    def test_only_the_rows_that_are_read_are_computed(self, rows):
        live = self.linear(rows=8)
        change = self.changes(live, {0: set(rows)})["rows"]
        assert change.words == f"compute only the rows that are read, {len(rows)} of 8"
        (function,) = change.calls
        assert self.torch.allclose(function(), live()[0, rows], atol=1e-5)

    @pytest.mark.parametrize("read", [{}, {0: {0, 1, 2, 3, 4}}, {1: {0}}])
    def test_rows_that_are_read_or_unknown_are_all_computed(self, read):
        assert "rows" not in self.changes(self.linear(rows=8), read)

    def test_a_product_in_float8_tells_how_much_it_differs(self, monkeypatch):
        def scaled(rows: Any, columns: Any, *, scale_a: Any, scale_b: Any, **options: Any) -> Any:
            product = (rows.float() * scale_a) @ (columns.float() * scale_b)
            return product.to(options["out_dtype"])

        monkeypatch.setattr(self.torch, "_scaled_mm", scaled)
        change = self.changes(self.linear(rows=8, dtype=self.torch.float16), {})["float8"]
        assert 0.005 < change.error < 0.06  # float8_e4m3fn has three bits after the first
        with self.torch.inference_mode():
            assert change.calls[0]().dtype == self.torch.float16

    def test_a_gpu_without_float8_gets_no_such_change(self, monkeypatch):
        def refuse(*_: Any, **_options: Any) -> Any:
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices")

        monkeypatch.setattr(self.torch, "_scaled_mm", refuse)
        assert self.changes(self.linear(rows=8, dtype=self.torch.float16), {}) == {}

    def test_tf32_is_allowed_in_the_changed_product_alone(self):
        flags = self.torch.backends.cuda.matmul
        change = self.changes(self.linear(rows=8), {})["tf32"]
        assert change.error == 0.0  # the host has no such mode
        assert not flags.allow_tf32

    def test_masks_that_stay_as_they_are_change_nothing(self):
        from pytest_gpuenergy.replay.play.changes import relative_change

        torch = self.torch
        mask = torch.tensor([3.0, 4.0, -torch.inf, torch.nan])
        other = torch.tensor([3.0, 4.5, -torch.inf, torch.nan])
        assert relative_change([mask], [mask.clone()]) == 0.0
        assert relative_change([mask], [other]) == pytest.approx(0.1)
        assert relative_change([torch.zeros(2)], [torch.zeros(2)]) == 0.0

    @pytest.mark.parametrize(("before", "now"), [(1.0, "inf"), (1.0, "nan"), (0.0, 1.0)])
    def test_results_that_cannot_be_compared_have_no_error(self, before, now):
        from pytest_gpuenergy.replay.play.changes import relative_change

        results = [[self.torch.tensor(float(one))] for one in (before, now)]
        with pytest.raises(RuntimeError, match="no longer finite"):
            relative_change(*results)

    def test_a_product_that_overflows_is_not_changed(self, monkeypatch):
        live = self.linear(rows=8, dtype=self.torch.float16)

        def overflow(rows: Any, columns: Any, **_options: Any) -> Any:
            return (rows.float() @ columns.float()) * self.torch.inf

        monkeypatch.setattr(self.torch, "_scaled_mm", overflow)
        assert self.changes(live, {}) == {}

    def test_other_operators_are_left_as_they_are(self):
        live = replace_operator(self.linear(rows=8), self.torch.ops.aten.mm.default)
        assert self.changes(live, {0: (0, 64)}) == {}

    def test_reads_of_a_large_result_are_noted_until_its_memory_is_used_again(self):
        from pytest_gpuenergy.replay import ResultReads

        rows, columns = 4, 1 << 18
        reads = ResultReads({})
        with self.torch.inference_mode(), reads:
            large = self.torch.ones(rows, columns)  # call 0 of a MiB and more
            last = large[-1:]
            last.sum()
            large[1, :8].exp()
        assert reads.read == {0: {1, 3}}

    def test_of_a_batch_only_the_rows_that_are_read_count(self):
        from pytest_gpuenergy.replay import ResultReads

        reads = ResultReads({})
        with self.torch.inference_mode(), reads:
            logits = self.torch.ones(3, 4, 1 << 17)
            logits[:, -1:].argmax(dim=-1)
            logits.transpose(0, 1)[1].exp()
        assert reads.read == {0: {3, 7, 11, 1, 5, 9}}

    def test_modules_that_take_tensors_alone_can_be_fused(self):
        from pytest_gpuenergy.replay import fusible_modules

        torch = self.torch

        class Norm(torch.nn.Module):
            def forward(self, value: Any) -> Any:
                return value * value.pow(2).mean().rsqrt()

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.product = Norm(), torch.nn.Linear(4, 4)
                self.cached = Cached()

            def forward(self, value: Any) -> Any:
                return self.cached(self.product(self.norm(value)), cache=[])

        class Cached(torch.nn.Module):
            def forward(self, value: Any, cache: list[Any]) -> Any:
                cache.append(value.exp())
                return value + cache[0]

        layers = [Layer(), Layer()]

        def run() -> None:
            value = torch.ones(2, 4)
            for layer in layers:
                value = layer(value)

        with torch.inference_mode():
            (group,) = fusible_modules(layers, run, most=3)
            assert (group.name, group.count, group.operators) == ("Norm", 2, 4)
            plain = [function() for function in group.plain()]
        assert len(plain) == 2  # a turn of each module

    @pytest.mark.slow
    def test_fused_modules_compute_the_same(self, monkeypatch):
        from pytest_gpuenergy.replay import ModuleCalls

        torch = self.torch
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
        value, module = torch.ones(2, 4), torch.nn.LayerNorm(4)
        group = ModuleCalls("LayerNorm", 1, 1, [(module, (value,), {})])
        with torch.inference_mode():
            (function,), error = group.compiled()
            assert error == pytest.approx(0.0, abs=1e-6)
            assert function().equal(module(value))


def replace_operator(live: Any, operator: Any) -> Any:
    return type(live)(operator, live.arguments, live.keywords, live.parameters)
