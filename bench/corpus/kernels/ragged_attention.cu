// Attention of sequences of given lengths in padded tensors, causal from the bottom right.
__global__ void ragged_attention(const float* q, const float* k, const float* v, const int* lengths, float* o, int queries, int keys) {
    __shared__ float scores[64], reduced[2];
    int batch = blockIdx.y, i = blockIdx.x, t = threadIdx.x;
    int length = lengths[batch];
    int visible = length - queries + i + 1;
    const float* qr = q + (batch * queries + i) * 32;
    if (visible <= 0) {
        if (t < 32) o[(batch * queries + i) * 32 + t] = 0.f;
        return;
    }
    float s = -INFINITY;
    if (t < visible) {
        s = 0.f;
        for (int d = 0; d < 32; d++) s += qr[d] * k[(batch * keys + t) * 32 + d];
        s *= 0.17677669529663687f;
    }
    scores[t] = s;
    __syncthreads();
    if (t == 0) {
        float m = -INFINITY, z = 0.f;
        for (int j = 0; j < visible; j++) m = fmaxf(m, scores[j]);
        for (int j = 0; j < visible; j++) z += expf(scores[j] - m);
        reduced[0] = m;
        reduced[1] = z;
    }
    __syncthreads();
    if (t < 32) {
        float sum = 0.f;
        for (int j = 0; j < visible; j++) sum += expf(scores[j] - reduced[0]) * v[(batch * keys + j) * 32 + t];
        o[(batch * queries + i) * 32 + t] = sum / reduced[1];
    }
}
