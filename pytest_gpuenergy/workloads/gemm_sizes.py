"""The grammar of matrix products: ``M=1024 N=2048 K=3072``, ``MN=1024 K=2048``, ``MNK=4096``."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.support import InputError, shown
from pytest_gpuenergy.workloads.gemm import LAYOUTS, MODES, Gemm

GRAMMAR = "M=1024 N=2048 K=3072"
_WORD = re.compile(r"([A-Za-z]+)=(\S+)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_SIZES, _OPTIONS = "MNK", ("t", "O")
_LEADING = ("lda", "ldb")
_NAMED = ("layout", "mode", "distribution")
_NAME = re.compile(
    r"gemm_([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})_(nn|nt)((?:_[a-z0-9.]+)*)", re.ASCII
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
        layouts: the workload in the layout that is given or, without one, in each.
    """

    workload: Gemm
    trials: int | None = None
    tuner: Literal["template", "tvm"] | None = None
    in_background: bool = False
    layouts: tuple[Gemm, ...] = ()


def parse_requests(text: str) -> list[GemmRequest]:
    """The matrix products that a text describes, separated by ``;``.

    Raises:
        InputError: the text is not understood, or a size is missing, given twice or out of range.
    """
    parts = [part for part in (part.strip() for part in text.split(";")) if part]
    if not parts:
        raise InputError(f"No matrix product is named: give its sizes, such as {GRAMMAR!r}.")
    return [_request(part) for part in parts]


def measured_products(text: str) -> list[Gemm]:
    """The matrix products that a text describes, each once; see `search_words_said`.

    Raises:
        InputError: as of `parse_requests`.
    """
    layouts = (product for request in parse_requests(text) for product in request.layouts)
    return list({product.name: product for product in layouts}.values())


def search_words_said(text: str) -> str | None:
    """Where products are only measured: a sentence, if a text says how they are searched.

    Raises:
        InputError: as of `parse_requests`.
    """
    asked = ((request.trials, request.tuner) for request in parse_requests(text))
    if all(one == (None, None) for one in asked):
        return None
    return "t and O of the sizes have no effect here: they are for gpuenergy gemm tune."


def parse_gemm(text: str) -> Gemm | None:
    """The one matrix product that a text describes; None if it has another form.

    Raises:
        InputError: a size is missing, given twice or out of range.
    """
    if ";" in text or not text.split() or not all(map(_WORD.fullmatch, text.split())):
        return None
    request = _request(text)
    if (request.trials, request.tuner) != (None, None):
        raise InputError(f"{text!r}: t and O are no part of a workload, leave them out.")
    return request.workload


def products_in(text: str) -> list[Gemm]:
    """The matrix products whose names, see `name_of`, are in a text such as the id of an item."""
    found: dict[str, Gemm] = {}
    for match in _NAME.finditer(text):
        m, n, k, layout, rest = match.groups()
        words = [f"M={m} N={n} K={k} layout={layout}"]
        for part in filter(None, (rest or "").split("_")):
            if leading := re.fullmatch(r"(ld[ab])([0-9]+)", part):
                words.append(f"{leading[1]}={leading[2]}")
            elif part in MODES:
                words.append(f"mode={part}")
            else:
                words.append(f"distribution={part.replace('sparse', 'sparse:')}")
        with suppress(InputError):  # no product has that name
            found.update((one.name, one) for one in measured_products(" ".join(words)))
    return [one for name, one in found.items() if name in text]


def name_of(gemm: Gemm) -> str:
    """``gemm_512x256x640_nn``, with whatever else is not as usual."""
    parts = ["gemm", f"{gemm.M}x{gemm.N}x{gemm.K}", gemm.layout]
    if gemm.mode != "float32":
        parts.append(gemm.mode)
    for name in (*_LEADING, "distribution"):
        if name in gemm.parameters:
            value = str(gemm.parameters[name]).replace(":", "")
            parts.append(value if name == "distribution" else f"{name}{value}")
    return "_".join(parts)


def _request(text: str) -> GemmRequest:
    given = _words(text)
    options = {name: _whole(name, given.pop(name)) for name in _OPTIONS if name in given}
    sizes: dict[str, int] = {}
    for names in [name for name in given if set(name) <= set(_SIZES)]:
        size = _whole(names, given.pop(names))
        for name in names:
            if name in sizes:
                raise _twice(text, name)
            sizes[name] = size
    leading = {name: _whole(name, given.pop(name)) for name in _LEADING if name in given}
    if unknown := [name for name in given if name not in _NAMED]:
        raise InputError(
            f"{text!r} has {unknown[0]}, which is not understood: give sizes such as {GRAMMAR!r}, "
            f"and if need be {', '.join((*_LEADING, *_NAMED, *_OPTIONS))}."
        )
    if missing := [name for name in _SIZES if name not in sizes]:
        raise InputError(
            f"{text!r} does not say what {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'}: give {GRAMMAR!r} or 'MNK=4096'."
        )
    if options.get("t") == 0:
        raise InputError(f"{text!r} asks for no trials: give t a number of at least 1.")
    layouts = [given["layout"]] if "layout" in given else LAYOUTS
    bare = [
        Gemm("", **sizes, **leading, **{**given, "layout": layout})  # type: ignore[arg-type]
        for layout in layouts  # it checks them all
    ]
    named = tuple(workload.called(name_of(workload)) for workload in bare)
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


def _words(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None:
            raise InputError(
                f"{text!r} has {shown(word)}, which is not understood: give sizes such as "
                f"{GRAMMAR!r}, separated by spaces."
            )
        name, value = match.groups()
        if name in given:
            raise _twice(text, name)
        given[name] = value
    return given


def _twice(text: str, name: str) -> InputError:
    return InputError(
        f"{text!r} gives {name} twice: leave one out, or separate products by semicolons."
    )


def _whole(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise InputError(
            f"{name}={text:.40} is not understood: give a whole number of at most nine digits."
        )
    return int(text)
