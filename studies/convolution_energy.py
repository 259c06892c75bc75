"""What the energy of convolutions in 3xtf32 and tf32 consists of, and how little it could be.

    python studies/convolution_energy.py TRIALS.json.gz [MORE.json.gz ...]

Of the kernels of the template `implicit` whose energy was measured, the energy of a launch is
described by three terms, which are fitted by least squares of relative errors: a power that is
drawn whatever the kernel does, times the time; an energy for each product on tensor cores, with
those that fill up tiles and steps and with all three products of 3xtf32; and an energy for each
element that a product takes from shared memory, in the tile of a block.

The least energy of a layer is that of a kernel that draws the card's power limit, fills up nothing
and copies nothing: only the first two terms are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from convolution_results import GROUPS, Layer, read_layers
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import ImplicitParameters
from pytest_gpuenergy.workloads import Conv2d

_LIMIT_W = 700.0
"""The power limit of an H200."""
_PRODUCTS = {"3xtf32": 3, "tf32": 1}
"""The products on tensor cores of each product, by mode."""
_LEAST_KERNELS = 3
"""The fewest kernels that determine three terms."""


@dataclass(frozen=True)
class Terms:
    """The terms of the energy.

    Attributes:
        static_w: the power that is drawn whatever a kernel does.
        product_pj: the energy of a floating-point operation on tensor cores.
        element_pj: the energy of an element that comes from shared memory.
        error: the root mean square of the relative errors of the energies.
        kernels: the number of kernels.
    """

    static_w: float
    product_pj: float
    element_pj: float
    error: float
    kernels: int

    def least_mj(self, conv: Conv2d) -> float:
        """Return the least energy of a launch at the power limit, in mJ."""
        products = _PRODUCTS[conv.mode] * conv.flops * self.product_pj * 1e-9
        return products / (1 - self.static_w / _LIMIT_W)


def counted(parameters: ImplicitParameters, conv: Conv2d) -> tuple[float, float]:
    """Return the operations on tensor cores, and the elements that they take from shared memory."""
    depth = parameters.step_length(conv)
    steps = parameters.tiles(conv) * parameters.steps(conv) * depth
    operations = 2.0 * steps * parameters.tile_p * parameters.tile_c * _PRODUCTS[conv.mode]
    return operations, float(steps * (parameters.tile_p + parameters.tile_c))


def fit(layers: Sequence[Layer]) -> Terms:
    """Fit the terms to the kernels whose energy was measured.

    Raises:
        InputError: there are too few of them.
    """
    rows = [*_measured(layers)]
    if len(rows) < _LEAST_KERNELS:
        raise InputError("The trials have too few energies of the template implicit.")
    table = np.array(
        [[us * 1e-3, operations * 1e-9, elements * 1e-9] for us, operations, elements, _ in rows]
    )
    energies = np.array([mj for *_, mj in rows])
    found, *_ = np.linalg.lstsq(table / energies[:, None], np.ones(len(rows)), rcond=None)
    error = float(np.sqrt(np.mean((table @ found / energies - 1) ** 2)))
    static_w, product_pj, element_pj = map(float, found)
    return Terms(static_w, product_pj, element_pj, error, len(rows))


def _measured(layers: Sequence[Layer]) -> Iterator[tuple[float, float, float, float]]:
    for layer in layers:
        best: dict[str, Any] = layer.kernels[0]
        is_counted = best.get("template") == ImplicitParameters.template
        if is_counted and layer.conv.mode in _PRODUCTS and "mj" in best:
            parameters = ImplicitParameters.of(best["numbers"])
            yield (best["steady_us"], *counted(parameters, layer.conv), best["mj"])


def floors(layers: Sequence[Layer], terms: Terms) -> str:
    """Return the energies of 3xtf32 relative to cuDNN's float32, as they are and at least."""
    rows = []
    for group in GROUPS:
        ratios = []
        for layer in layers:
            if layer.group == group and (layer.conv.mode, layer.conv.layout) == ("3xtf32", "nchw"):
                better = layer.ratio("mj", "better")
                if np.isfinite(better):
                    own = layer.kernels[0]["mj"]
                    ratios.append((1 / better, terms.least_mj(layer.conv) / (own * better)))
        if ratios:
            means = [f"{geometric_mean(column):.2f}" for column in zip(*ratios, strict=True)]
            rows.append([group, str(len(ratios)), *means, f"{max(r for _, r in ratios):.2f}"])
    return markdown_table(("layers", "number", "energy", "at least", "at least, largest"), rows)


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print the terms, and a table of what could be saved."""
    parser = study_parser(__doc__)
    parser.add_argument("trials", nargs="+", type=Path, help="trials of convolution_sweep.py")
    options = parser.parse_args(words)
    layers = read_layers(options.trials)
    terms = fit(layers)
    print(
        f"{terms.static_w:.0f} W, {terms.product_pj:.2f} pJ an operation, "
        f"{terms.element_pj:.0f} pJ an element; errors of {terms.error:.0%} (root mean square) in "
        f"{terms.kernels} kernels\n"
    )
    print(floors(layers, terms))


if __name__ == "__main__":
    raise SystemExit(main())
