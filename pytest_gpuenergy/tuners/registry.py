"""The registry of tuners: TVM for every kind of workload that it knows, our templates for some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.support import FormError, InputError, UnavailableError
from pytest_gpuenergy.tuners.template_spaces import TEMPLATE_FORM, template_space, templates_of
from pytest_gpuenergy.tuners.tvm.database import METASCHEDULE
from pytest_gpuenergy.tuners.tvm.search_logs import refuse_ansor
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    TVM,
    RecipeForm,
    RecordFile,
    TunerName,
    find_records,
    read_records,
    recorded_kernel,
    usual_tuner,
)
from pytest_gpuenergy.workloads import Workload

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import Kernel
    from pytest_gpuenergy.tuners.tvm.kernel_store import KernelStore
    from pytest_gpuenergy.tuners.tvm.search_settings import SearchSettings
    from pytest_gpuenergy.tuning import SearchSpace

FORMS: Mapping[TunerName, RecipeForm] = {TVM: METASCHEDULE, TEMPLATE: TEMPLATE_FORM}
"""The form of the recipes that each tuner writes."""


def load_records(path: Path) -> RecordFile:
    """Read a record file of any tuner; nothing in it is executed.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    try:
        return read_records(path, {form.tuner: form for form in FORMS.values()})
    except InputError:
        refuse_ansor(path)  # an old log may have a name like that of a record file
        raise


def search_ms(file: RecordFile, rank: int) -> float:
    """Return the time of a launch in a rank's trial, in ms; a trial is shorter than a measurement.

    Raises:
        InputError: there is no such rank.
    """
    [form] = [form for form in FORMS.values() if form.tuner == file.tuner]
    return form.time_ms(file.record(rank).recipe)


def records_of(
    folder: Path, workload: Workload, gpu: str | None = None, tuner: TunerName | None = None
) -> RecordFile:
    """Return the records in ``folder`` that serve ``workload``, under its name.

    Args:
        folder: a folder of record files, or of one folder of them per GPU model.
        workload: what is to be computed.
        gpu: the model of the GPU that will compute it; records for this model are preferred.
        tuner: the tuner that wrote the records. None stands for the usual tuner of this workload
            or, if it has no records, another one.

    Raises:
        UnavailableError: there are none.
        InputError: the file cannot be used or is for another shape.
    """
    usual = usual_tuner(workload) if tuner is None else tuner
    try:
        path = find_records(folder, workload, gpu, FORMS[usual].variant)
    except UnavailableError:
        for other in FORMS.keys() - {usual} if tuner is None else ():
            with suppress(UnavailableError):
                path = find_records(folder, workload, gpu, FORMS[other].variant)
                break
        else:
            if usual == TEMPLATE:
                _check_that_one_can_be_made(folder, workload)
            raise
    file = load_records(path)
    if file.workload.signature != workload.signature:
        there, asked = file.workload.name, workload.name
        if there == asked:
            there, asked = file.workload.signature, workload.signature
        raise InputError(
            f"The record file {path} contains kernels of {there} instead of {asked}: restore the "
            "original file."
        )
    return replace(file, workload=workload)


def _check_that_one_can_be_made(folder: Path, workload: Workload) -> None:
    """Check that some template computes a workload that has no records."""
    try:
        templates_of(workload)
    except InputError as error:
        raise UnavailableError(
            f"There are no records for {workload.name} in {folder}, and none can be made: {error}"
        ) from None


def tuner_files(folder: Path, tuner: TunerName) -> dict[Path, RecordFile]:
    """Return the record files in ``folder`` that a tuner wrote, by their paths.

    Raises:
        InputError: a file is damaged, of another format or inconsistent.
    """
    files = {path: load_records(path) for path in sorted(folder.glob("*.json"))}
    return {path: file for path, file in files.items() if file.tuner == FORMS[tuner].tuner}


def kernels_of(
    file: RecordFile, ranks: Sequence[int], store: KernelStore | None = None
) -> list[Kernel]:
    """Return the kernels of these ranks of a record file, in that order.

    Args:
        file: the record file, of any tuner.
        ranks: the ranks, all in the file.
        store: makes the kernels of TVM's records; None makes a store for this call.

    Raises:
        InputError: there is no such rank; or TVM is needed and missing, or crashes on a record.
        KernelFault: a record does not apply to its workload or cannot be lowered.
    """
    if file.tuner == TEMPLATE_FORM.tuner:
        return [recorded_kernel(TEMPLATE_FORM, file, rank) for rank in ranks]
    from pytest_gpuenergy.tuners.tvm.kernel_store import KernelStore

    if store is not None:
        return list(store.kernels(file, ranks))
    with KernelStore() as own:
        return list(own.kernels(file, ranks))


def check_architecture(file: RecordFile, rank: int, gpu: Device) -> None:
    """Check that a GPU has the instructions of a template's kernel.

    Args:
        file: the record file, of any tuner.
        rank: the kernel's rank in the file.
        gpu: the GPU that would run it.

    Raises:
        UnavailableError: it has not.
    """
    if file.tuner != TEMPLATE_FORM.tuner:
        return
    try:
        parameters = TEMPLATE_FORM.parameters(file.record(rank).recipe)
    except FormError:  # whoever makes the kernel reports it
        return
    least, most = parameters.min_capability, parameters.max_capability
    if not least <= int(gpu.architecture.removeprefix("sm_")) <= most:
        raise UnavailableError(
            f"Kernel {rank} of {file.workload.name} is of the template {parameters.template}, "
            f"which takes a GPU of sm_{least}{'' if least == most else ' or later'}, and this one "
            f"is of {gpu.architecture}."
        )


class Spaces:
    """Makes the search spaces of workloads, with one store of kernels; a context manager."""

    def __init__(self) -> None:
        self._store: KernelStore | None = None
        self._stack = ExitStack()

    def check(self, tuner: TunerName) -> None:
        """Check that a tuner can be used.

        Raises:
            InputError: it needs TVM, which is not installed or is of an unsupported version.
        """
        if tuner == TVM:
            from pytest_gpuenergy.tuners.tvm.tvm_requirements import check_tvm

            check_tvm()

    def of(
        self, tuner: TunerName, device: Device, search: SearchSettings
    ) -> Callable[[Workload], SearchSpace]:
        """Return a function that makes a tuner's search space of a workload.

        Args:
            tuner: the tuner's name.
            device: the device on which candidates run.
            search: how TVM searches.
        """
        if tuner == TEMPLATE:
            return lambda workload: template_space(workload, device)
        from pytest_gpuenergy.tuners.tvm.kernel_store import KernelStore
        from pytest_gpuenergy.tuners.tvm.tvm_space import TvmSpace

        if self._store is None:
            self._store = self._stack.enter_context(KernelStore(search.threads))
        store = self._store
        return lambda workload: TvmSpace(workload, device, store, search)

    def __enter__(self) -> Spaces:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
