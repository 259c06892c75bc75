"""How long a linear layer of one token takes after what other kernels have left in the L2 cache.

    python studies/after_writes.py --json after-writes.json

Needs PyTorch and a GPU with 8 GiB to spare. Each round launches a layer, whose weights fill the
cache; then a kernel that writes or reads a buffer; then a layer of the same size with weights of
its own, whose time by the profiler is what counts. Lines that were written stay in the cache until
others need their place, and whoever needs it waits for their way to memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from study_command import study_parser

_FEATURES = (4096, 11008)
_LAYERS = 40
_WARM_UP = 3
_SIZES_MIB = (4, 8, 16, 32)


def times_us(before: Callable[[], object] | None, layers: Sequence[Any], token: Any) -> list[float]:
    """GPU time of each second layer of a pair, with ``before`` between the two.

    Args:
        before: launches something; None for nothing.
        layers: their weights, an even number.
        token: what they multiply.
    """
    import torch
    from torch.nn.functional import linear

    def rounds() -> None:
        for first, second in zip(layers[::2], layers[1::2], strict=True):
            linear(token, first)
            if before is not None:
                before()
            linear(token, second)

    for _ in range(_WARM_UP):
        rounds()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        rounds()
        torch.cuda.synchronize()
    launched = sorted(
        (one.time_range.start, one.name, one.time_range.elapsed_us())
        for one in profiler.events()
        if one.device_type == torch.autograd.DeviceType.CUDA
    )
    name = launched[0][1]
    return [elapsed_us for _, kernel, elapsed_us in launched if kernel == name][1::2]


def measure() -> list[dict[str, Any]]:
    """The mean time after nothing, and after writing and reading each amount of memory."""
    import torch

    def weights() -> Any:
        return torch.randn(_FEATURES[1], _FEATURES[0], dtype=torch.float16, device="cuda")

    with torch.inference_mode():
        layers = [weights() for _ in range(2 * _LAYERS)]
        token = torch.randn(1, _FEATURES[0], dtype=torch.float16, device="cuda")
        found = [("nothing", 0, times_us(None, layers, token))]
        for size_mib in _SIZES_MIB:
            buffer = torch.zeros(size_mib << 18, dtype=torch.float32, device="cuda")
            writes, reads = (lambda b=buffer: b.fill_(1.0)), (lambda b=buffer: b.sum())
            found.append(("writing", size_mib, times_us(writes, layers, token)))
            found.append(("reading", size_mib, times_us(reads, layers, token)))
    return [
        {
            "after": after,
            "mib": size_mib,
            "time_us": fmean(times),
            "standard_error_us": stdev(times) / len(times) ** 0.5,
            "launches": len(times),
        }
        for after, size_mib, times in found
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Print the times; exit code 2 without PyTorch or a GPU."""
    parser = study_parser(__doc__)
    parser.add_argument("--json", type=Path, metavar="PATH", help="Write the figures to this file")
    arguments = parser.parse_args(words)
    try:
        import torch
    except ImportError:
        print("error: this needs PyTorch: pip install torch", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("error: this needs an NVIDIA GPU that PyTorch can use", file=sys.stderr)
        return 2
    rows = measure()
    name = torch.cuda.get_device_name()
    print(f"{name}: a linear layer, {_FEATURES[0]} -> {_FEATURES[1]}, one token, float16")
    for row in rows:
        amount = f" {row['mib']} MiB" if row["mib"] else ""
        print(
            f"after {row['after']}{amount}: {row['time_us']:.2f} ±{row['standard_error_us']:.2f} us"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"gpu": name, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
