"""Matrix products as text: how sizes are written, and which are found in names and bundled.

The grammar of sizes is ``M=1024 N=2048 K=3072``, ``MN=1024 K=2048`` or ``MNK=4096``, after which
other layouts, modes and ends are named: ``MNK=4096 layout=tn bias=1 activation=gelu residual=1``.
``B=32 MNK=512`` is a batch of 32 such products, and ``groups=512,0,128 N=2048 K=1408`` a product
whose groups of rows of A have a matrix B each.
Products of 8-bit numbers have scales, too: ``MNK=4096 layout=tn mode=e4m3 scaling=block``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.activations import ACTIVATIONS
from pytest_gpuenergy.workloads.matrix_products import (
    ACCUMULATIONS,
    LEADING,
    NUMBER,
    SCALINGS,
    SWITCHES,
    USUAL_LAYOUTS,
    Gemm,
    group_rows,
    product_name,
)
from pytest_gpuenergy.workloads.modes import MODES
from pytest_gpuenergy.workloads.variants import in_variants, parse_variants
from pytest_gpuenergy.workloads.workload import Workload, WorkloadKind, check_parameter_names

GRAMMAR = "M=1024 N=2048 K=3072"
_WORD = re.compile(r"([A-Za-z]+)=(\S+)", re.ASCII)
_SIZES, _BATCH, _OPTIONS = "MNK", "B", ("t", "O")
_NAMED = ("groups", "layout", "mode", "activation", "scaling", "accumulation", "distribution")
_ACTIVATION_NAMES = {name.replace("_", ""): name for name in ACTIVATIONS[1:]}
"""The activations by what they are called in names of products, whose parts have no underscore."""
_NAME = re.compile(
    r"gemm_(?:b([0-9]{1,9})_|g([0-9.]+)_)?([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})_([nt]{2})"
    r"((?:_[a-z0-9.]+)*)",
    re.ASCII,
)
_IN_BACKGROUND = 1 << 16
_TUNERS: dict[int, Literal["template", "tvm"]] = {0: "template", 1: "tvm"}


@dataclass(frozen=True)
class GemmRequest:
    """One matrix product of a text.

    Attributes:
        workload: named after its sizes.
        trials: ``t``; None if it is not given.
        tuner: ``template`` or ``tvm``, the low bit of ``O``; None if it is not given.
        in_background: whether ``O`` asks for that, with 65536.
        layouts: the workload in each layout that is given or, without one, in the `USUAL_LAYOUTS`.
    """

    workload: Gemm
    trials: int | None = None
    tuner: Literal["template", "tvm"] | None = None
    in_background: bool = False
    layouts: tuple[Gemm, ...] = ()


def parse_requests(text: str, modes: str | None = None) -> list[GemmRequest]:
    """Return the matrix products that a text describes, separated by ``;``.

    With ``modes``, separated by commas, each is in the layouts that it names and all of the modes.

    Raises:
        InputError: the text or a mode is not understood, a size is missing, given twice or out of
            range, or a product has another mode already.
    """
    parts = [part for part in (part.strip() for part in text.split(";")) if part]
    if not parts:
        raise InputError(f"No matrix product is named: give its sizes, such as {GRAMMAR!r}.")
    variants = parse_variants(modes)
    return [
        replace(request, layouts=tuple(_products_among(in_variants(request.layouts, variants))))
        for request in map(_request, parts)
    ]


def _products_among(found: Iterable[Workload]) -> Iterator[Gemm]:
    return (workload for workload in found if isinstance(workload, Gemm))


def measured_products(text: str, modes: str | None = None) -> list[Gemm]:
    """Return the matrix products that a text describes, each once; see `search_options_notice`.

    Args:
        text: sizes and options of products, separated by semicolons.
        modes: those in which each product is wanted, separated by commas; None for its own.

    Raises:
        InputError: as of `parse_requests`, or as of `parse_variants` and `in_variants`.
    """
    layouts = (product for request in parse_requests(text, modes) for product in request.layouts)
    return list({product.name: product for product in layouts}.values())


def search_options_notice(text: str) -> str | None:
    """Return a sentence if a text has options of a search, which measuring alone ignores.

    Raises:
        InputError: as of `parse_requests`.
    """
    asked = ((request.trials, request.tuner) for request in parse_requests(text))
    if all(one == (None, None) for one in asked):
        return None
    return "t and O of the sizes have no effect here: they are for gpuenergy gemm tune."


def products_in(text: str) -> list[Gemm]:
    """Return the matrix products whose names are in a text such as the id of an item.

    Those of so many groups that their name has a hash instead are not found.
    """
    products: dict[str, Gemm] = {}
    for match in _NAME.finditer(text):
        batch, groups, m, n, k, layout, rest = match.groups()
        words = [f"M={m} N={n} K={k} layout={layout}"]
        if batch:
            words.append(f"B={batch}")
        if groups:
            words.append(f"groups={groups.replace('.', ',')}")
        for part in filter(None, (rest or "").split("_")):
            if leading := re.fullmatch(r"(ld[abc])([0-9]+)", part):
                words.append(f"{leading[1]}={leading[2]}")
            elif part in MODES:
                words.append(f"mode={part}")
            elif part in SWITCHES:
                words.append(f"{part}=1")
            elif part in SCALINGS:
                words.append(f"scaling={part}")
            elif part in ACCUMULATIONS:
                words.append(f"accumulation={part}")
            elif part in _ACTIVATION_NAMES:
                words.append(f"activation={_ACTIVATION_NAMES[part]}")
            else:
                words.append(f"distribution={part.replace('sparse', 'sparse:')}")
        with suppress(InputError):  # no product has that name
            products.update(
                (product.name, product) for product in measured_products(" ".join(words))
            )
    return [one for name, one in products.items() if name in text]


def sizes_text(gemm: Gemm) -> str:
    """Return the text that `measured_products` understands as this product alone."""
    words = {name: value for name, value in gemm.parameters.items() if name != "kind"}
    return " ".join(f"{name}={value}" for name, value in words.items())


def _request(text: str) -> GemmRequest:
    words: dict[str, str] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None:
            raise InputError(
                f"{text!r} has {shown(word)}, which is not understood: give sizes such as "
                f"{GRAMMAR!r}, separated by spaces."
            )
        name, value = match.groups()
        if name in words:
            raise _twice(text, name)
        words[name] = value
    numbers: dict[str, int] = {}
    for letters in [name for name in words if set(name) <= {*_SIZES, _BATCH, *_OPTIONS}]:
        number = _whole(letters, words.pop(letters))
        for letter in letters:
            if letter in numbers:
                raise _twice(text, letter)
            numbers[letter] = number
    options = {name: numbers[name] for name in _OPTIONS if name in numbers}
    sizes = {name: number for name, number in numbers.items() if name in {*_SIZES, _BATCH}}
    if groups := words.get("groups"):
        sizes.setdefault("M", sum(group_rows(groups)))
    leading = {name: _whole(name, words.pop(name)) for name in LEADING if name in words}
    if zero := [name for name, distance in leading.items() if not distance]:
        raise InputError(
            f"{text!r} has {zero[0]}=0: leave it out where rows follow one another, or give the "
            "distance between them in elements."
        )
    switches = {
        name: {"0": False, "1": True}.get(word, word)
        for name in SWITCHES
        if (word := words.pop(name, ""))
    }
    if unknown := [name for name in words if name not in _NAMED]:
        raise InputError(
            f"{text!r} has {unknown[0]}, which is not understood: give sizes such as {GRAMMAR!r}, "
            f"and if need be {', '.join((_BATCH, *LEADING, *SWITCHES, *_NAMED, *_OPTIONS))}."
        )
    if missing := [name for name in _SIZES if name not in sizes]:
        raise InputError(
            f"{text!r} does not say what {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}: give {GRAMMAR!r} or 'MNK=4096'."
        )
    if options.get("t") == 0:
        raise InputError(f"{text!r} asks for no trials: give t a number of at least 1.")
    layouts = words["layout"].split(",") if "layout" in words else USUAL_LAYOUTS
    if len({*layouts}) < len(layouts):
        raise _twice(text, "a layout")
    given: dict[str, Any] = {**sizes, **leading, **switches, **words}  # whose types Gemm checks
    bare = [Gemm("", **{**given, "layout": layout}) for layout in layouts]
    named = tuple(workload.called(product_name(workload)) for workload in bare)
    option = options.get("O")
    if option is not None and option & ~_IN_BACKGROUND not in _TUNERS:
        raise InputError(
            f"{text!r} has O={option}: give O=0 for the template or O=1 for TVM's tuner."
        )
    return GemmRequest(
        named[0],
        options.get("t"),
        None if option is None else _TUNERS[option & 1],
        bool(option and option & _IN_BACKGROUND),
        named,
    )


def _twice(text: str, name: str) -> InputError:
    return InputError(
        f"{text!r} gives {name} twice: leave one out, or separate products by semicolons."
    )


def _whole(name: str, text: str) -> int:
    if NUMBER.fullmatch(text) is None:
        raise InputError(
            f"{name}={text:.40} is not understood: give a whole number of at most nine digits."
        )
    return int(text)


_BUNDLED_SIZES = (
    (512, 256, 640),
    (512, 384, 256),
    (512, 512, 512),
    (512, 768, 3072),
    (512, 3072, 768),
    *((size, size, size) for size in (896, 1024, 1152, 1536, 2048, 3072, 4096, 8192)),
)


class GemmKind(WorkloadKind):
    """The kind ``gemm``."""

    name = Gemm.kind
    grammar = (
        f"{GRAMMAR} [B=32] [groups=512,0,128] [layout=tn] [mode=tf32] [bias=1] [activation=gelu] "
        "[residual=1]"
    )
    example = "M=512 N=256 K=640 layout=nt"
    networks: ClassVar = {
        "gemm": tuple(
            bare.called(product_name(bare))
            for sizes in _BUNDLED_SIZES
            for layout in USUAL_LAYOUTS
            for bare in [Gemm("", *sizes, layout)]
        )
    }

    def parse(self, text: str) -> Gemm | None:
        if ";" in text or not text.split() or not all(map(_WORD.fullmatch, text.split())):
            return None
        request = _request(text)
        if (request.trials, request.tuner) != (None, None):
            raise InputError(f"{text!r}: t and O are no part of a workload, leave them out.")
        if len(request.layouts) > 1 and "layout=" in text:
            raise InputError(f"{text!r} has several layouts, and a workload has one: choose one.")
        return request.workload

    def format_sizes(self, workload: Workload) -> str:
        words = {name: value for name, value in workload.parameters.items() if name != "kind"}
        if words["mode"] == MODES[0]:
            del words["mode"]
        return " ".join(f"{name}={value}" for name, value in words.items())

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Gemm:
        if len(sizes) != 3:
            raise InputError(f"gemm takes the three numbers M,N,K, not {len(sizes)} numbers.")
        m, n, k = sizes
        workload = Gemm(name, m, n, k)
        return workload if name else workload.called(product_name(workload))

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Gemm:
        known = [field for field in fields(Gemm) if field.name != "name"]
        check_parameter_names(self.name, known, parameters)
        given: dict[str, Any] = dict(parameters)  # whose types Gemm checks
        return Gemm(name, **given)
