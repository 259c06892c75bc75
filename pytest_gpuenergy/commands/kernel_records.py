"""The kernels that options name, from record files or, for matrix products, from contenders."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpuenergy import devices, kernels, tuners, tuning, workloads
from pytest_gpuenergy.commands.command_line import listed, path_argument, tell
from pytest_gpuenergy.support import InputError, is_folder, nearest
from pytest_gpuenergy.tuning import TUNER_NAMES

RECORDS = Path("bench", "records")
"""The default folder of records, relative to the current folder or one above it."""


def add_choice(parser: ArgumentParser, what: str) -> None:
    """Add ``--case`` and ``--network``, which choose ``what`` from the existing ones."""
    parser.add_argument(
        "--case",
        metavar="NAME[,NAME...]",
        action="append",
        default=[],
        help=f"{what} by name, 5 for case5, an id that a report shows, or all for the seven cases; "
        "may be repeated (default: all)",
    )
    parser.add_argument(
        "--network",
        metavar="NAME[,NAME...]",
        action="append",
        default=[],
        help="Workloads of these networks: cases, resnet, yolo, gemm, or project for your own; "
        "may be repeated",
    )


def add_variant_options(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add ``--mode``, ``--layout``, ``--bias`` and ``--relu``, which `chosen_variants` reads."""
    group.add_argument(
        "--mode",
        metavar="LIST",
        help="Modes of matrix products and convolutions: float32, 3xtf32 (as exact, on tensor "
        "cores), tf32, float16, bfloat16 (default: float32, unless the workload names another)",
    )
    group.add_argument(
        "--layout",
        metavar="LIST",
        help="Layouts of convolutions: nchw, nhwc (default: nchw, unless the workload names nhwc)",
    )
    group.add_argument("--bias", action="store_true", help="Choose convolutions that add a bias")
    group.add_argument(
        "--relu", action="store_true", help="Choose convolutions that end with a ReLU"
    )


def chosen_variants(arguments: Namespace) -> workloads.Variants:
    """Return the modes and layouts that the options name.

    Raises:
        InputError: one is unknown.
    """
    return workloads.parse_variants(
        arguments.mode, arguments.layout, bias=arguments.bias, relu=arguments.relu
    )


def add_records(parser: ArgumentParser) -> None:
    """Add ``--records`` and ``--tuner``."""
    parser.add_argument(
        "--records",
        metavar="PATH",
        type=path_argument,
        help="Record file, folder of them, or folder with one such folder per GPU model "
        f"(default: {RECORDS} here or in a parent folder)",
    )
    parser.add_argument(
        "--tuner",
        choices=TUNER_NAMES,
        help="Only kernels of this tuner (default: of all)",
    )


def chosen_files(arguments: Namespace) -> list[tuning.RecordFile]:
    """Return the record files that ``--records``, ``--tuner`` and the cases name."""
    records = arguments.records or nearest(Path.cwd(), RECORDS)
    if records is None:
        raise InputError(
            f"There is no folder {RECORDS} here or above: name record files with --records."
        )
    paths = tuning.record_paths(records) if is_folder(records) else [records]
    if not paths:
        raise InputError(
            f"There are no record files in {records}: make them with gpuenergy tune, "
            "or name others with --records."
        )
    files = [tuners.load_records(path) for path in paths]
    if arguments.tuner is not None:
        files = [file for file in files if file.tuner == tuners.FORMS[arguments.tuner].tuner]
    return choose_cases(files, arguments.case, arguments.network, chosen_variants(arguments))


def choose_cases(
    files: Sequence[tuning.RecordFile],
    cases: Sequence[str],
    networks: Sequence[str] = (),
    variants: workloads.Variants | None = None,
) -> list[tuning.RecordFile]:
    """Return the files of the workloads that ``--case`` and ``--network`` name, or all files.

    With ``variants``, these are the workloads in those modes and layouts.

    A workload without records of its own gets those of its shape, under its name. Of workloads that
    are named together, by a network or ``all``, some may have no records. The id of a kernel
    chooses that kernel alone.
    """
    if not cases and not networks:
        found = [
            f for f in files if workloads.is_in_variants(f.workload.parameters, variants or {})
        ]
        if files and not found:
            raise InputError("There are no records of these modes and layouts: tune some first.")
        return found
    workloads.check_named(cases, networks)
    chosen: dict[tuning.RecordFile, set[tuning.Record]] = {}
    for option, words in (
        ("case", workloads.split_words(cases)),
        ("network", workloads.split_words(networks)),
    ):
        for word in dict.fromkeys(words):
            if option == "case" and word != workloads.ALL:
                named = _files_by_word(files, word, variants or {})
            else:
                group = workloads.network("cases" if option == "case" else word, Path.cwd())
                group = workloads.in_variants(group, variants or {})
                named = [
                    file for workload in group for file in _files_by_workload(files, workload.name)
                ]
            if not named:
                raise _none(files, word, variants or {})
            for file in named:
                chosen.setdefault(replace(file, records=()), set()).update(file.records)
    return [
        replace(file, records=tuple(sorted(records, key=lambda record: record.rank)))
        for file, records in chosen.items()
    ]


def _files_by_word(
    files: Sequence[tuning.RecordFile], word: str, variants: workloads.Variants
) -> list[tuning.RecordFile]:
    """Return the files of a workload's name or number, or the record of a kernel's id, if any."""
    if variants:
        by_name = {file.workload.name: file.workload for file in files}
        known = workloads.known_workload(word, Path.cwd()) or by_name.get(word)
        group = workloads.in_variants([known], variants) if known is not None else ()
        return [file for workload in group for file in _files_by_workload(files, workload.name)]
    if matches := _files_by_workload(files, word) or _files_by_workload(
        files, workloads.numbered_case(word)
    ):
        return matches
    name, rank = parse_kernel_id(word, {file.workload.name for file in files})
    if rank is None:
        return []
    return [replace(file, records=(file.record(rank),)) for file in _files_by_workload(files, name)]


def _files_by_workload(files: Sequence[tuning.RecordFile], name: str) -> list[tuning.RecordFile]:
    """Return the files of a workload, otherwise one of its shape for each GPU and tuner."""
    if own := [file for file in files if file.workload.name == name]:
        return own
    workload = workloads.known_workload(name, Path.cwd())
    by_gpu: dict[tuple[str, str], tuning.RecordFile] = {}
    for file in files:
        if workload is not None and file.workload.signature == workload.signature:
            by_gpu.setdefault((file.gpu, file.tuner), replace(file, workload=workload))
    return list(by_gpu.values())


def _none(
    files: Sequence[tuning.RecordFile], word: str, variants: workloads.Variants
) -> InputError:
    only = listed((file.workload.name for file in files), "none")
    hint = " Omit --case to take all." if word == "all" else ""
    words = [
        value if isinstance(value, str) else name
        for name, values in variants.items()
        for value in values
    ]
    asked = f" as {', '.join(words)}" if words else ""
    return InputError(f"There are no records for {word[:80]!r}{asked}, only for {only}.{hint}")


def parse_kernel_id(text: str, known: Iterable[str]) -> tuple[str, int | None]:
    """Return the workload and the rank in an id from a report, such as ``case1-k01-300W``.

    The id of an item may be given with its test and file, ``bench/a.py::test_a[case1-k01-300W]``,
    and names may contain dashes. The rank is None if there is none.
    """
    inner = text.rpartition("::")[2]
    if inner.endswith("]"):
        inner = inner[inner.find("[") + 1 : -1]
    for name in sorted(known, key=len, reverse=True):
        match = re.fullmatch(r"-(k[0-9]{1,9})(-.*)?", inner.removeprefix(name))
        if match is not None and inner.startswith(name):
            return name, parse_rank(match[1])
    match = re.fullmatch(r"(.*?)-(k[0-9]{1,9})(-.*)?", inner)
    return (inner, None) if match is None else (match[1], parse_rank(match[2]))


def parse_rank(text: str) -> int | None:
    """Return the rank that ``1``, ``k01`` or ``kernel01`` names; None for other words."""
    match = re.fullmatch(r"(?:kernel|k)?([0-9]{1,9})", text, re.ASCII)
    return None if match is None else int(match[1])


def only_set(files: Sequence[tuning.RecordFile], case: str) -> tuning.RecordFile:
    """Return the only file for the workload ``case``."""
    if len(files) > 1:
        tuned = ", ".join(f"by {file.tuner} for {file.gpu}" for file in files)
        raise InputError(
            f"There are several sets of records for {case} (tuned {tuned}): name one folder with "
            "--records, and one tuner with --tuner."
        )
    return files[0]


USUAL_CONTENDER = "template"


def add_product_options(parser: ArgumentParser) -> None:
    """Add ``--contender`` and ``--gpu-device``, without defaults."""
    parser.add_argument(
        "--contender",
        metavar="NAME",
        help=f"Contender that makes the kernels of matrix products (default: {USUAL_CONTENDER})",
    )
    parser.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        help="GPU to make kernels of matrix products for: auto, an index, a UUID, or "
        "emulated[:PROFILE] (default: auto)",
    )


def product_kernels(
    sizes: str,
    modes: str | None,
    contender: str | None,
    device: devices.Device,
    records: Path | None,
) -> list[kernels.RankedKernel]:
    """Make a contender's kernel for each matrix product; by default, that of `USUAL_CONTENDER`.

    Raises:
        InputError: the sizes are not understood, or the contender is not one of CUDA text.
        UnavailableError: the contender has no kernel for a product.
    """
    products = workloads.measured_products(sizes, modes)
    if notice := workloads.search_options_notice(sizes):
        tell(notice)
    folder = tuning.given_folder(records) if records else nearest(Path.cwd(), RECORDS) or RECORDS
    return tuners.contender_kernels(products, contender or USUAL_CONTENDER, device, folder)
