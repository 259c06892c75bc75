"""How long does a card take to read a matrix from memory, and nothing else?

    python studies/memory_reads.py --out memory-reads.jsonl

This is the floor under products with few rows, which read each weight once. Kernels in a CUDA
graph read buffers in turn that together exceed the L2 by far, so that each finds its own in memory:
by loads of 16 bytes to registers (``direct``), and by bulk copies of 16 KiB to shared memory
(``bulk``, as many as fit under way). An ``empty`` kernel tells what a launch takes. Each line of
the result has the bytes, the kernel, its blocks and the time of a launch.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study_command import in_one_sentence, study_parser

SOURCE = r"""
extern "C" __global__ void empty(const uint4*, unsigned*, int) {}

extern "C" __global__ void __launch_bounds__(512)
    direct(const uint4* from, unsigned* to, int boxes) {
  constexpr int AT_ONCE = 8;
  int count = boxes * (BOX / 16), apart = gridDim.x * blockDim.x;
  unsigned found = 0;
  for (int first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += AT_ONCE * apart) {
    uint4 pieces[AT_ONCE] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i * apart < count) pieces[i] = __ldcs(from + first + i * apart);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      found ^= pieces[i].x ^ pieces[i].y ^ pieces[i].z ^ pieces[i].w;
    }
  }
  if (found == 1) *to = found;  // never: all bytes are 0
}

extern "C" __global__ void bulk(const char* from, unsigned* to, int boxes) {
  extern __shared__ __align__(128) char stages[];
  __shared__ unsigned long long full[STAGES];
  unsigned memory = static_cast<unsigned>(__cvta_generic_to_shared(stages));
  unsigned barriers = static_cast<unsigned>(__cvta_generic_to_shared(full));
  for (int stage = 0; stage < STAGES; ++stage) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(barriers + 8 * stage));
  }
  asm volatile("fence.mbarrier_init.release.cluster;");
  int count = (boxes - static_cast<int>(blockIdx.x) + gridDim.x - 1) / gridDim.x;
  unsigned found = 0;
  for (int i = 0; i < count + STAGES; ++i) {
    int stage = i % STAGES;
    if (i >= STAGES && i - STAGES < count) {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "again: mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
          "@!ended bra again;\n"
          "}"
          :: "r"(barriers + 8 * stage), "r"((i / STAGES - 1) & 1) : "memory");
      found ^= *reinterpret_cast<const volatile unsigned*>(stages + stage * BOX);
    }
    if (i < count) {
      const char* place = from + (blockIdx.x + 1LL * i * gridDim.x) * BOX;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                   :: "r"(barriers + 8 * stage), "n"(BOX));
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
          :: "r"(memory + stage * BOX), "l"(place), "n"(BOX), "r"(barriers + 8 * stage) : "memory");
    }
  }
  if (found == 1) *to = found;
}
"""
BOX, STAGES = 16 << 10, 13
"""The bytes of a bulk copy, and how many a block has under way, which fill its shared memory."""
LAUNCHES = (("empty", 132, 128, 0), ("direct", 264, 512, 0), ("bulk", 132, 1, STAGES * BOX))
"""Kernels with their blocks, their threads and the dynamic shared memory of a block."""
SIZES = (4 << 20, 8 << 20, 16 << 20, 32 << 20, 56 << 20, 112 << 20, 224 << 20, 448 << 20)
"""Bytes; among them are 4096 x 4096 and 4096 x 14336 elements of 8 and 16 bits."""
COLD_BYTES, GRAPH_BYTES, TURNS = 400 << 20, 12 << 30, 5
"""The bytes of all buffers of a size, those that a graph reads, and how often it is timed."""


def times_us(nbytes: int) -> list[tuple[str, int, float]]:
    """Return the time of a launch of each kernel that reads so many bytes, with its blocks."""
    import cupy

    options = ("-std=c++17", f"-DBOX={BOX}", f"-DSTAGES={STAGES}")
    module = cupy.RawModule(code=SOURCE, options=options)
    count = max(2, math.ceil(COLD_BYTES / nbytes))
    buffers = [cupy.zeros(nbytes, cupy.uint8) for _ in range(count)]
    to, boxes = cupy.zeros(1, cupy.uint32), cupy.int32(nbytes // BOX)
    calls = count * max(1, min(400, GRAPH_BYTES // nbytes) // count)
    stream = cupy.cuda.Stream(non_blocking=True)
    found = []
    for name, blocks, threads, shared in LAUNCHES:
        function: Any = module.get_function(name)
        function.max_dynamic_shared_size_bytes = shared
        with stream:
            function((blocks,), (threads,), (buffers[0], to, boxes), shared_mem=shared)
            stream.begin_capture()
            for call in range(calls):
                arguments = (buffers[call % count], to, boxes)
                function((blocks,), (threads,), arguments, shared_mem=shared)
            graph = stream.end_capture()
            graph.launch(stream)
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            for _ in range(TURNS):
                graph.launch(stream)
            end.record(stream)
            end.synchronize()
        time_ms = cupy.cuda.get_elapsed_time(begin, end) / (TURNS * calls)
        found.append((name, blocks, 1000 * time_ms))
    return found


@in_one_sentence
def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = study_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="The file of results")
    options = parser.parse_args(words)
    with options.out.open("w") as out:
        for nbytes in SIZES:
            for name, blocks, time_us in times_us(nbytes):
                line = {"bytes": nbytes, "kernel": name, "blocks": blocks, "time_us": time_us}
                out.write(json.dumps(line) + "\n")
                rate = nbytes / time_us / 1e6
                print(f"{nbytes / 1e6:6.1f} MB {name:6} {time_us:7.2f} µs, {rate:.2f} TB/s")


if __name__ == "__main__":
    sys.exit(main())
