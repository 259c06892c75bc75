"""The parameters of a search, with the names that the literature uses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self

from pytest_gpuenergy.support import InputError


def _bounded_field(default: float, least: float, most: float) -> Any:
    """Declare a parameter with its default and its bounds."""
    return field(default=default, metadata={"bounds": (least, most)})


@dataclass(frozen=True)
class SearchParameters:
    """The parameters on which the choices of a search depend, besides its seed and the results.

    A value is the natural logarithm of a speedup over the baseline, and a gain is a difference of
    two values.

    Attributes:
        puct_c: the weight of exploration in units of the spread of the values so far: c_puct in D.
            Silver et al., "Mastering the game of Go without human knowledge", Nature 550, 2017.
        prog_widen_thresh: C of progressive widening. A state with n visits has C n^alpha of its
            actions open, but at least one, in the order of their priors (A. Couetoux et al.,
            "Continuous Upper Confidence Trees", LION 2011; R. Coulom, "Computing 'Elo Ratings' of
            Move Patterns in the Game of Go", 2007).
        prog_widen_exponent: alpha of progressive widening.
        root_noise_eps: the share of Dirichlet noise in the priors of the root: epsilon of Silver et
            al.
        root_noise_alpha: the concentration of that noise: alpha of Silver et al. A smaller one
            gives most of the noise to fewer actions.
        virtual_loss: the number of lost visits that a running evaluation counts as (G. Chaslot et
            al., "Parallel Monte-Carlo Tree Search", CG 2008).
        min_pred_gain: the least predicted improvement of an action that is tried, as a fraction of
            the cost of its state.
        best_share: the share of the best value below a state in the state's value; the rest is the
            mean over its visits (M. Schadd et al., "Single-Player Monte-Carlo Tree Search", CG
            2008, who argue that a single player wants the best).
        prior_temperature: the difference of gains at which one action has e times the prior of
            another.
        prediction_count: the number of observations of a kind of action that weigh as much as its
            prediction, or as the absence of one.
        no_error_count: the number of observations of a move that weigh as much as the belief that
            its predictions are right on average. After n observations, n / (n + no_error_count) of
            their mean error is subtracted from all predictions for this move.
        failure_value: the value of a state that failed, and the least value of any state.
        pred_gain_spread: the standard deviation of a gain around the prediction of the bottleneck
            model, if the action affects everything that the cost consists of; proportionally less
            if it affects less.
        tactic_count: the number of observations of a move in other kernels that weigh as much as
            that prediction.
        ncu_every: the number of visits from one profile by Nsight Compute to the next, where it
            works; 0 for no profiles.

    Raises:
        InputError: a value is not a number within its bounds.
    """

    puct_c: float = _bounded_field(0.5, 0.0, 100.0)
    prog_widen_thresh: float = _bounded_field(4.0, 0.01, 1000.0)
    prog_widen_exponent: float = _bounded_field(0.9, 0.0, 1.0)
    root_noise_eps: float = _bounded_field(0.1, 0.0, 1.0)
    root_noise_alpha: float = _bounded_field(0.3, 0.001, 1000.0)
    virtual_loss: float = _bounded_field(1.0, 0.0, 100.0)
    min_pred_gain: float = _bounded_field(0.02, 0.0, 1.0)
    best_share: float = _bounded_field(0.9, 0.0, 1.0)
    prior_temperature: float = _bounded_field(0.2, 0.001, 1000.0)
    prediction_count: float = _bounded_field(10.0, 0.01, 1000.0)
    no_error_count: float = _bounded_field(5.0, 0.01, 1e6)
    failure_value: float = _bounded_field(-1.0, -20.0, 0.0)
    pred_gain_spread: float = _bounded_field(0.25, 0.0, 10.0)
    tactic_count: float = _bounded_field(10.0, 0.01, 1000.0)
    ncu_every: float = _bounded_field(5.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        for declared in fields(self):
            (least, most), value = declared.metadata["bounds"], getattr(self, declared.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and least <= value <= most):
                raise InputError(
                    f"The search parameter {declared.name.upper()} needs a number from {least:g} "
                    f"to {most:g}, not {value!r:.40}."
                )

    @classmethod
    def of(cls, settings: Iterable[tuple[str, str | float]]) -> Self:
        """Return parameters from names, in upper or lower case, and values; others are defaults.

        Raises:
            InputError: a name is unknown or given twice, or a value is not a number within its
                bounds.
        """
        names = {declared.name for declared in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in settings:
            key = name.lower()
            if key not in names:
                raise InputError(
                    f"There is no search parameter {key!r:.60}: choose from "
                    f"{', '.join(sorted(names)).upper()}."
                )
            if key in values:
                raise InputError(
                    f"The search parameter {key.upper()} is given twice: give it once."
                )
            values[key] = value
            with suppress(ValueError):  # what is no number is refused with the bounds
                values[key] = float(value)
        return cls(**values)
