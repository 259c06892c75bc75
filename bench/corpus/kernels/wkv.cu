// The recurrence of RWKV: a weighted mean with decaying weights, a thread a channel.
extern "C" __global__ void wkv(const float* w, const float* u, const float* k, const float* v, float* y, int steps, int channels) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    float sum = 0.0f, weight = 0.0f, top = -1e38f;
    for (int t = 0; t < steps; t++) {
        float key = k[t * channels + c], value = v[t * channels + c];
        float high = fmaxf(top, u[c] + key);
        float past = expf(top - high), now = expf(u[c] + key - high);
        y[t * channels + c] = (past * sum + now * value) / (past * weight + now);
        high = fmaxf(top + w[c], key);
        past = expf(top + w[c] - high);
        now = expf(key - high);
        sum = past * sum + now * value;
        weight = past * weight + now;
        top = high;
    }
}
