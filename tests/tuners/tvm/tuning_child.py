"""What tests do with TVM in a child process, so that it stays out of pytest's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.tuners import (
    GemmForm,
    Lowerer,
    Space,
    apply_gemm_form,
    apply_trace,
    as_gemm,
    cuda_target,
    function_buffers,
    import_tvm,
    space_generator,
    to_kernel,
    tvm_operator,
    without_tensor_intrinsics,
)
from pytest_gpuenergy.workloads import Conv2d, Gemm, Workload


class Child:
    """Made in the child by `pytest_gpuenergy.support.worker.Worker`."""

    def lower_two_stages(self) -> Kernel:
        """The kernel of B = 2 A, C = B + 1, where B is in memory between two launches."""
        return _lowered(_scheduled(shared=False))

    def lower_shared(self) -> Kernel:
        """The kernel of C = 2 A + 1 through dynamic shared memory."""
        return _lowered(_scheduled(shared=True))

    def lower_beside_a_cuda_runtime(self, workload: Conv2d, record: str) -> Kernel:
        """The kernel of a record in a process where TVM could compile, but must not."""
        import tvm_ffi

        @tvm_ffi.register_global_func("ffi.Module.create.cuda", override=True)  # type: ignore[untyped-decorator]
        def compile_it(*_: object) -> None:
            raise ValueError("compiled")

        return Lowerer().lower(workload, record)

    def lower_unchecked(self, workload: Conv2d, trace: Sequence[Any]) -> Kernel:
        """The kernel of a trace that nobody has looked at."""
        module = apply_trace(tvm_operator(workload).module(workload), trace)
        return to_kernel(module, cuda_target("sm_90"), [t.name for t in workload.tensors])

    def lower_program(self, name: str, function: str | None) -> Kernel:
        """The kernel of B = f(A), where A has that name, and B = 2 A without a function."""
        import tvm
        from tvm import te, tirx

        a = te.placeholder((64,), "float32", name)

        def element(i: Any) -> Any:
            return (
                a[i] * 2.0 if function is None else tirx.call_pure_extern("float32", function, a[i])
            )

        b = te.compute((64,), element, name="B")
        schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b])}))
        schedule.bind(schedule.get_loops(schedule.get_sblock("B"))[0], "threadIdx.x")
        return _lowered(schedule.mod)

    def parameters(self, workload: Workload) -> Sequence[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of what a workload's computation takes."""
        function = tvm_operator(workload).module(workload)["main"]
        return [(p.name, p.shape, p.dtype) for p in function_buffers(function)]

    def lower_form(self, workload: Workload, form: GemmForm, seed: int = 1) -> Kernel:
        """The kernel of a product, or of a convolution as one, with tiles drawn at random."""
        tvm = import_tvm()
        from tvm.s_tir import meta_schedule as ms

        target = cuda_target("sm_90")
        schedule = tvm.s_tir.Schedule(tvm_operator(workload).module(workload), seed=seed)
        if isinstance(workload, Gemm):
            apply_gemm_form(schedule, workload, form)
        else:
            assert isinstance(workload, Conv2d)
            as_gemm(schedule, workload.shape, form)
        with without_tensor_intrinsics():
            context = ms.TuneContext(
                schedule.mod, target=target, space_generator="cuda", num_threads=1
            )
        for rule in ms.postproc.Postproc.create("cuda"):
            rule._initialize_with_tune_context(context)
            if not rule.apply(schedule):
                raise ValueError(type(rule).__name__)
        return to_kernel(schedule.mod, target, [tensor.name for tensor in workload.tensors])

    def traces(
        self, workload: Workload, space: Space, number: int = 0, processes: int = 1
    ) -> Sequence[str]:
        """The schedules of a space, before their tiles are drawn."""
        from tvm.s_tir import meta_schedule as ms

        with without_tensor_intrinsics():
            context = ms.TuneContext(
                tvm_operator(workload).module(workload),
                target=cuda_target("sm_90"),
                space_generator=space_generator(workload, space, number, processes),
                num_threads=1,
            )
        return [str(schedule.trace) for schedule in context.generate_design_space()]


def _lowered(module: Any) -> Kernel:
    return to_kernel(module, cuda_target("sm_90"), ["input", "result"])


def _scheduled(*, shared: bool) -> Any:
    import tvm
    from tvm import te

    a = te.placeholder((1024,), "float32", "A")
    b = te.compute((1024,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((1024,), lambda i: b[i] + 1.0, name="C")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    blocks = {name: schedule.get_sblock(name) for name in ("B", "C")}
    outer = None
    for name in ("C",) if shared else ("B", "C"):
        outer, inner = schedule.split(schedule.get_loops(blocks[name])[0], [None, 128])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    if shared:
        schedule.set_scope(blocks["B"], 0, "shared.dyn")
        schedule.compute_at(blocks["B"], outer)
        inner = schedule.get_loops(blocks["B"])[-1]
        schedule.bind(inner, "threadIdx.x")
    return schedule.mod
