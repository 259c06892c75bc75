"""The form of templates' recipes: how the parameters of a search are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct

from pytest_gpuenergy import __version__
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    convert,
    decode,
    member,
    read_bytes,
    shown,
    typed,
)
from pytest_gpuenergy.tuning.search_space import TEMPLATE
from pytest_gpuenergy.tuning.template import TemplateParameters
from pytest_gpuenergy.workloads import Workload

P = TypeVar("P", bound=TemplateParameters[Any])

_MAX_BYTES = 256 << 20


class _Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    template: str
    parameters: dict[str, int]
    time_ms: float | None = None


@dataclass(frozen=True)
class TemplateForm(Generic[P]):
    """A `RecipeForm` whose recipes are a template's name, its parameters and a time.

    Attributes:
        templates: the known templates by name.
    """

    templates: Mapping[str, type[P]] = field(compare=False, repr=False)
    tuner: str = TEMPLATE
    file_name: str = "parameters.jsonl"
    variant: str = TEMPLATE

    def recipe(self, parameters: P) -> str:
        """Return the recipe of these parameters, without a time."""
        return recipe_of(parameters)

    def parameters(self, recipe: str) -> P:
        """Return the parameters in a recipe.

        Raises:
            FormError: it has no valid parameters.
        """
        return self._parameters(decode(recipe, _Recipe, "the recipe"))

    def identity(self, recipe: str) -> str:
        """Return the recipe without its time."""
        return untimed(recipe)

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """Return the recipe with the time of its trial; null stands for a failed trial."""
        decoded = decode(recipe, _Recipe)
        return _text(_Recipe(decoded.template, decoded.parameters, time_ms))

    def time_ms(self, recipe: str) -> float:
        """Return the time of its trial."""
        decoded = decode(recipe, _Recipe)
        return float("inf") if decoded.time_ms is None else decoded.time_ms

    def line(self, recipe: str) -> str:
        """The recipe itself."""
        return recipe

    def read(self, path: Path) -> list[str]:
        """Return the recipes in a file, one per line."""
        content = read_bytes(path, "list of parameters", _MAX_BYTES)
        recipes = []
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                recipes.append(_text(decode(line, _Recipe)))
            except FormError as error:
                raise InputError(
                    f"Line {number} of {path} cannot be used, because {error}: restore the file, "
                    "or name another folder with --out."
                ) from None
        return recipes

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """Check that the parameters are valid, and that a trial that ran has a time."""
        self.parameters(recipe)
        if ran and decode(recipe, _Recipe).time_ms is None:
            raise FormError("its time is missing")

    def check(self, value: object, workload: Workload) -> str:
        """Return the recipe of a trial that ran, if its template computes the workload."""
        decoded = convert(value, _Recipe, "the recipe")
        if not self._parameters(decoded).computes(workload):
            raise FormError(f"the template {decoded.template} does not compute {workload.name}")
        if decoded.time_ms is None or not 0 < decoded.time_ms < float("inf"):
            raise FormError(f"the time is {shown(decoded.time_ms)}")
        return _text(decoded)

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the version of this package, whose templates these are."""
        top = typed(header, dict, "the document")
        return {"gpuenergy": member(top, "gpuenergy", str)}

    @property
    def toolchain(self) -> Mapping[str, Any]:
        """The version of this package, with which new recipes are made."""
        return {"gpuenergy": __version__}

    def _parameters(self, recipe: _Recipe) -> P:
        kind = self.templates.get(recipe.template)
        if kind is None:
            raise FormError(
                f"the template is {shown(recipe.template)} instead of {' or '.join(self.templates)}"
            )
        try:
            return kind.of(recipe.parameters)
        except InputError as error:
            raise FormError(f"the parameters are not valid ({str(error).rstrip('.')})") from None


def recipe_of(parameters: TemplateParameters[Any]) -> str:
    """Return the recipe of these parameters, without a time."""
    return _text(_Recipe(parameters.template, parameters.numbers))


def untimed(recipe: str) -> str:
    """Return a recipe without its time."""
    decoded = decode(recipe, _Recipe)
    return _text(_Recipe(decoded.template, decoded.parameters))


def _text(recipe: _Recipe) -> str:
    content = {"template": recipe.template, "parameters": recipe.parameters}
    return json.dumps({**content, "time_ms": recipe.time_ms}, separators=(",", ":"))
