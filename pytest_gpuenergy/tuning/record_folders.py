"""Folders of record files: finds the file for a workload on a GPU, and chooses from its kernels.

A folder contains record files, or else one folder of them per GPU model, such as ``nvidia-h200``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy.support import InputError, UnavailableError, is_folder
from pytest_gpuenergy.tuning.records import (
    PERFORMANCE_FOLDER,
    ending_of,
    file_name,
)
from pytest_gpuenergy.tuning.search_space import TVM, usual_tuner
from pytest_gpuenergy.workloads import KINDS, Workload, known_workload

_MAX_RANKS_CHARACTERS = 4000
"""The longest value of ``--kernels``, in characters; Python refuses to convert longer numbers."""


def gpu_folder(gpu: str) -> str:
    """Return the name of the folder of a GPU model's records: ``nvidia-h200`` for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def given_folder(folder: Path) -> Path:
    """Return the folder that an option names, if it exists.

    Raises:
        InputError: it does not.
    """
    if not is_folder(folder):
        raise InputError(
            f"--records {folder}: there is no such folder; name one that has record files in it."
        )
    return folder


def record_paths(folder: Path) -> list[Path]:
    """Return the record files in ``folder`` or, if it has none, in its folders per GPU model.

    Other files that are named like record files are included, so that reading refuses them.
    """
    own, below = (
        sorted({path for kind in KINDS for path in folder.glob(pattern.format(kind))})
        for pattern in ("*_{}_*.json", "*/*_{}_*.json")
    )
    return own or [path for path in below if path.parent.name != PERFORMANCE_FOLDER]


def find_records(
    folder: Path, workload: Workload, gpu: str | None = None, variant: str = ""
) -> Path:
    """Find the record file for ``workload`` in ``folder``, or for another workload of its shape.

    The workload's own file is preferred, then the first one by name.

    Args:
        folder: see `record_paths`.
        workload: what is to be computed.
        gpu: the model of the GPU that will compute it. Records for this model are preferred, then
            those for the first other model by name. None requires that all are for one model.
        variant: the variant of the form of its recipes.

    Raises:
        UnavailableError: there is no such file.
        InputError: ``gpu`` is None and there are several for different GPUs.
    """
    name = file_name(workload, variant)
    ending = ending_of(workload, variant)
    paths = [path for path in record_paths(folder) if path.name.endswith(ending)]
    if not paths:
        per_gpu = any(path.parent != folder for path in record_paths(folder))
        out = folder / gpu_folder(gpu) if gpu and per_gpu else folder
        raise UnavailableError(
            f"There are no records for {workload.name} in {folder} (no file {name}): "
            f"make them with 'gpuenergy tune {_options_of(workload, variant)} --out {out}'."
        )
    own = [path for path in paths if path.name == name]
    paths = paths if gpu else own or paths
    gpus = sorted({path.parent.name for path in paths})
    if len(gpus) > 1:
        if gpu is None:
            raise InputError(
                f"There are several sets of records for {workload.name} in {folder} "
                f"({', '.join(gpus)}): name one of these folders."
            )
        chosen = gpu_folder(gpu) if gpu_folder(gpu) in gpus else gpus[0]
        paths = [path for path in paths if path.parent.name == chosen]
    return next((path for path in paths if path.name == name), paths[0])


def _options_of(workload: Workload, variant: str) -> str:
    """Return the options with which ``gpuenergy tune`` makes such records for ``workload``."""
    several = variant or usual_tuner(workload) != TVM
    tuner = f" --tuner {variant or TVM}" if several else ""
    kind = KINDS.get(workload.kind)
    if kind is None or known_workload(workload.name) == workload:
        return f"--case {workload.name}{tuner}"
    text = kind.format_sizes(workload)
    made = kind.parse(text)
    name = "" if made is not None and made.name == workload.name else f"{workload.name}="
    return f'--shape "{name}{workload.kind}:{text}"{tuner}'


def choose_ranks(words: str, ranks: Sequence[int]) -> list[int]:
    """Return the ranks among ``ranks`` that ``--kernels`` names.

    Raises:
        InputError: ``words`` is not understood, or names a rank that does not exist.
    """
    if words == "all":
        return list(ranks)
    if len(words) > _MAX_RANKS_CHARACTERS:
        raise InputError(f"--kernels has {len(words)} characters: name fewer ranks, or all.")
    best = words.removeprefix("top")
    if best != words and best.isdecimal() and int(best):
        return list(ranks[: int(best)])
    parts = [re.sub("^(kernel|k)(?=[0-9])", "", word.strip()) for word in words.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError(
            f"--kernels {words!r} is not understood: give all, top1, top2, ..., or ranks such as "
            "1,5,25 or k01."
        )
    wanted = {int(part) for part in parts}
    if unknown := wanted.difference(ranks):
        raise InputError(
            f"--kernels {words}: there is no kernel {min(unknown)}; "
            f"there are {min(ranks)} to {max(ranks)}."
        )
    return [rank for rank in ranks if rank in wanted]
