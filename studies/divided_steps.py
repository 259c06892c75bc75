"""What do blocks of a cluster that divide the steps of a tile take?

    python studies/divided_steps.py --out divided.jsonl [--until 30]

Products of whole tiles in ``tn`` are timed with two depths, in bfloat16 and e4m3, with 1 to 4
blocks for each tile: the difference is what steps take, and the rest what remains without any. Of
some of them, two other texts are timed, which compute something wrong: one leaves out the sums of
the other blocks, and one does not even wait for these. Each line of the result is a kernel; the
first one has the clusters of each size that the card holds at once, of blocks with 200 KB of shared
memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study_command import in_one_sentence, study_parser
from untuned_products import SHORT_S, Card

from pytest_gpuenergy.devices import NvrtcCompilers
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, cache_dir
from pytest_gpuenergy.tuners import WgmmaFloat8Parameters, WgmmaParameters
from pytest_gpuenergy.workloads import Gemm, Mode

KINDS: Mapping[Mode, type[WgmmaParameters]] = {
    "bfloat16": WgmmaParameters,
    "e4m3": WgmmaFloat8Parameters,
}
TILES: Mapping[Mode, Sequence[tuple[int, int, int, int]]] = {
    "bfloat16": ((64, 128, 7, 1), (128, 128, 6, 2)),
    "e4m3": ((128, 64, 7, 2), (128, 128, 6, 2)),
}
"""The rows and columns of tiles, their stages, and the warpgroups that multiply."""
COUNTS: Mapping[int, Sequence[tuple[int, int]]] = {
    1: ((8, 8), (10, 10), (10, 13)),
    2: ((4, 4), (4, 8), (5, 10), (6, 10), (8, 8), (6, 11)),
    3: ((4, 4), (4, 8), (3, 11), (5, 7), (3, 13), (4, 11)),
    4: ((4, 4), (4, 6), (4, 7), (5, 6), (4, 8), (3, 11)),
}
"""The rows and columns of tiles of C, by the blocks of each."""
TAKEN_APART = ((4, 4), (5, 6), (6, 10), (5, 7))
DEPTHS = (2048, 6144)
ADDED = "add_parts(sums, reinterpret_cast<float4*>(a_stages));"
SHARED_BYTES = 200 << 10


def kernels() -> Iterator[tuple[dict[str, Any], Gemm, Kernel]]:
    """Yield kernels with what their lines say of them."""
    for mode, kind in KINDS.items():
        for tile_m, tile_n, stages, consumers in TILES[mode]:
            for split, counts in COUNTS.items():
                tile = {"tile_m": tile_m, "tile_n": tile_n, "stages": stages, "split": split}
                try:
                    parameters = kind(**tile, consumers=consumers)
                except InputError:  # the sums do not fit where stages are
                    continue
                for (rows, columns), k in ((count, k) for count in counts for k in DEPTHS):
                    gemm = Gemm("g", rows * tile_m, columns * tile_n, k, "tn", mode)
                    kernel = parameters.kernel(gemm)
                    about = {"mode": mode, **tile, "tiles": rows * columns, "k": k}
                    yield {**about, "text": "whole"}, gemm, kernel
                    if split == 1 or (rows, columns) not in TAKEN_APART:
                        continue
                    for name, instead in (("meet", "meet();"), ("none", "")):
                        source = kernel.source.replace(ADDED, instead)
                        yield {**about, "text": name}, gemm, replace(kernel, source=source)


def clusters_at_once() -> dict[int, int]:
    """Return how many clusters of each size up to 8 a card holds at once."""
    import cupy
    from cuda.bindings import driver

    module = cupy.RawModule(code='extern "C" __global__ void f() {}', backend="nvrtc")
    function = module.get_function("f").kernel.ptr
    largest = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    cupy.cuda.driver.funcSetAttribute(function, largest, SHARED_BYTES)
    found = {}
    for size in range(1, 9):
        launch = driver.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = 132 * size, 1, 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = 256, 1, 1
        launch.sharedMemBytes = SHARED_BYTES
        value = driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = size, 1, 1
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value = value
        launch.attrs, launch.numAttrs = [attribute], 1
        _, found[size] = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(function), launch)
    return found


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = study_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="The file of results")
    parser.add_argument("--until", type=float, default=1e9, help="The end, in seconds")
    options = parser.parse_args(words)
    started_s = time.monotonic()
    card = Card()
    compilers = NvrtcCompilers("sm_90a", cache_dir("untuned"))
    submitted = [(*one, compilers.submit(one[-1])) for one in kernels()]
    with options.out.open("a") as out:
        out.write(json.dumps({"gpu": card.name, "clusters_at_once": clusters_at_once()}) + "\n")
        for about, gemm, kernel, binary in submitted:
            if time.monotonic() - started_s > options.until:
                break
            launch, kept = card.launcher(kernel, binary.result(), card.tensors(gemm))
            replay = card.replay(launch)
            times_us = [1000 * card.timed(replay, SHORT_S).time_ms for _ in range(2)]
            out.write(json.dumps({**about, "time_us": times_us}) + "\n")
            del kept
    compilers.close()


if __name__ == "__main__":
    sys.exit(main())
