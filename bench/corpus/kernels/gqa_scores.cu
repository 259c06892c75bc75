// Scores of queries of 12 heads with keys of 3 heads (grouped-query attention).
__global__ void gqa_scores(const float* q, const float* k, float* s, int heads, int kv_heads, int length, int size) {
    int h = blockIdx.y, i = blockIdx.x;
    int g = h / (heads / kv_heads);
    for (int j = threadIdx.x; j < length; j += blockDim.x) {
        float sum = 0.f;
        for (int d = 0; d < size; d++) sum += q[(h * length + i) * size + d] * k[(g * length + j) * size + d];
        s[(h * length + i) * length + j] = sum * rsqrtf((float)size);
    }
}
