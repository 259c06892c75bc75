"""How good is the estimate of the template for convolutions, and how fast are its kernels?

    python studies/convolution_estimate.py [TRIALS.json.gz]

The trials are kernels of the template `implicit` with their times on one H100, and the times of
PyTorch's conv2d in the same processes (bench/results/nvidia-h100-2026-11-28). Regret is the time of
the kernel that `ImplicitParameters.cycles` puts first, or of the best of its first three, relative
to the least time that was measured for the convolution, less 1. The constants of the estimate were
fitted to these trials, so that regret at other convolutions may be greater.

The tables compare the fastest kernel with cuDNN in the layout of the kernel, and in the other one.
In mode 3xtf32, cuDNN computes in float32 without TF32.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, cast

from convolution_results import by_mode, regret_table
from convolution_sweep import CARD
from study_command import in_one_sentence, study_parser

from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import ImplicitParameters
from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d, network

ROOT = Path(__file__).resolve().parent.parent
TRIALS = ROOT / "bench" / "results" / "nvidia-h100-2026-11-28" / "convolution-trials.json.gz"


@dataclass(frozen=True)
class Layer:
    """A convolution with its trials.

    Attributes:
        conv: the convolution.
        times_us: the times of its kernels, those that the estimate prefers first.
        cudnn_us: the time of PyTorch's conv2d by layout.
    """

    conv: Conv2d
    times_us: Sequence[float]
    cudnn_us: dict[str, float]

    @property
    def count(self) -> int:
        """The number of kernels."""
        return len(self.times_us)

    def regret(self, first: int) -> float:
        """Return the regret of trying so many kernels."""
        return min(self.times_us[:first]) / min(self.times_us) - 1


def read_layers(path: Path) -> list[Layer]:
    """Return the convolutions of a file with trials.

    Raises:
        InputError: the file has no trials.
    """
    try:
        stored = json.loads(gzip.decompress(path.read_bytes()))
        bundled = {conv.name: conv for conv in (*network("cases"), *network("resnet"))}
        more = {name: Conv2d.of(name, *sizes) for name, sizes in stored["layers"].items()}
        grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for row in stored["rows"]:
            grouped.setdefault((row["mode"], row["layout"], row["name"]), []).append(row)
        return [
            _layer(cast("Conv2d", (bundled | more)[name]).varied(mode=mode, layout=layout), rows)
            for (mode, layout, name), rows in grouped.items()
        ]
    except (gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} has no trials of convolutions: see --help.") from None


def _layer(conv: Conv2d, rows: Sequence[dict[str, Any]]) -> Layer:
    kernels = [row for row in rows if "us" in row]
    (cudnn,) = (row for row in rows if "us" not in row)
    kernels.sort(key=lambda row: ImplicitParameters.of(row["numbers"]).cycles(conv, CARD))
    return Layer(
        conv,
        [row["us"] for row in kernels],
        {layout: cudnn[f"cudnn_{layout}"] for layout in CONV_LAYOUTS},
    )


def speed_tables(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield a Markdown table for each mode and layout, with the fastest kernels and cuDNN."""
    for title, some in by_mode(layers):
        rows, ratios = [], []
        for layer in some:
            own, best = layer.conv.layout, min(layer.times_us)
            cudnn = [layer.cudnn_us[own], *(us for at, us in layer.cudnn_us.items() if at != own)]
            ratios.append([us / best for us in cudnn])
            name = layer.conv.name.removesuffix(layer.conv.suffix)
            rows.append([name, *(f"{us:.1f}" for us in (best, *cudnn))])
            rows[-1] += [f"{ratio:.2f}" for ratio in ratios[-1]]
        means = [f"{geometric_mean(column):.2f}" for column in zip(*ratios, strict=True)]
        rows.append(["geometric mean", "", "", "", *means])
        header = ("layer", "kernel (µs)", "cuDNN (µs)", "other layout (µs)", "cuDNN / kernel")
        yield f"{title}:\n\n{markdown_table((*header, 'other / kernel'), rows)}"


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Print the regret and the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("trials", nargs="?", type=Path, default=TRIALS, help="default: %(default)s")
    layers = read_layers(parser.parse_args(words).trials)
    print("\n\n".join([regret_table(layers), *speed_tables(layers)]))


if __name__ == "__main__":
    raise SystemExit(main())
