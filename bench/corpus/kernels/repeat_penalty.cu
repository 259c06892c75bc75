// Divides positive scores of tokens that have occurred by 1.5, and multiplies negative ones; in place.
__global__ void repeat_penalty(float* scores, const int* tokens, int vocabulary, int count, float penalty) {
    extern __shared__ unsigned seen[];
    for (int i = threadIdx.x; i < (vocabulary + 31) / 32; i += blockDim.x) seen[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        int token = tokens[blockIdx.x * count + i];
        atomicOr(&seen[token / 32], 1u << token % 32);
    }
    __syncthreads();
    float* row = scores + blockIdx.x * vocabulary;
    for (int v = threadIdx.x; v < vocabulary; v += blockDim.x)
        if (seen[v / 32] >> v % 32 & 1) row[v] = row[v] > 0.f ? row[v] / penalty : row[v] * penalty;
}
