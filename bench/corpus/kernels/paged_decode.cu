// Attention of one query a sequence and head over keys in pages of 16, which a table of each sequence
// names. Two warps take turns with keys; their results are merged.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

#define HEAD 32
#define PAGE 16

__global__ void paged_decode(const float* q, const float* keys, const float* values, const int* table, const int* lengths,
                             float* out, int heads, int most_pages, float scale) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  __shared__ float largest_of[2], sum_of[2], result_of[2][HEAD];
  int head = blockIdx.x, sequence = blockIdx.y, lane = warp.thread_rank(), part = warp.meta_group_rank();
  int length = lengths[sequence];
  float query = q[(sequence * heads + head) * HEAD + lane] * scale;
  float largest = -INFINITY, sum = 0.0f, result = 0.0f;
  for (int t = part; t < length; t += 2) {
    int page = table[sequence * most_pages + t / PAGE];
    int at = ((page * PAGE + t % PAGE) * heads + head) * HEAD + lane;
    float score = cg::reduce(warp, query * keys[at], cg::plus<float>());
    float next = fmaxf(largest, score);
    float factor = expf(largest - next), weight = expf(score - next);
    sum = sum * factor + weight;
    result = result * factor + weight * values[at];
    largest = next;
  }
  if (lane == 0) {
    largest_of[part] = largest;
    sum_of[part] = sum;
  }
  result_of[part][lane] = result;
  block.sync();
  if (part == 0) {
    float most = fmaxf(largest_of[0], largest_of[1]);
    float f0 = expf(largest_of[0] - most), f1 = expf(largest_of[1] - most);
    out[(sequence * heads + head) * HEAD + lane] =
        (result_of[0][lane] * f0 + result_of[1][lane] * f1) / (sum_of[0] * f0 + sum_of[1] * f1);
  }
}
