// Attention of one query a head with the keys so far, four warps a head; several heads share
// keys and values. Each warp takes every fourth key, a lane has one of 32 dimensions.
__global__ void decode_attention(const float* q, const float* k, const float* v, const int* lengths,
                                 float* o, int heads, int groups, int most, float scale) {
  __shared__ float largest_of[4], sum_of[4], out_of[4][32];
  int head = blockIdx.x, batch = blockIdx.y;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int group = head / (heads / groups);
  int length = lengths[batch];
  float own = q[(batch * heads + head) * 32 + lane] * scale;
  float largest = -INFINITY, sum = 0.0f, out = 0.0f;
  for (int t = warp; t < length; t += 4) {
    size_t at = (((size_t)batch * most + t) * groups + group) * 32 + lane;
    float score = own * k[at];
    for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
    float more = fmaxf(largest, score);
    float shrink = expf(largest - more), weight = expf(score - more);
    sum = sum * shrink + weight;
    out = out * shrink + weight * v[at];
    largest = more;
  }
  if (lane == 0) {
    largest_of[warp] = largest;
    sum_of[warp] = sum;
  }
  out_of[warp][lane] = out;
  __syncthreads();
  if (warp > 0) return;
  float most_of_all = -INFINITY;
  for (int w = 0; w < 4; w++) most_of_all = fmaxf(most_of_all, largest_of[w]);
  sum = out = 0.0f;
  for (int w = 0; w < 4; w++) {
    float factor = expf(largest_of[w] - most_of_all);
    sum += factor * sum_of[w];
    out += factor * out_of[w][lane];
  }
  o[(batch * heads + head) * 32 + lane] = out / sum;
}
