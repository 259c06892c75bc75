"""Steps that copy from the host, captured in a CUDA graph. Needs PyTorch, no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_card import REFUSED, capturing, card_stands_in

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="needs PyTorch")


@pytest.fixture
def elements() -> Any:
    """Make the device ``card``, and return what gives the elements of its tensors."""
    return card_stands_in()


@pytest.fixture
def value(elements: Any) -> Any:  # noqa: ARG001 -- it makes the device
    """Ones on the card."""
    return torch.ones(4).to("card")


def captured(function: Callable[[], object]) -> tuple[Any, Any]:
    """A step of a function: as the host launches it, and by level as a graph has it."""
    from pytest_gpuenergy.replay import FunctionProgram, capture_step

    with torch.inference_mode():
        program = FunctionProgram(name="tests:compute", function=function)
        whole, levels = capture_step(program, function, 0)
    return whole, {level: functions[0] for level, functions in levels.items()}


def check_capture(elements: Any, function: Callable[[], Any]) -> None:
    """Check that a step computes the same while a graph is captured, where it is refused itself."""
    whole, levels = captured(function)
    with torch.inference_mode():
        expected = elements(whole())
        with capturing():
            for _ in range(2):
                assert elements(levels["graph"]()).equal(expected)
            with pytest.raises(RuntimeError, match=REFUSED):
                whole()


MADE = {
    "number": lambda: torch.tensor(2.0, device="card"),
    "type": lambda: torch.tensor(2.0, device="card", dtype=torch.float16),
    "list": lambda: torch.tensor([1, 2, 3, 4], device="card"),
    "array": lambda: torch.as_tensor(np.arange(4), device="card"),
    "asarray": lambda: torch.asarray([1.0, 2.0, 3.0, 4.0], device="card"),
    "to": lambda: torch.arange(4).to("card", torch.float32),
    "copy": lambda: torch.empty(4, device="card").copy_(torch.arange(4)),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_tensors_that_are_made_from_what_the_host_has_can_be_captured(elements, value, made):
    check_capture(elements, lambda: value + made())


def test_tensors_like_others_can_be_captured(elements, value):
    check_capture(elements, lambda: value.new_tensor([1, 2]))
    check_capture(elements, lambda: torch.arange(4).type_as(value))


@pytest.mark.parametrize("indices", [[0, 2], torch.tensor([3, 0])], ids=["list", "tensor"])
def test_elements_that_the_host_chooses_can_be_captured(elements, value, indices):
    check_capture(elements, lambda: value[indices])


def test_what_a_step_changes_in_place_is_made_anew_each_time(elements, value):
    check_capture(elements, lambda: torch.tensor([1.0, 2.0, 3.0, 4.0], device="card").add_(value))


@pytest.mark.parametrize(
    "others",
    [
        torch.tensor([0.0, 2.0]),
        torch.tensor([-0.0, 1.0]),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
        torch.tensor([[0.0, 1.0]]),
    ],
    ids=["value", "sign", "type", "shape"],
)
@pytest.mark.usefixtures("elements")
def test_what_the_host_had_otherwise_before_is_refused(others):
    copied = [torch.tensor([0.0, 1.0]), others]
    _, levels = captured(lambda: copied.pop(0).to("card"))
    with torch.inference_mode(), capturing(), pytest.raises(RuntimeError, match=REFUSED):
        levels["graph"]()


def test_a_number_that_changes_each_time_is_refused(value):
    count = iter(range(9))
    _, levels = captured(lambda: value + torch.tensor(next(count), device="card"))
    with torch.inference_mode():
        levels["graph"]()  # as it is launched before the capture
        with capturing(), pytest.raises(RuntimeError, match=REFUSED):
            levels["graph"]()


class Shift(torch.nn.Module):
    """A layer that adds a number of the host's."""

    def forward(self, value: Any) -> Any:
        return value + torch.tensor(2.0, device="card")


def test_layers_that_copy_from_the_host_can_be_captured(value):
    layers = torch.nn.ModuleList([Shift(), Shift()])

    def compute() -> Any:
        return layers[1](layers[0](value))

    _, levels = captured(compute)
    with torch.inference_mode(), capturing():
        levels["layers"]()


def test_a_step_that_copies_nothing_from_the_host_is_captured_as_it_is(value):
    whole, levels = captured(lambda: value + value)
    assert levels["graph"] is whole
