"""The tuners: TVM for all kinds of workloads that it knows, our templates for some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.conv import TEMPLATES as CONVOLUTIONS
from pytest_gpuenergy.gemm import TEMPLATES as PRODUCTS
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuning import (
    TEMPLATE,
    TVM,
    RecipeForm,
    RecordFile,
    TemplateForm,
    TunerName,
    record_folders,
    records,
    usual_tuner,
)
from pytest_gpuenergy.tvm import METASCHEDULE, refuse_ansor
from pytest_gpuenergy.workloads import Workload

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import Kernel
    from pytest_gpuenergy.tuning import SearchSpace
    from pytest_gpuenergy.tvm import KernelStore, SearchSettings

FORMS: Mapping[TunerName, RecipeForm] = {
    TVM: METASCHEDULE,
    TEMPLATE: TemplateForm[Any]({**PRODUCTS, **CONVOLUTIONS}),
}
"""Of the recipes that each tuner writes."""


def load_records(path: Path) -> RecordFile:
    """Read a record file of any tuner; nothing in it is executed.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    try:
        return records.load_records(path, FORMS.values())
    except InputError:
        refuse_ansor(path)  # old logs may have the name of a record file
        raise


def records_of(
    folder: Path, workload: Workload, gpu: str | None = None, tuner: TunerName | None = None
) -> RecordFile:
    """The records in ``folder`` that serve ``workload``, under its name.

    Args:
        folder: contains record files, or one folder of them per GPU model.
        workload: what is to be computed.
        gpu: model of the GPU that will compute it, whose records are preferred.
        tuner: which wrote them; None: the usual one of this workload or, without its records,
            another.

    Raises:
        UnavailableError: there are none.
        InputError: the file cannot be used or is for another shape.
    """
    usual = usual_tuner(workload) if tuner is None else tuner
    try:
        return record_folders.records_of(folder, workload, load_records, gpu, FORMS[usual].variant)
    except UnavailableError:
        for other in FORMS.keys() - {usual} if tuner is None else ():
            with suppress(UnavailableError):
                return record_folders.records_of(
                    folder, workload, load_records, gpu, FORMS[other].variant
                )
        raise


def files_of_tuner(folder: Path, tuner: TunerName) -> dict[Path, RecordFile]:
    """The record files in ``folder`` that a tuner wrote, by their paths.

    Raises:
        InputError: one is damaged, of another format or inconsistent.
    """
    files = {path: load_records(path) for path in sorted(folder.glob("*.json"))}
    return {path: file for path, file in files.items() if file.form == FORMS[tuner]}


class Spaces:
    """Makes the search spaces of workloads; a context manager."""

    def __init__(self) -> None:
        self._store: KernelStore | None = None
        self._stack = ExitStack()

    def check(self, tuner: TunerName) -> None:
        """Check that a tuner can be used.

        Raises:
            InputError: it needs TVM, which is not installed, or of which the version is not
                supported.
        """
        if tuner == TVM:
            from pytest_gpuenergy.tvm import check_tvm

            check_tvm()

    def of(
        self, tuner: TunerName, device: Device, search: SearchSettings
    ) -> Callable[[Workload], SearchSpace]:
        """Returns what makes a tuner's space of a workload.

        Args:
            tuner: its name.
            device: where candidates run.
            search: how TVM searches.
        """
        if tuner == TEMPLATE:
            return lambda workload: _template_space(workload, device)
        from pytest_gpuenergy.tvm import KernelStore, TvmSpace

        if self._store is None:
            self._store = self._stack.enter_context(KernelStore(search.threads))
        store = self._store
        return lambda workload: TvmSpace(workload, device, store, search)

    def __enter__(self) -> Spaces:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _template_space(workload: Workload, device: Device) -> SearchSpace:
    """The space of our templates for a workload.

    Raises:
        InputError: there are none for it, or for this device.
    """
    from pytest_gpuenergy.conv import ConvSpace
    from pytest_gpuenergy.gemm import TemplateSpace
    from pytest_gpuenergy.workloads import Conv2d

    if isinstance(workload, Conv2d):
        return ConvSpace(workload, device)
    return TemplateSpace(workload, device)


def kernels_of(
    file: RecordFile, ranks: Sequence[int], store: KernelStore | None = None
) -> list[Kernel]:
    """The kernels of these ranks of a record file, in that order.

    Args:
        file: of any tuner.
        ranks: in the file.
        store: makes the kernels of TVM's records; None: one is made and closed again.

    Raises:
        InputError: no such rank; or TVM is needed and missing, or crashes on this record.
        KernelFault: a record does not apply to its workload or cannot be lowered.
    """
    if file.form == FORMS[TEMPLATE]:
        from pytest_gpuenergy.tuning import recorded_kernel

        return [recorded_kernel(file, rank) for rank in ranks]
    from pytest_gpuenergy.tvm import KernelStore

    if store is not None:
        return list(store.kernels(file, ranks))
    with KernelStore() as own:
        return list(own.kernels(file, ranks))
