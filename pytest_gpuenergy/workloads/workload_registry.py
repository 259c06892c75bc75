"""The kinds of workloads, and workloads by name, network or sizes, including a project's own.

A kind defines how its sizes are written, how a workload is made from them, and its bundled
networks. Each tuner defines how to compute it (`tvm.operators`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import InputError, project_table
from pytest_gpuenergy.workloads.convolutions import (
    CONV_LAYOUTS,
    Conv2d,
    Conv2dKind,
    split_suffix,
)
from pytest_gpuenergy.workloads.modes import CONV_MODES
from pytest_gpuenergy.workloads.product_requests import GemmKind
from pytest_gpuenergy.workloads.variants import Variants, in_variants
from pytest_gpuenergy.workloads.workload import Workload, WorkloadKind, is_plain_name

CONV2D: WorkloadKind = Conv2dKind()
"""The default kind, also of files written before there were others."""

KINDS: Mapping[str, WorkloadKind] = {kind.name: kind for kind in (CONV2D, GemmKind())}
"""All kinds by name."""


def kind_named(name: str) -> WorkloadKind:
    """Return the kind called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        raise InputError(
            f"There is no kind of workload {name!r:.40}: choose one of {', '.join(KINDS)}."
        )
    return KINDS[name]


def to_parameters(workload: Workload) -> dict[str, Any]:
    """Name, kind and parameters of ``workload`` as JSON values, for `from_parameters`.

    Raises:
        InputError: it is of a kind that cannot be stored.
    """
    if workload.kind not in KINDS:
        raise InputError(
            f"{workload.name} is of kind {workload.kind}, which cannot be stored in a file: "
            f"choose a workload of kind {' or '.join(KINDS)}."
        )
    return {"name": workload.name, **workload.parameters}


def from_parameters(parameters: Mapping[str, Any]) -> Workload:
    """Return the workload from which `to_parameters` came; without a ``kind`` it is a convolution.

    Raises:
        InputError: the name or kind cannot be used, or the parameters do not fit the kind.
    """
    rest = dict(parameters)
    name, kind = rest.pop("name", None), rest.pop("kind", CONV2D.name)
    if type(name) is not str or not is_plain_name(name):
        raise InputError(f"The workload's name {name!r:.40} cannot be used.")
    if type(kind) is not str:
        raise InputError(f"The workload's kind is {kind!r:.40} instead of a string.")
    return kind_named(kind).from_parameters(name, rest)


NETWORKS: dict[str, tuple[Workload, ...]] = {
    name: workloads for kind in KINDS.values() for name, workloads in kind.networks.items()
}
"""The bundled workloads, by network."""

ALL = "all"
"""The word of ``--case`` that stands for the network ``cases``."""

CASES: dict[str, Workload] = {workload.name: workload for workload in NETWORKS["cases"]}
"""The seven workloads of the benches, by name."""

PROJECT = "project"
"""The network of a project's own workloads."""

_SHAPE = re.compile(
    # What is a list of numbers before a blank is no name: options follow, as in "1,56 mode=tf32".
    r"(?:(?![0-9]+(?:,[0-9]+)+\s)([^=:]*)=)?(?:([a-z0-9_]+):)?(.*)",
    re.ASCII | re.DOTALL,
)
_MAX_NAMES = 7
_OPTION_OF: Mapping[str, str] = (
    dict.fromkeys(CONV_MODES, "mode")
    | dict.fromkeys(CONV_LAYOUTS, "layout")
    | {"bias": "bias", "relu": "relu"}
)
"""The option of a convolution for each word that may stand in a name."""
_TAKEN = frozenset({ALL, "and", "or", "not"})
"""Keywords of ``--case`` and pytest's ``-k``, which could not select a workload."""
_WRITTEN = frozenset({"performance", "tuning.csv"})
"""The names of files that ``gpuenergy tune`` writes beside the workloads' folders."""


def find_workload(name: str, root: Path | None = None) -> Workload:
    """Return the workload called ``name``.

    Args:
        name: the name of a bundled workload, or of one of the project's own. That of a convolution
            may end with other options, such as ``_3xtf32_nhwc``, see `Conv2d.suffix`.
        root: the project's folder, or one inside it; None: no project's own workloads.

    Raises:
        InputError: there is no such workload, or the project's own are malformed.
    """
    known = all_networks(root)
    found = _named(name, _by_name(known))
    if found is None:
        choices = []
        for group in filter(None, known.values()):
            names = [workload.name for workload in group]
            several = len(names) > _MAX_NAMES
            choices.append(f"{names[0]} ... {names[-1]}" if several else ", ".join(names))
        proper = _proper_name(name, _by_name(known))
        advice = f"write {proper}" if proper else f"choose one of {', '.join(choices)}"
        raise InputError(f"There is no workload {name!r}: {advice}.")
    return found


def known_workload(name: str, root: Path | None = None) -> Workload | None:
    """Return the workload that `find_workload` finds; None if there is none.

    Raises:
        InputError: the project's own workloads are malformed.
    """
    return _named(name, _by_name(all_networks(root)))


def _named(name: str, by_name: Mapping[str, Workload]) -> Workload | None:
    if found := by_name.get(name) or by_name.get(numbered_case(name)):
        return found
    base, options = split_suffix(name)
    plain = by_name.get(base) or by_name.get(numbered_case(base))
    if options and isinstance(plain, Conv2d) and plain.is_plain:
        return plain.varied(**options)
    return None


def _proper_name(name: str, by_name: Mapping[str, Workload]) -> str | None:
    """Return the name that is meant by one with right options in another order, or with usual ones.

    It is None if the name has other words, or contradicts itself.
    """
    base, options = name, dict[str, str | bool]()
    while (found := _named(base, by_name)) is None:
        base, _, word = base.rpartition("_")
        option = _OPTION_OF.get(word)
        if option is None or option in options:
            return None
        options[option] = word == option or word
    if not isinstance(found, Conv2d) or any(
        found.options.get(option, value) != value for option, value in options.items()
    ):
        return None
    return found.varied(**options).name


def _name_contradiction(name: str, workload: Workload) -> str | None:
    """Return what is wrong with a name that ends with a mode or layout; None if it has them."""
    for option, value in split_suffix(name)[1].items():
        own = getattr(workload, option, value)
        if option in ("mode", "layout") and own != value:
            return f"the name {name!r} says {value}, and the {option} is {own}: choose another one"
    return None


def all_networks(root: Path | None = None) -> dict[str, tuple[Workload, ...]]:
    """Return all networks by name, with ``project``, which may be empty, if ``root`` is given.

    Raises:
        InputError: the project's own workloads are malformed.
    """
    return NETWORKS if root is None else {**NETWORKS, PROJECT: project_workloads(root)}


def network(name: str, root: Path | None = None) -> tuple[Workload, ...]:
    """Return the workloads of ``cases``, ``resnet``, ``yolo``, ``gemm``, or ``project`` (its own).

    Raises:
        InputError: there is no such network, or the project's own workloads are malformed.
    """
    known = all_networks(root)
    if name not in known:
        raise InputError(f"There is no network {name!r}: choose one of {', '.join(known)}.")
    if not known[name]:
        raise InputError(
            "This project has no workloads of its own: add them to [tool.gpuenergy.workloads] in "
            "its pyproject.toml."
        )
    return known[name]


def networks_named(text: str, root: Path | None = None) -> list[str]:
    """Return the networks with a workload that ``text``, such as pytest's ``-k`` expression, names.

    A word names a workload if either one starts with the other.

    Raises:
        InputError: the project's own workloads are malformed.
    """
    words = re.findall(r"[\w.-]+", text.casefold())

    def is_named(workload: Workload) -> bool:
        name = workload.name.casefold()
        return any(word.startswith(name) or name.startswith(word) for word in words)

    return [name for name, group in all_networks(root).items() if any(map(is_named, group))]


def choose_workloads(
    cases: Sequence[str] = (),
    networks: Sequence[str] = (),
    shapes: Sequence[str] = (),
    root: Path | None = None,
    variants: Variants | None = None,
) -> tuple[Workload, ...]:
    """Return the workloads that a command line names, each once, in the order of the arguments.

    Args:
        cases: names, or comma-separated lists of them; ``all`` is the network ``cases``, and ``5``
            is ``case5``.
        networks: names of networks, or comma-separated lists of them.
        shapes: texts that `parse_shape` understands.
        root: the project's folder, see `find_workload`.
        variants: the modes and layouts in which they are wanted.

    Raises:
        InputError: there is no such workload or network, a shape is not understood or has the name
            of another workload, nothing is named, or a workload has no such variants.
    """
    by_name = _by_name(all_networks(root))
    chosen: dict[str, Workload] = {}
    for word in split_words(cases):
        group = tuple(CASES.values()) if word == ALL else (find_workload(word, root),)
        chosen.update((workload.name, workload) for workload in group)
    for word in split_words(networks):
        chosen.update((workload.name, workload) for workload in network(word, root))
    for text in shapes:
        workload = parse_shape(text)
        other = chosen.get(workload.name) or _named(workload.name, by_name) or workload
        if other != workload:
            raise InputError(
                f"--shape {text!r} has the name of another workload, {other.name}, but other "
                "sizes or options: choose another name."
            )
        chosen[workload.name] = workload
    if not chosen:
        raise InputError(
            "No workload is named: give names such as case1, a network "
            f"({', '.join(NETWORKS)}), or a shape ({CONV2D.grammar})."
        )
    return in_variants(chosen.values(), variants or {})


def parse_shape(text: str) -> Workload:
    """Return the workload that ``[NAME=][KIND:]SIZES`` describes.

    Without a kind it is a convolution, whose sizes are
    ``N,H,W,CO,CI,KH,KW,stride,padding[,dilation[,groups]]``. Without a name it is named after its
    sizes: ``conv_1x56x56_64x64_3x3_s1_p1``.

    Raises:
        InputError: the text has another form, a size is out of range, or the name cannot be used.
    """
    match = _SHAPE.fullmatch(re.sub(r"\s*([,=:])\s*", r"\1", text.strip()))
    assert match is not None  # it matches anything
    name, named_kind, sizes = match.groups()
    try:
        kind = CONV2D if named_kind is None else kind_named(named_kind)
    except InputError as error:
        raise InputError(f"--shape {text!r}: {error}") from None
    workload = kind.parse(sizes)
    if workload is None:
        form = kind.grammar if named_kind is None else f"{kind.name}:{kind.grammar}"
        raise InputError(
            f"--shape {text!r} is not understood: give [NAME=]{form}, such as {kind.example}."
        )
    if name is None:
        return workload
    if problem := _name_problem(name) or _name_contradiction(name, workload):
        raise InputError(f"--shape {text!r}: {problem}.")
    return workload.called(name)


def project_workloads(root: Path) -> tuple[Workload, ...]:
    """Return the workloads in ``[tool.gpuenergy.workloads]`` of the pyproject.toml above ``root``.

    For example ``stem = [1, 224, 224, 64, 3, 7, 7, 2, 3]``: N, H, W, CO, CI, KH, KW, stride,
    padding and, if they are not 1, dilation and groups. A table names its kind:
    ``stem = {kind = "conv2d", N = 1, ...}``.

    Raises:
        InputError: the file or an entry is malformed, or a name is taken or cannot be used.
    """
    path, table = project_table(root, "workloads", "lists of sizes")
    # pytest's -k and some file systems are case-insensitive.
    names = {name.casefold(): name for name in _by_name(NETWORKS)}
    workloads = []
    for name, entry in table.items():
        problem = _name_problem(name)
        if not problem and (other := names.get(name.casefold())):
            problem = f"the name {name!r} is taken by {other}: choose another one"
        if problem:
            raise InputError(f"{path}: {problem}.")
        has_kind = isinstance(entry, dict) and "kind" in entry
        if not has_kind and (
            not isinstance(entry, list) or any(type(size) is not int for size in entry)
        ):
            numbers = CONV2D.grammar.partition(" ")[0]
            raise InputError(
                f"{path}: the workload {name!r} must be a list of integers, {numbers}, or a "
                "table that names its kind."
            )
        try:
            workloads.append(
                from_parameters({**entry, "name": name})
                if has_kind
                else CONV2D.from_sizes(name, entry)
            )
        except InputError as error:
            message = f"{path}: the workload {name!r} cannot be used: {error}"
            raise InputError(message) from None
        if contradiction := _name_contradiction(name, workloads[-1]):
            raise InputError(f"{path}: {contradiction}.")
        names[name.casefold()] = name
    return tuple(workloads)


def distinct_shapes(workloads: Iterable[Workload]) -> dict[Workload, tuple[Workload, ...]]:
    """Return the first workload of each kind and shape, with the others that compute the same.

    Kernels tuned or recorded for the first one also serve the others.
    """
    groups: dict[str, dict[Workload, None]] = {}
    for workload in workloads:
        groups.setdefault(workload.signature, {})[workload] = None
    return {first: tuple(others) for first, *others in groups.values()}


def _by_name(known: dict[str, tuple[Workload, ...]]) -> dict[str, Workload]:
    return {workload.name: workload for group in known.values() for workload in group}


def numbered_case(word: str) -> str:
    """``case5`` for ``5``; other words as they are."""
    return f"case{word}" if word.isascii() and word.isdecimal() else word


def check_named(cases: Sequence[str], networks: Sequence[str]) -> None:
    """Check that ``--case`` and ``--network``, if they are given, name something.

    Raises:
        InputError: one is given, for example as an unset variable, and neither names anything.
    """
    words = (*cases, *networks)
    if words and not split_words(words):
        raise InputError("--case and --network name nothing: give names, or leave them out.")


def split_words(lists: Sequence[str]) -> list[str]:
    """Return the words of an option that may be repeated and may list several with commas."""
    return [word.strip() for words in lists for word in words.split(",") if word.strip()]


def _name_problem(name: str) -> str:
    """Why a user's workload cannot have that name; empty if it can."""
    if not is_plain_name(name):
        return f"{name!r} cannot name a workload: use letters, digits, '_', '-' and '.'"
    if name.casefold() in _TAKEN:
        return f"{name!r} is a command-line keyword and cannot name a workload: use another name"
    if name.casefold() in _WRITTEN:
        return f"{name!r} is a name that gpuenergy tune uses beside the workloads: use another name"
    return ""
