"""Searches several kernels one after the other, each with what the searches before it learned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Event

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.engine import ClaimedGpus, git_revision_of, run_info
from pytest_gpuenergy.record import Metric, new_run_id
from pytest_gpuenergy.search.llm.consultant import FILE_NAME, Consultant
from pytest_gpuenergy.search.llm.endpoint import Endpoint
from pytest_gpuenergy.search.llm.proposals import LlmMoves
from pytest_gpuenergy.search.moves import MOVES
from pytest_gpuenergy.search.priors.bottlenecks import CardModel
from pytest_gpuenergy.search.priors.prior import BottleneckPrior
from pytest_gpuenergy.search.priors.tactics import (
    SearchTactics,
    initial_tactics,
    summarize_observations,
    write_tactics,
)
from pytest_gpuenergy.search.running.evaluators import Evaluator, OwnProcess, TeamEvaluator
from pytest_gpuenergy.search.running.explorer import GraphExplorer
from pytest_gpuenergy.search.running.kernel_folder import (
    BASELINE,
    KernelFolder,
    SearchIdentity,
    SearchState,
)
from pytest_gpuenergy.search.running.kernel_search import KernelSearch, KernelSearchSettings
from pytest_gpuenergy.search.running.ncu_profiler import Profiler
from pytest_gpuenergy.search.running.state_evaluation import SearchBench
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.search.spec.state_kernel import device_refusal
from pytest_gpuenergy.support import InputError, encode, is_there


def optimize_kernels(
    specs: Sequence[KernelSpec],
    gpus: ClaimedGpus,
    settings: KernelSearchSettings,
    endpoint: Endpoint,
    *,
    named_alone: bool,
    tell: Callable[[str], None],
    stop: Event,
) -> Iterator[tuple[KernelSpec, SearchState]]:
    """Search each kernel, and yield its spec with the state at the end of its search.

    Args:
        specs: the specs of the kernels.
        gpus: the claimed GPUs, of one model and under the same limits.
        settings: the settings of the searches.
        endpoint: the language model, which is not asked if it is disabled.
        named_alone: whether the only spec was named itself, so that it is not skipped if the GPU
            cannot run it.
        tell: called with lines of progress.
        stop: set by the caller to end the searches early.

    Raises:
        InputError: the GPU can run none of the kernels, or, after all others, some could not be
            searched.
        DeviceError: a device does not respond.
        OutputError: a file cannot be written.
        KeyboardInterrupt: ``stop`` was set.
    """
    device = gpus.devices[0]
    specs = [spec.on(emulated=device.emulated) for spec in specs]
    runnable, failed = list[KernelSpec](), list[str]()
    for spec in specs:
        if (refusal := None if named_alone else device_refusal(spec, device)) is None:
            runnable.append(spec)
        else:
            tell(f"{spec.name}: skipped: {refusal}")
    if not runnable:
        raise InputError(
            f"{device.name} can run none of the {len(specs)} kernels, for the reasons above: name "
            "another GPU with --gpus."
        )
    for spec in runnable:
        if stop.is_set():
            raise KeyboardInterrupt
        try:
            yield spec, _optimize(spec, gpus, settings, endpoint, tell, stop)
        except InputError as error:
            if len(specs) == 1:
                raise
            tell(f"{spec.name}: not searched: {error}")
            failed.append(spec.name)
    if failed:
        raise InputError(
            f"{len(failed)} of {len(specs)} kernels could not be searched, for the reasons above: "
            f"{', '.join(failed)}."
        )


def _optimize(
    spec: KernelSpec,
    gpus: ClaimedGpus,
    settings: KernelSearchSettings,
    endpoint: Endpoint,
    tell: Callable[[str], None],
    stop: Event,
) -> SearchState:
    device, outdir = gpus.devices[0], settings.outdir
    names = ("budget", "gpus", "powercap", "smclock")
    options = {name: str(getattr(settings, name)) for name in names}
    info = run_info(device, new_run_id(), options, git_revision=git_revision_of(Path.cwd()))
    enforced = enforced_setpoint(device)
    identity = SearchIdentity(
        spec=hashlib.sha256(encode(spec)).hexdigest(),
        gpu=device.name,
        emulated=device.emulated,
        power_limit_w=enforced.power_limit_w,
        sm_clock_mhz=enforced.sm_clock_mhz,
        objective=settings.objective,
        seed=settings.seed,
        strategy=asdict(settings.parameters),
    )
    part = SearchTactics(
        kernel=spec.name,
        gpu=identity.gpu,
        emulated=identity.emulated,
        objective=identity.objective,
    )
    evaluator = create_evaluator(gpus, spec, settings.objective, settings.seed)
    with KernelFolder(outdir, spec, identity, resume=settings.resume) as folder:
        # A search that began without a model continues without one, and the other way round.
        begins = folder.earlier is None or not folder.earlier.nodes
        llm = None
        if is_there(folder.path / FILE_NAME) or (begins and endpoint.enabled):
            llm = LlmMoves(Consultant(endpoint, folder.path, tell), device.name, folder.event)
        tactics = initial_tactics(outdir, folder.path, part, tell)
        parameters = settings.parameters
        prior = BottleneckPrior(spec, CardModel.of(device), identity.objective, parameters, tactics)
        # With several GPUs one would be profiled while it measures.
        profiles = not device.emulated and len(gpus.devices) == 1
        every = int(parameters.ncu_every) if profiles else 0
        profiler = Profiler(every, device.uuid, device.name, spec.entry, tell)
        explorer = GraphExplorer(
            spec,
            MOVES if llm is None else (*MOVES, llm),
            seed=settings.seed,
            parameters=parameters,
            prior=prior,
            profile=lambda state: profiler.visit(
                folder.place(BASELINE if state == spec.baseline.id else state)
            ),
        )
        found = KernelSearch(evaluator, folder, explorer, settings, info, tell, stop, llm).run()
        write_tactics(
            outdir, part, summarize_observations(spec.language, explorer.observations()), tell
        )
    return found


def create_evaluator(
    gpus: ClaimedGpus, spec: KernelSpec, objective: Metric, seed: int
) -> Evaluator:
    """Return the evaluator of a spec's states on the claimed GPUs."""
    benches = tuple(SearchBench(spec, device, objective, seed) for device in gpus.devices)
    if len(benches) == 1:
        gpus.devices[0].prepare(())
        return OwnProcess(benches[0])
    for device in gpus.devices:
        device.renew()  # so that no process of this one keeps a context on the GPU
    return TeamEvaluator(gpus.team, benches)
