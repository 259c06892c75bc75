// The argument of complex numbers.
extern "C" __global__ void phase_angle(const float* re, const float* im, float* angle, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) angle[i] = atan2f(im[i], re[i]);
}
