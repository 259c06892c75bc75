#include <cuda_fp16.h>

// Attention of one query for each head over a cache of keys and values, by a block for each head:
// all scores, their softmax, and then the sum of the values that they weigh.
__global__ void attention_decode(const half* q, const half* k, const half* v, half* out, int length,
                                 int dim, float scale) {
  extern __shared__ float scores[];
  __shared__ float parts[THREADS];
  const half* query = q + blockIdx.x * dim;
  const half* keys = k + (long long)blockIdx.x * length * dim;
  const half* values = v + (long long)blockIdx.x * length * dim;
  int t = threadIdx.x;
  float largest = -3.402823466e+38f;
  for (int i = t; i < length; i += THREADS) {
    float score = 0.0f;
    for (int d = 0; d < dim; ++d) {
      score += __half2float(query[d]) * __half2float(keys[i * dim + d]);
    }
    scores[i] = score * scale;
    largest = fmaxf(largest, scores[i]);
  }
  parts[t] = largest;
  __syncthreads();
  for (int half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) parts[t] = fmaxf(parts[t], parts[t + half_way]);
    __syncthreads();
  }
  largest = parts[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = t; i < length; i += THREADS) {
    scores[i] = expf(scores[i] - largest);
    sum += scores[i];
  }
  parts[t] = sum;
  __syncthreads();
  for (int half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) parts[t] += parts[t + half_way];
    __syncthreads();
  }
  sum = parts[0];
  for (int d = t; d < dim; d += THREADS) {
    float weighed = 0.0f;
    for (int i = 0; i < length; ++i) weighed += scores[i] * __half2float(values[i * dim + d]);
    out[blockIdx.x * dim + d] = __float2half(weighed / sum);
  }
}
