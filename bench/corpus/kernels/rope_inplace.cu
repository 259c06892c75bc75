// Rotates pairs (d, d + 16) of each head of 32 in place by position times frequency.
__global__ void rope_inplace(float* x, const float* cosines, const float* sines, int heads, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int d = i % 16, head = i / 16, position = head / heads;
    float c = cosines[position * 16 + d], s = sines[position * 16 + d];
    float a = x[head * 32 + d], b = x[head * 32 + 16 + d];
    x[head * 32 + d] = a * c - b * s;
    x[head * 32 + 16 + d] = b * c + a * s;
}
