"""Profiles a program with PyTorch's profiler, and extracts the kernels and calls of the trace.

Where several ranks share a model, each is profiled in a process of its own.
"""

from __future__ import annotations

import dataclasses
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.devices import Device, stop_tracing_at_exit
from pytest_gpuenergy.engine import Station
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.replay.extract.calls import (
    CallForm,
    unevenly_called,
    unique_calls,
    with_calls_of_graph,
    write_calls,
)
from pytest_gpuenergy.replay.extract.kernel_extraction import KernelExtraction, extract_kernels
from pytest_gpuenergy.replay.extract.timeline import write_results
from pytest_gpuenergy.replay.extract.trace import (
    host_operators,
    launches,
    read_trace,
    write_trace,
)
from pytest_gpuenergy.replay.power import (
    CLOCK,
    POWER_CSV,
    ClockError,
    ClockRead,
    PowerSampler,
    write_power,
)
from pytest_gpuenergy.replay.profile.language_models import load_program
from pytest_gpuenergy.replay.profile.programs import (
    Prompt,
    TorchProgram,
    check_packages,
    is_export,
    is_function,
    told_of_capture,
)
from pytest_gpuenergy.replay.profile_folder import (
    GRAPH_TRACE,
    HOST,
    TRACE,
    ProfileRecord,
    folder_of_rank,
    write_profile,
)
from pytest_gpuenergy.replay.ranks import (
    ALONE,
    Ranks,
    device_word,
    is_rank,
    joined,
    rank_of_process,
    run_ranks,
)
from pytest_gpuenergy.replay.schedule import Step
from pytest_gpuenergy.report import check_writable
from pytest_gpuenergy.support import (
    DeviceError,
    InputError,
    garbage_ignored,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.replay.profile.exporting import ExportCheck


_FIRST_STEPS = 4
"""The number of steps of a program that show whether it makes other calls while a CUDA graph is
captured: the prompts, and a few tokens."""
_READS = 32
"""The number of reads of the host's clock at the beginning of the trace, and at its end."""


@dataclass(frozen=True)
class ProfileOptions:
    """The request to ``gpuenergy profile``; None leaves a choice to the program.

    Attributes:
        model: The name of the model, function or exported file.
        folder: The folder to write to.
        device: The value of ``--gpu-device``, or `HOST`.
        ranks: The number of GPUs that share the model.
        runs: How often the program runs under the profiler.
        dtype: The type of the weights.
        attention: The implementation of the attention.
        seed: The seed of the tokens and of random weights.
        prompt_tokens: The length of each prompt.
        new_tokens: The number of tokens to generate.
        batch: The number of prompts at once.
        export: The file to export the program to.
    """

    model: str
    folder: Path
    device: str = "auto"
    ranks: int = 1
    runs: int = 1
    dtype: str | None = None
    attention: str | None = None
    seed: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    batch: int | None = None
    export: Path | None = None

    def check(self) -> None:
        """Refuse what would fail after the model has run, or have no effect.

        Raises:
            InputError: A function or an exported file is asked for what it cannot do.
            UnavailableError: A package that the program needs is not installed.
            ReportError: The folder or the file to export to cannot be written.
        """
        is_exported = is_export(self.model)
        if self.ranks > 1 and (is_function(self.model) or is_exported):
            what = "an exported file" if is_exported else "a function"
            raise InputError(
                f"--tp divides language models, and {self.model} is {what}: leave it out."
            )
        if self.ranks > 1 and self.export is not None:
            raise InputError(
                "--export writes whole models, which --tp divides: leave out one of them."
            )
        if is_exported and self.export is not None:
            raise InputError(f"{self.model} is an exported file already: copy it.")
        if is_exported and (self.dtype is not None or self.attention is not None):
            raise InputError(
                f"{self.model} has the type and the attention that it was exported with: "
                "leave out --dtype and --attention."
            )
        if self.export is not None:
            check_writable(self.export, folder=False)
        with garbage_ignored():  # which would be looked for while PyTorch is imported
            check_packages(self.model)
        check_writable(self.folder, folder=True)

    def prompt(self, default: Prompt) -> Prompt:
        """Return the prompt that is asked for; a function has none, but a seed.

        Args:
            default: The prompt that the program has by itself.
        """
        seed = self.seed or 0
        if not default.tokens:
            return dataclasses.replace(default, seed=seed)
        return Prompt(
            self.prompt_tokens or default.tokens,
            self.new_tokens or default.new_tokens,
            self.batch or default.batch,
            default.seed if self.seed is None else seed,
        )


class ProfileRun(NamedTuple):
    """The output of a process of ``gpuenergy profile``.

    Attributes:
        record: What was profiled.
        extraction: What is in the trace; that of all ranks for the first one.
        exported: How the model was exported; None if it was not.
    """

    record: ProfileRecord
    extraction: KernelExtraction
    exported: ExportCheck | None


class ProfiledProgram(NamedTuple):
    """The contents of a program's profile.

    Attributes:
        record: What was profiled.
        forms: The form of each call of an operator, by its number.
        reads: The reads of the host's clock, each within an annotation `CLOCK` of the trace.
        graph_forms: The form of each call that the program makes while a CUDA graph is captured;
            None if these are the calls that it makes otherwise.
    """

    record: ProfileRecord
    forms: list[CallForm]
    reads: list[ClockRead]
    graph_forms: list[CallForm] | None


def profile_model(
    options: ProfileOptions, command_line: Sequence[str], tell: Callable[[str], None]
) -> tuple[int, ProfileRun | None]:
    """Profile a program, extract its kernels and calls, and write the files of both.

    Args:
        options: What to profile, where and how.
        command_line: The words of this command, which each rank runs again.
        tell: Called with a sentence for the user.

    Returns:
        The exit code of the command, and what it has written; None if another process shows it.

    Raises:
        GpuEnergyError: The program, an option or the GPU cannot be used.
        OSError: A file cannot be written.
    """
    options.check()
    if options.ranks > 1 and not is_rank():
        return run_ranks(command_line, options.ranks, options.folder), None
    with ExitStack() as stack:
        device, gpu, ranks = options.device, None, ALONE
        if device != HOST:
            device, gpu = claim_for_torch(
                device, stack, rank_of_process(options.ranks), options.ranks
            )
        if options.ranks > 1:
            ranks = stack.enter_context(joined(options.ranks, device))
        run = _profile_loaded(options, _load(options, device, ranks), device, gpu, ranks, tell)
    return 0, run if run.record.rank == 0 else None


def profile_sizes(
    options: ProfileOptions, steps: Iterable[Step], tell: Callable[[str], None]
) -> Iterator[ProfileRun]:
    """Profile a language model, loaded once, with each size of the steps of a schedule.

    A prefill of a batch of prompts also makes the cache for a decode step of this size. Both are
    one profile, in a folder of its own such as ``b8-t1024``.

    Args:
        options: What to profile, where and how, without sizes of a prompt.
        steps: The sizes of the steps.
        tell: Called with a sentence for the user.

    Raises:
        GpuEnergyError: The program, an option or the GPU cannot be used.
        OSError: A file cannot be written.
    """
    sized = {
        "--prompt-tokens": options.prompt_tokens,
        "--new-tokens": options.new_tokens,
        "--batch": options.batch,
        "--export": options.export,
        "--tp": options.ranks if options.ranks > 1 else None,
    }
    if given := [name for name, value in sized.items() if value is not None]:
        raise InputError(
            f"--schedule profiles whole models on one GPU with the sizes of its steps: leave out "
            f"{' and '.join(given)}."
        )
    if is_function(options.model) or is_export(options.model):
        what = "an exported file" if is_export(options.model) else "a function"
        raise InputError(
            f"--schedule is for language models whose prompts may have any size, and "
            f"{options.model} is {what}: name the model."
        )
    options.check()
    new_tokens: dict[tuple[int, int], int] = {}
    for step in steps:
        size = step.batch, step.tokens
        needed = 1 if step.phase == "prefill" else 2
        new_tokens[size] = max(needed, new_tokens.get(size, 0))
    with ExitStack() as stack:
        device, gpu = options.device, None
        if device != HOST:
            device, gpu = claim_for_torch(device, stack)
        program = _load(options, device, ALONE)
        for (batch, tokens), new in sorted(new_tokens.items()):
            sizes = dataclasses.replace(
                options,
                folder=options.folder / f"b{batch}-t{tokens}",
                batch=batch,
                prompt_tokens=tokens,
                new_tokens=new,
            )
            yield _profile_loaded(sizes, program, device, gpu, ALONE, tell)


def _load(options: ProfileOptions, device: str, ranks: Ranks) -> TorchProgram:
    with garbage_ignored():
        program = load_program(
            options.model,
            dtype=options.dtype or "float16",
            attention=options.attention or "auto",
            seed=options.seed or 0,
            device=device,
            ranks=ranks,
        )
    # What has been imported stays: nobody needs to look through it for garbage again and again.
    gc.freeze()
    return program


def _profile_loaded(
    options: ProfileOptions,
    program: TorchProgram,
    device: str,
    gpu: Device | None,
    ranks: Ranks,
    tell: Callable[[str], None],
) -> ProfileRun:
    """Profile a loaded program, and write its files."""
    folder = options.folder if ranks.count == 1 else folder_of_rank(options.folder, ranks.rank)
    prompt = options.prompt(program.prompt)
    sampler = None if gpu is None else PowerSampler(gpu)
    with sampler or nullcontext():
        profiled = profile_program(program, prompt, folder, device, options.runs, sampler, ranks)
    record = profiled.record
    with garbage_ignored():
        found = extract_kernels(folder, host=device == HOST)
    has_times = any(launch.duration_us for launch in found.launches)
    if not all(ranks.gathered(has_times or not found.launches)):
        raise DeviceError(
            f"The profiler recorded no times of what {program.name} launched on {device}: profile "
            "again, while no other process profiles this GPU."
        )
    if sampler is not None:
        try:
            power, curve = sampler.placed(profiled.reads, found.clock)
        except ClockError as error:
            tell(f"The profile has no power samples. {error}")
        else:
            record, found = replace(record, power=power), dataclasses.replace(found, power=curve)
            write_power(curve, folder)
            write_profile(record, folder)
    with garbage_ignored():
        write_results(found, folder, record.model, tell)
        calls = unique_calls(found.launches, profiled.forms)
    if profiled.graph_forms is not None:
        events = read_trace(folder / GRAPH_TRACE)
        of_graph = host_operators(events) if device == HOST else launches(events)
        calls = with_calls_of_graph(calls, unique_calls(of_graph, profiled.graph_forms))
        tell(
            f"{record.model} makes other calls while a CUDA graph is captured, such as "
            f"{_only_in_graph(profiled)}: accounts of graphs count those."
        )
    write_calls(calls, folder)
    if uneven := unevenly_called(calls, record.runs):
        tell(
            f"{uneven} of {len(calls)} unique calls were not made equally often in each run: "
            "accounts count those of the first."
        )
    ranks.gathered(None)  # waits until all have written
    if ranks.count > 1 and ranks.rank == 0:
        write_profile(record, options.folder)
        found = extract_kernels(options.folder, host=device == HOST)
        write_results(found, options.folder, record.model, tell)
    exported = None
    if options.export is not None:
        from pytest_gpuenergy.replay.profile.exporting import export_program  # imports PyTorch

        exported = export_program(program, record, profiled.forms, device, options.export)
        record = replace(record, export=exported.file)
        write_profile(record, folder)
    return ProfileRun(record, found, exported)


def _only_in_graph(profiled: ProfiledProgram) -> str:
    """Return the operators that are called more often while a CUDA graph is captured, in words."""
    plain = Counter(form.operator for form in profiled.forms)
    plain = Counter({name: count // profiled.record.runs for name, count in plain.items()})
    more = Counter(form.operator for form in profiled.graph_forms or ()) - plain
    return ", ".join(name for name, _ in more.most_common(3)) or "calls with other arguments"


def claim_for_torch(
    spec: str, stack: ExitStack, rank: int = 0, count: int = 1
) -> tuple[str, Device]:
    """Claim a rank's GPU until ``stack`` is closed; return PyTorch's name of it, and the GPU."""
    word, index = device_word(spec, rank, count)
    gpu = stack.enter_context(open_device(word, index=index))
    ordinal = getattr(gpu, "ordinal", None)
    if ordinal is None:
        raise InputError(
            "PyTorch's kernels need a real GPU: the emulated one runs CUDA text only. Where there "
            "is none, gpuenergy profile --gpu-device cpu profiles operators on the host."
        )
    stack.enter_context(Station(gpu))
    return f"cuda:{ordinal}", gpu


def profile_program(
    program: TorchProgram,
    prompt: Prompt,
    folder: Path,
    device: str,
    runs: int = 1,
    sampler: PowerSampler | None = None,
    ranks: Ranks = ALONE,
) -> ProfiledProgram:
    """Run a program once to warm up, and then under the profiler; write the trace and the record.

    If the program makes other calls while a CUDA graph is captured, it runs once more so, under
    the profiler; this trace is written, too.
    """
    import torch
    from torch.profiler import record_function

    from pytest_gpuenergy.replay.profile.capture import CallRecorder

    folder.mkdir(parents=True, exist_ok=True)
    (folder / POWER_CSV).unlink(missing_ok=True)  # belongs to an earlier trace
    steps = max(1, prompt.new_tokens)
    with _annotated_run(program, prompt, device):
        inputs = program.inputs(prompt, device)
        program.run(inputs, steps)  # warms up: libraries choose kernels and allocate memory
        recorder = CallRecorder(program.modules)
        settle(device)
        ranks.gathered(None)  # all ranks begin together
        with profiler_on(device) as profiler:
            reads = _read_clocks()
            with recorder:
                for number in range(runs):
                    with record_function(f"run {number}"):
                        program.run(inputs, steps)
            settle(device)
            reads += _read_clocks()
            if sampler is not None:
                # Before the profiler ends, which takes longer than the card keeps samples.
                sampler.finish(reads[-1].host_ns)
    # Before another profiler begins: PyTorch 2.11 writes times of 0 for these launches after that.
    write_trace(profiler, folder / TRACE)
    with _annotated_run(program, prompt, device):
        of_first_run = recorder.forms[: len(recorder.forms) // runs]
        graph_forms = _profile_graph(program, inputs, steps, folder, device, of_first_run)
    try:
        transformers = version("transformers")
    except PackageNotFoundError:
        transformers = "none"
    weights = [weight for module in program.modules.values() for weight in module.parameters()]
    record = ProfileRecord(
        model=program.name,
        weights=program.weights,
        attention=program.attention,
        dtype=program.dtype,
        parameters=sum(weight.numel() for weight in weights),
        layers=len(program.layers),
        modules=tuple(program.outer_modules),
        prompt_tokens=prompt.tokens,
        new_tokens=prompt.new_tokens,
        batch=prompt.batch,
        seed=prompt.seed,
        device=torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        torch=torch.__version__,
        transformers=transformers,
        rank=ranks.rank,
        ranks=ranks.count,
        runs=runs,
        tf32=_allows_tf32(),
        graph_differs=graph_forms is not None,
    )
    write_profile(record, folder)
    return ProfiledProgram(record, recorder.forms, reads, graph_forms)


@contextmanager
def _annotated_run(program: TorchProgram, prompt: Prompt, device: str) -> Iterator[None]:
    """Let a program run, with its modules annotated.

    Raises:
        DeviceError: The program raised anything but `InputError`.
    """
    import torch

    try:
        with torch.inference_mode(), modules_annotated(program):
            yield
    except InputError:
        raise
    except Exception as error:  # a function may raise anything
        raise DeviceError(failure_words(program, prompt, device, error)) from None


def _profile_graph(
    program: TorchProgram,
    inputs: Any,
    steps: int,
    folder: Path,
    device: str,
    plain: Sequence[CallForm],
) -> list[CallForm] | None:
    """Profile the calls that a program makes while a CUDA graph is captured.

    Whether they differ from those that it makes otherwise shows in its first steps.

    Args:
        program: The program.
        inputs: The input of its first step.
        steps: The number of steps.
        folder: The folder to write the trace to.
        device: PyTorch's name of the device.
        plain: The forms of the calls that it makes otherwise.

    Returns:
        The forms of the calls; None, without a trace, if they are those that it makes otherwise, if
        its runs differ anyway, or if it fails, as it then does when its graph is captured.
    """
    from torch.profiler import record_function

    from pytest_gpuenergy.replay.profile.capture import CallRecorder

    first_steps = min(steps, _FIRST_STEPS)

    def is_alike(*, is_capturing: bool) -> bool:
        recorder = CallRecorder(program.modules, annotates=False)
        with told_of_capture(is_capturing), recorder:
            program.run(inputs, first_steps)
        counted = len(plain) if first_steps == steps else len(recorder.forms)
        return recorder.forms == plain[:counted]

    (folder / GRAPH_TRACE).unlink(missing_ok=True)
    try:
        if is_alike(is_capturing=True) or not is_alike(is_capturing=False):
            return None
    except Exception:  # a function may raise anything
        return None
    recorder = CallRecorder(program.modules)
    settle(device)
    with profiler_on(device) as profiler:
        with told_of_capture(True), recorder, record_function("run 0"):
            program.run(inputs, steps)
        settle(device)
    write_trace(profiler, folder / GRAPH_TRACE)
    return recorder.forms


def _allows_tf32() -> bool:
    """Return whether products of float32 matrices may use TF32; PyTorch 2.9 renamed the setting."""
    import torch

    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is None:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    return bool(precision == "tf32")


def _read_clocks() -> list[ClockRead]:
    from torch.profiler import record_function

    found = []
    for _ in range(_READS):
        with record_function(CLOCK):
            found.append(ClockRead(time.time_ns(), time.monotonic_ns()))
    return found


def failure_words(program: TorchProgram, prompt: Prompt, device: str, error: Exception) -> str:
    """Return a sentence on what a program has raised, and what to do."""
    import torch

    reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    size = f"a batch of {prompt.batch} and {prompt.tokens} tokens" if prompt.new_tokens else ""
    what, advice = (f" with {size}", "a smaller batch or shorter prompts") if size else ("", "")
    if isinstance(error, torch.OutOfMemoryError) or "t allocate memory" in reason:
        return (
            f"{program.name} does not fit into the memory of {device}{what}: give "
            f"{advice or 'it less to do'}."
        )
    return (
        f"{program.name} failed on {device}{what} ({reason}): "
        f"{'give another model or size' if size else 'mend it'}."
    )


@contextmanager
def profiler_on(device: str) -> Iterator[Any]:
    """Record with PyTorch's profiler on the host and ``device``; yield the profiler."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
        stop_tracing_at_exit()
    with warnings.catch_warnings():
        # There is one cycle only. To keep the events of several, PyTorch would make Python objects
        # of all at the end, which took a third of the time of a profile.
        warnings.filterwarnings("ignore", ".*Profiler clears events", UserWarning)
        with profile(activities=activities, record_shapes=True) as profiler:
            yield profiler


def settle(device: str) -> None:
    """Wait until ``device`` has finished its work."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@contextmanager
def modules_annotated(program: TorchProgram) -> Iterator[None]:
    """Let modules of a program run within annotations such as ``layer 3`` and ``module 1``.

    The latter number `TorchProgram.outer_modules`.
    """
    from torch.profiler import record_function

    from pytest_gpuenergy.replay.profile.capture import calls_watched

    named = [(f"layer {number}", layer) for number, layer in enumerate(program.layers)]
    outer = program.outer_modules.values()
    named += [(f"module {number}", module) for number, module in enumerate(outer)]
    with ExitStack() as stack:
        for name, module in named:
            entered: list[Any] = []

            def enter(*_: Any, name: str = name, entered: list[Any] = entered) -> None:
                entered.append(record_function(name))
                entered[-1].__enter__()

            def leave(_: Any, entered: list[Any] = entered) -> None:
                entered.pop().__exit__(None, None, None)

            stack.enter_context(calls_watched(module, enter, leave))
        yield
