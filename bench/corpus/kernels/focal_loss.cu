// Focal loss of two classes, with the exponent 2.
extern "C" __global__ void focal_loss(const float* x, const int* target, float* loss, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float z = target[i] ? x[i] : -x[i];
    float miss = 1.0f / (1.0f + expf(z));
    float log_hit = fminf(z, 0.0f) - log1pf(expf(-fabsf(z)));
    loss[i] = -miss * miss * log_hit;
}
