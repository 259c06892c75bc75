"""How long a layer takes after writes is told by its launches alone."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import after_writes
import pytest


class Card:
    """As much of PyTorch as it takes: a layer takes 20 µs, and 1 µs per MiB written before."""

    def __init__(self) -> None:
        self.now_us, self.dirty_mib, self.events = 0.0, 0, []

    def launch(self, name: str, elapsed_us: float) -> None:
        span = SimpleNamespace(start=self.now_us, elapsed_us=lambda: elapsed_us)
        self.events.append(SimpleNamespace(name=name, device_type="cuda", time_range=span))
        self.now_us += elapsed_us

    def linear(self, _token: object, _weights: object) -> None:
        self.launch("gemv", 20.0 + self.dirty_mib)
        self.dirty_mib = 0

    def zeros(self, count: int, **_kinds: object) -> Any:
        def fill(_value: float) -> None:
            self.launch("fill", 3.0)
            self.dirty_mib = count >> 18

        return SimpleNamespace(fill_=fill, sum=lambda: self.launch("sum", 3.0))

    @contextmanager
    def profile(self, **_activities: object) -> Any:
        self.events = []
        yield SimpleNamespace(events=lambda: self.events)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    torch = ModuleType("torch")
    functional = ModuleType("torch.nn.functional")
    functional.linear = card.linear  # type: ignore[attr-defined]
    parts: dict[str, Any] = {
        "float16": "float16",
        "float32": "float32",
        "randn": lambda *_sizes, **_kinds: object(),
        "zeros": card.zeros,
        "inference_mode": lambda: card.profile(),
        "autograd": SimpleNamespace(DeviceType=SimpleNamespace(CUDA="cuda")),
        "profiler": SimpleNamespace(
            profile=card.profile, ProfilerActivity=SimpleNamespace(CUDA="cuda")
        ),
        "cuda": SimpleNamespace(
            is_available=lambda: True,
            synchronize=lambda: None,
            get_device_name=lambda: "Some GPU",
        ),
    }
    for name, part in parts.items():
        setattr(torch, name, part)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", ModuleType("torch.nn"))
    monkeypatch.setitem(sys.modules, "torch.nn.functional", functional)
    return card


def test_a_layer_is_timed_after_each_amount(card, tmp_path, capsys):
    path = tmp_path / "after.json"
    assert after_writes.main(["--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    times = {(row["after"], row["mib"]): row["time_us"] for row in rows}
    assert times["nothing", 0] == times["reading", 16] == 20.0
    assert times["writing", 16] == 36.0
    assert all(row["launches"] == 40 for row in rows)
    assert "after writing 16 MiB: 36.00 ±0.00 us" in capsys.readouterr().out
    assert card.dirty_mib == 0
