"""Calls of operators seen with their live arguments, and made again. Needs PyTorch, no GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import given, strategies as st

if TYPE_CHECKING:
    from pytest_gpuenergy.replay import CallRecorder

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="needs PyTorch")


class Tiny(torch.nn.Module):
    """Two equal layers and a function that changes its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, value: Any) -> Any:
        for layer in self.layers:
            value = layer(value)
        return value.add_(1.0)


def recorder_of(modules: dict[str, Any], *words: Any, **named: Any) -> CallRecorder:
    from pytest_gpuenergy.replay import CallRecorder

    return CallRecorder(modules, *words, **named)


def record(model: Any, *inputs: Any, keep: tuple[int, ...] = ()) -> CallRecorder:
    modules = {"": model} if isinstance(model, torch.nn.Module) else {}
    recorder = recorder_of(modules, keep)
    with torch.inference_mode(), recorder:
        model(*inputs)
    return recorder


def test_forms_have_strides_and_the_names_of_parameters():
    first, second, last = record(Tiny(), torch.ones(8, 4).t()).forms
    assert first.operator == "aten.linear.default"
    assert first.arguments[0]["strides"] == [1, 4]
    assert (first.parameters, second.parameters) == (("layers.0.weight",), ("layers.1.weight",))
    assert (last.operator, last.arguments[1]) == ("aten.add_.Tensor", 1.0)


def test_a_second_run_makes_the_same_calls():
    model, value = Tiny(), torch.ones(4, 8)
    assert record(model, value).forms == record(model, value).forms


def test_parameters_in_lists_are_named_in_their_order():
    model = Tiny()
    weights = [layer.weight for layer in model.layers]
    recorder = recorder_of({"": model})
    with torch.inference_mode(), recorder:
        torch.cat([weights[1], torch.ones(1, 8), weights[0]])
    assert recorder.forms[-1].parameters == ("layers.1.weight", "layers.0.weight")


@pytest.mark.parametrize("annotates", [True, False])
def test_calls_are_annotated_for_a_profiler_alone(annotates):
    recorder = recorder_of({}, annotates=annotates)
    with torch.profiler.profile() as profiler, torch.inference_mode(), recorder:
        torch.ones(4).exp()
    assert ("call 1" in {event.name for event in profiler.events()}) == annotates
    assert len(recorder.forms) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("layout", ["sparse_coo", "nested"])
def test_tensors_that_strides_do_not_tell_of_are_described_by_their_layout(layout):
    value = torch.eye(3).to_sparse()
    if layout == "nested":
        value = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    recorder = record(lambda one: one * 2, value, keep=(0,))
    (described, _) = recorder.forms[0].arguments
    assert described["layout"] == layout
    assert described["sizes"] == ([[2, 3], [4, 3]] if layout == "nested" else [[3, 3]])
    assert not recorder.kept[0].is_plain


def test_a_kept_call_gives_what_the_model_got_from_it():
    model, value = Tiny(), torch.randn(4, 8)
    live = record(model, value, keep=(0,)).kept[0]
    with torch.inference_mode():
        assert torch.equal(live(), model.layers[0](value))


def test_a_kept_call_has_its_arguments_as_they_were_before_the_call():
    model, value = Tiny(), torch.randn(4, 8)
    live = record(model, value, keep=(2,)).kept[2]
    assert torch.equal(live.arguments[0], model.layers[1](model.layers[0](value)))


def test_a_recorded_call_runs_the_kernels_that_it_runs_otherwise():
    model, value = torch.nn.Linear(8, 6, bias=False), torch.randn(2, 8, 4).transpose(1, 2)

    def kernels(function: Any) -> list[str]:
        with torch.inference_mode(), torch.profiler.profile(acc_events=True) as profiler:
            function()
        names = [event.name for event in profiler.events()]
        return [name for name in names if name in ("aten::mm", "aten::bmm", "aten::clone")]

    plain = kernels(lambda: model(value))
    assert kernels(lambda: record(model, value)) == plain
    live = record(model, value, keep=(0,)).kept[0]
    assert kernels(live) == plain


class Scaled(torch.Tensor):
    """A quantized weight, made of integers and their scale."""

    @staticmethod
    def __new__(cls, integers: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)

    def __init__(self, integers: Any, scale: Any) -> None:
        self.integers, self.scale = integers, scale

    def __tensor_flatten__(self) -> Any:
        return ["integers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, _meta: Any, _size: Any, _stride: Any) -> Any:
        return Scaled(**inner)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.linear.default:  # but detach, as parameters are made
            return args[0]
        value, weight = args
        return torch.nn.functional.linear(value, weight.integers.float()) * weight.scale


def test_calls_with_quantized_weights_are_those_with_what_these_are_made_of():
    model, value = torch.nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    model.weight = torch.nn.Parameter(
        Scaled(torch.ones(8, 8, dtype=torch.int8), torch.tensor(0.5)), requires_grad=False
    )
    recorder = record(model, value, keep=(1,))
    assert [form.operator for form in recorder.forms] == [
        *("aten.to.dtype", "aten.linear.default", "aten.mul.Tensor"),
    ]
    assert [form.parameters for form in recorder.forms] == [
        *(("weight.integers",), (), ("weight.scale",)),
    ]
    with torch.inference_mode():
        assert torch.equal(recorder.kept[1]() * 0.5, model(value))


def test_parameters_are_not_copied():
    model = Tiny()
    live = record(model, torch.ones(4, 8), keep=(1,)).kept[1]
    assert live.arguments[1].data_ptr() == model.layers[1].weight.data_ptr()


def test_memory_is_followed_through_the_calls():
    from pytest_gpuenergy.replay import CallRecorder, ReuseStack

    model, value = Tiny(), torch.ones(4, 8)
    recorder = CallRecorder({"": model}, memory=ReuseStack(10_000))
    with torch.inference_mode(), recorder:
        model(value)
    first, second, added = recorder.reuse
    weight, activation = 8 * 8 * 4, 4 * 8 * 4
    assert [one.size_bytes for one in first] == [activation, weight, activation]
    assert [one.distance_bytes for one in first[:2]] == [10_000, 10_000]  # never used before
    assert second[0] == (activation, activation)  # just written
    assert added == (second[2][:1] * 2,)  # in place: it has no result of its own


class Chained(torch.nn.Module):
    """A layer whose calls take results of others, views of these, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, value: Any) -> Any:
        product = torch.nn.functional.linear(value.exp(), self.weight)
        first, second = product.split(4, dim=-1)
        product = second.t().sin()
        return product.add_(first.t()) + value[:, :4].t()


def record_chain(model: Any, value: Any, numbers: list[int], copied: Any = (0,)) -> Any:
    from pytest_gpuenergy.replay import ChainRecorder

    modules = {"": model} if isinstance(model, torch.nn.Module) else {}
    recorder = ChainRecorder(modules, [numbers], copied)
    with torch.inference_mode(), recorder:
        result = model(value)
    return recorder, result


LAUNCHING = [0, 1, 4, 6, 9]  # exp, linear, sin, add_ and +


def test_a_chain_computes_what_its_calls_have_computed():
    model, value = Chained(), torch.randn(6, 8)
    recorder, result = record_chain(model, value, LAUNCHING)
    assert [recorder.forms[number].operator.split(".")[1] for number in LAUNCHING] == [
        *("exp", "linear", "sin", "add_", "add"),
    ]
    chain = recorder.chains[0]
    # The parameter, and the memory of the value and of a view of it.
    assert [tensor.shape for tensor in chain.tensors] == [(8, 8), (6 * 8 * 4,)]
    assert chain.is_parameter(chain.tensors[0])
    with torch.inference_mode():
        for _ in range(2):  # nothing that it takes has changed
            assert torch.equal(chain()[-1], result)


def test_a_chain_takes_other_tensors():
    model, other = Chained(), torch.randn(6, 8)
    chain = record_chain(model, torch.zeros(6, 8), LAUNCHING)[0].chains[0]
    with torch.inference_mode():
        given = [model.weight, other.view(-1).view(torch.uint8)]
        assert torch.equal(chain.with_tensors(given)()[-1], model(other))


def test_a_chain_returns_only_what_the_model_uses_after_it():
    model, value = Chained(), torch.randn(6, 8)
    recorder, _ = record_chain(model, value, LAUNCHING[:2])
    chain = recorder.chains[0]
    assert chain.kept == [frozenset(), frozenset({0})]  # not what exp has returned
    # The reuse of its tensors: of the weight, the input, and the product.
    assert recorder.reuse_of[0] == [(1, 1), (0, 0), (1, 2)]


def test_a_chain_that_is_not_copied_has_the_parameters_alone():
    model = Chained()
    chain = record_chain(model, torch.randn(6, 8), LAUNCHING, copied=())[0].chains[0]
    assert [tensor.numel() for tensor in chain.tensors] == [64, 0]


def test_a_chain_finds_in_memory_what_its_calls_have_written_there():
    weight = torch.nn.Parameter(torch.randn(8, 8))

    def model(value: Any) -> Any:  # as torch.compile writes it, with memory of its own
        buffer = torch._C._dynamo.guards._empty_strided_cpu((6, 8), (8, 1), torch.float32)
        torch.mm(value, weight, out=buffer)
        flat = torch.as_strided(buffer, (48,), (1,))
        flat.tanh_()
        return torch.mm(buffer, weight)

    recorder, result = record_chain(model, torch.randn(6, 8), [0, 2, 3])
    assert [form.operator for form in recorder.forms[::2]] == ["aten.mm.out", "aten.tanh_.default"]
    chain = recorder.chains[0]
    # The weight counts as memory here, since the model has no modules.
    assert sorted(tensor.numel() for tensor in chain.tensors) == [6 * 8 * 4, 6 * 8 * 4, 8 * 8 * 4]
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(chain()[-1], result)


def test_a_chain_whose_calls_are_not_all_made_is_left_out():
    recorder, _ = record_chain(Chained(), torch.randn(6, 8), [0, 1, 99])
    assert recorder.chains == {}


def test_only_what_a_chain_reads_and_then_overwrites_has_to_be_restored():
    from pytest_gpuenergy.replay import changed_before_read

    empty, room = torch._C._dynamo.guards._empty_strided_cpu, torch.randn(2, 16)

    def model(value: Any) -> Any:
        product = empty((4, 4), (4, 1), torch.float32)
        torch.mm(value, value, out=product)  # what was there before is never read
        value.copy_(product)
        room[1, 8:].copy_(room[1, :8])  # another time changes nothing
        return product.exp()

    before = room[0].clone()
    recorder, _ = record_chain(model, room[0].view(4, 4), [0, 1, 6, 7])
    operators = [recorder.forms[number].operator.split(".")[1] for number in (0, 1, 6, 7)]
    assert operators == ["mm", "copy_", "copy_", "exp"]
    chain = recorder.chains[0]
    (part,) = changed_before_read(chain)
    assert part.size_bytes == 4 * 4 * 4
    assert part.of(chain.tensors).view(torch.float32).equal(before)


class TestATensorThatACallTakesTwice:
    """Attention launches other kernels if queries, keys and values are one tensor."""

    @pytest.fixture
    def recorder(self) -> Any:
        from pytest_gpuenergy.replay import CallRecorder

        recorder = CallRecorder({}, [0, 2])
        value = torch.randn(8)
        with recorder:
            value * value
            value * value.view(8)
        return recorder

    def test_is_one_in_the_kept_call(self, recorder):
        twice, views = recorder.kept[0].tensors, recorder.kept[2].tensors
        assert twice[0] is twice[1]
        assert views[0] is not views[1]

    def test_is_one_in_each_turn_and_counts_once_in_the_cache(self, recorder):
        from pytest_gpuenergy.replay import Reuse, call_turns

        reuse = [Reuse(32, 32 * 6), Reuse(32, 32 * 6), Reuse(32, 32)]
        turns = call_turns([recorder.kept[0]], reuse, "model", 10**6).calls
        assert all(turn.tensors[0] is turn.tensors[1] for turn in turns)
        assert len({id(turn.tensors[0]) for turn in turns}) == 5
        apart = call_turns([recorder.kept[2]], reuse, "model", 10**6).calls
        assert not any(turn.tensors[0] is turn.tensors[1] for turn in apart)

    @pytest.mark.parametrize("first", [0, 1], ids=["taken", "returned"])
    def test_is_one_in_a_chain(self, first):
        def model(value: Any) -> Any:
            made = value.exp()
            return (made * made).neg()

        recorder, result = record_chain(model, torch.randn(8), [0, 1, 2][1 - first :])
        seen = []
        chain = recorder.chains[0]
        product = next(call for call in chain.calls if "mul" in str(call.operator))

        def noted(left: Any, right: Any) -> Any:
            seen.append(left is right)
            return torch.mul(left, right)

        calls = [replace(call, operator=noted) if call is product else call for call in chain.calls]
        assert torch.equal(replace(chain, calls=calls)()[-1], result)
        assert seen == [True]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.data(),
)
def test_a_copy_has_the_same_elements_strides_and_alignment(sizes, data):
    from pytest_gpuenergy.replay import copied_tensor, describe

    strides = data.draw(st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)))
    offset = data.draw(st.integers(0, 9))
    room = torch.arange(200, dtype=torch.float16)
    view = room.as_strided(sizes, strides, offset)
    copied = copied_tensor(view)
    assert torch.equal(copied, view)
    assert describe(copied) == describe(view)
    assert copied.untyped_storage().data_ptr() != room.untyped_storage().data_ptr()


def test_a_copied_weight_leads_a_product_the_same_way():
    from pytest_gpuenergy.replay import CallRecorder, Reuse, call_turns

    layer, value = torch.nn.Linear(4, 4), torch.randn(2, 4, 3).transpose(1, 2)

    def calls_of(function: Any) -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            function()
        return [event.name for event in found.events()]

    recorder = CallRecorder({"": layer}, [0])
    with torch.inference_mode():
        with recorder:
            layer(value)
        reuse = [Reuse(64, 10**6)] * 4
        turns = call_turns([recorder.kept[0]], reuse, "cold", 10**3).calls
        assert turns[0].tensors[1] is not turns[1].tensors[1]
        assert calls_of(turns[0]) == calls_of(turns[1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (2, 2),
        (float("inf"), "inf"),
        (torch.float16, "torch.float16"),
        ([1, (2.5, "x")], [1, [2.5, "x"]]),
    ],
)
def test_every_argument_has_a_form(value, text):
    from pytest_gpuenergy.replay import describe

    assert describe(value) == text


class Jit:
    """As much of Triton's kernels as a recorder sees."""

    __name__ = "double"

    def run(self, value: Any, *, grid: Any, warmup: bool = False) -> None:  # noqa: ARG002
        if not warmup:
            value.mul_(2)


def run_jit(value: Any, monkeypatch: pytest.MonkeyPatch, keep: tuple[int, ...] = ()) -> Any:
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Jit))

    def model(given: Any) -> None:
        Jit().run(given, grid=lambda _: (1,), warmup=True)
        Jit().run(given, grid=lambda _: (1,))

    model.named_parameters = model.named_buffers = list  # type: ignore[attr-defined]
    return record(model, value, keep=keep)


def test_a_triton_kernel_is_a_call(monkeypatch):
    (form,) = run_jit(torch.ones(4), monkeypatch).forms
    assert form.operator == "triton.double"
    assert form.arguments[0]["shape"] == [4]


def test_a_triton_kernel_is_launched_again_with_its_arguments(monkeypatch):
    value = torch.ones(4)
    live = run_jit(value, monkeypatch, keep=(0,)).kept[0]
    (own,) = live.tensors
    assert own.tolist() == [1.0] * 4
    with torch.inference_mode():
        live()
    assert own.tolist() == value.tolist() == [2.0] * 4


def test_keeping_a_triton_kernel_changes_no_number(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Jit))

    def model(given: Any) -> None:
        Jit().run(given, grid=lambda _: (1,))
        given.view(2, 2).sum()

    model.named_parameters = model.named_buffers = list  # type: ignore[attr-defined]
    forms = [record(model, torch.ones(4), keep=keep).forms for keep in ((), (0,), (0, 1, 2))]
    assert forms[0] == forms[1] == forms[2]


def test_triton_is_left_as_it_was(monkeypatch):
    plain = Jit.run
    run_jit(torch.ones(4), monkeypatch)
    assert Jit.run is plain


class Model(torch.nn.Module):
    """Layers, which share a module with what is outside, between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(5, 8)
        self.act = torch.nn.ReLU()
        block = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(Layer(self.act) for _ in "ab")})
        self.body = block
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 5, bias=False)])

    def forward(self, words: Any) -> Any:
        value = self.words(words)
        for layer in self.body["layers"]:
            value = layer(value)
        return self.heads[0](self.act(value)) + 1.0


class Layer(torch.nn.Module):
    """A product and an activation."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.product, self.act = torch.nn.Linear(8, 8, bias=False), act

    def forward(self, value: Any) -> Any:
        return self.act(self.product(value))


@pytest.fixture
def program() -> Any:
    """A program that calls a `Model`."""
    from pytest_gpuenergy.replay import FunctionProgram

    model, words = Model(), torch.arange(3)
    return FunctionProgram(name="tests:compute", function=lambda: model(words))


def operators(function: Any) -> list[str]:
    forms = record(lambda: function()).forms
    return [form.operator.removeprefix("aten.").partition(".")[0] for form in forms]


class WeightsRead(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the addresses of the weights of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[int] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten.linear.default:
            self.addresses.append(args[1].data_ptr())
        return func(*args, **(kwargs or {}))


def test_modules_outside_of_layers_are_the_largest_without_a_layer(program):
    assert list(program.outer_modules) == ["model.words", "model.act", "model.heads.0"]


def test_layers_are_those_of_all_large_lists_without_what_is_inside_of_them():
    from pytest_gpuenergy.replay import FunctionProgram

    def block(experts: int) -> Any:
        inside = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(experts))
        return torch.nn.ModuleDict({"experts": inside})

    encoder = torch.nn.ModuleList(block(9) for _ in range(2))
    decoder = torch.nn.ModuleList(block(8) for _ in range(3))
    heads = torch.nn.ModuleList(torch.nn.Linear(8, 2) for _ in range(4))
    model = torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder, "heads": heads})
    program = FunctionProgram(name="tests:compute", function=lambda: model(encoder))
    assert program.layers == [*encoder, *decoder]


def test_each_module_of_a_step_can_be_repeated_alone(program):
    from pytest_gpuenergy.replay import capture_step

    with torch.inference_mode():
        whole, levels = capture_step(program, program.function, 0)
    assert operators(whole) == [*("embedding", *(2 * ["linear", "relu"])), "relu", "linear", "add"]
    assert {level: operators(function) for level, (function,) in levels.items()} == {
        "module.model.words": ["embedding"],
        "layers": ["linear", "relu"] * 2,
        "module.model.act": ["relu"],  # of its three calls, that outside of layers
        "module.model.heads.0": ["linear"],
        "graph": operators(whole),
    }


def test_a_small_module_is_repeated_with_weights_that_are_not_in_the_cache(program):
    from pytest_gpuenergy.replay import capture_step

    with torch.inference_mode():
        _, levels = capture_step(program, program.function, 0, limit_bytes=1 << 20)
        turns, read = levels["module.model.heads.0"], WeightsRead()
        results = [turn() for turn in turns]
        with read:
            for turn in turns:
                turn()
    assert len(levels["layers"]) == len(levels["module.model.act"]) == 1
    # The head has 160 of 832 bytes, so that with five heads its weights come back after a step.
    assert len(set(read.addresses)) == len(results) == 5


class Cached(torch.nn.Module):
    """A model with a cache that counts its tokens in place, as a static one does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(CachingLayer() for _ in range(2))

    def forward(self, value: Any) -> Any:
        for layer in self.layers:
            value = layer(value)
        return value


class CachingLayer(torch.nn.Module):
    """A layer that appends to a cache with room for one more row, and adds up what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.count = torch.zeros(3, 4), torch.tensor(2)
        self.seen = torch.zeros(4)

    def forward(self, value: Any) -> Any:
        self.rows.index_copy_(0, self.count[None], value[None])
        self.count.add_(1)
        self.seen.add_(value)
        return self.rows.sum(0) + self.seen


def test_each_run_finds_what_the_first_one_found():
    from pytest_gpuenergy.replay import FunctionProgram, capture_step

    model, value = Cached(), torch.ones(4)
    program = FunctionProgram(name="tests:compute", function=lambda: model(value))
    with torch.inference_mode():
        inputs = program.inputs(program.prompt, "cpu")
        program.run(inputs, 1)  # a run beyond the end of the cache raises
        whole, levels = capture_step(program, inputs, 0)
        results = [whole() for _ in range(3)]
        for function in levels["layers"]:
            function()
    assert all(result.equal(results[0]) for result in results)
    assert [layer.count.item() for layer in model.layers] == [2, 2]


def test_a_function_that_changes_nothing_runs_as_it_is(program):
    with torch.inference_mode():
        inputs = program.inputs(program.prompt, "cpu")
    assert operators(inputs) == operators(program.function)


def test_an_empty_kernel_follows_each_call_that_launches(monkeypatch):
    from pytest_gpuenergy.replay import with_empty_kernels

    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", seen.append)
    model, value = Tiny(), torch.ones(8, 4)
    with torch.inference_mode():
        model(value.t())
        expected = model(value.t())
        assert not seen
        assert with_empty_kernels(lambda: model(value.t()))().equal(expected)
    assert seen == [0, 0, 0]  # two products and a sum, and none for the transpose


@pytest.mark.slow
def test_calls_of_a_compiled_program_are_those_that_it_makes_otherwise():
    from torch.utils._python_dispatch import TorchDispatchMode

    if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
        pytest.skip("this PyTorch compiles nothing within a mode")
    compiled = torch.compile(Tiny(), backend="aot_eager")
    with torch.inference_mode():
        compiled(torch.ones(4, 8))
    names = [form.operator for form in record(lambda: compiled(torch.ones(4, 8))).forms]
    assert "aten.mm.default" in names  # compilation takes linear layers apart
    assert "aten.linear.default" not in names


class Autotuner:
    """As much of the kernels that ``torch.compile`` generates as a recorder sees."""

    fn = SimpleNamespace(__name__="triton_poi_fused_double_0")
    streams: ClassVar[list[int]] = []

    def run(self, value: Any, size: int, *, stream: int) -> None:
        assert size == value.numel()
        self.streams.append(stream)
        value.mul_(2)


def test_a_kernel_that_was_compiled_is_launched_again_on_the_current_stream(monkeypatch):
    name = "torch._inductor.runtime.triton_heuristics"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(CachingAutotuner=Autotuner))
    current = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(Autotuner, "streams", [])
    plain, value = Autotuner.run, torch.ones(4)
    recorder = record(lambda given: Autotuner().run(given, 4, stream=99), value, keep=(0,))
    (form,) = recorder.forms
    assert form.operator == "triton.triton_poi_fused_double_0"
    assert [form.arguments[0]["shape"], *form.arguments[1:]] == [[4], 4]  # and no stream
    current.cuda_stream = 8
    with torch.inference_mode():
        recorder.kept[0]()
    assert Autotuner.streams == [7, 8]
    assert recorder.kept[0].tensors[0].tolist() == value.tolist() == [2.0] * 4
    assert Autotuner.run is plain
