// Picks 2 experts of 24 by score + bias, weights them by their scores; a warp a token.
__global__ void gating(const float* x, const float* bias, int* ids, float* weights, int tokens) {
    int token = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    float score = lane < 24 ? 1.f / (1.f + expf(-x[token * 24 + lane])) : 0.f;
    float key = lane < 24 ? x[token * 24 + lane] + bias[lane] : -INFINITY;
    float picked[2], sum = 0.f;
    for (int k = 0; k < 2; k++) {
        float best = key;
        int who = lane;
        for (int o = 16; o > 0; o /= 2) {
            float other = __shfl_xor_sync(0xffffffff, best, o);
            int name = __shfl_xor_sync(0xffffffff, who, o);
            if (other > best || (other == best && name < who)) { best = other; who = name; }
        }
        picked[k] = __shfl_sync(0xffffffff, score, who);
        sum += picked[k];
        if (lane == who) key = -INFINITY;
        if (lane == 0) ids[token * 2 + k] = who;
    }
    if (lane < 2) weights[token * 2 + lane] = (lane == 0 ? picked[0] : picked[1]) / sum;
}
