// Rotation matrices of vectors whose length is the angle.
extern "C" __global__ void axis_angle(const float* v, float* r, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = v[3 * i], y = v[3 * i + 1], z = v[3 * i + 2];
    float square = x * x + y * y + z * z, angle = sqrtf(square);
    float a = 1.0f, b = 0.5f;
    if (square > 1e-8f) {
        a = sinf(angle) / angle;
        b = (1.0f - cosf(angle)) / square;
    }
    float* m = r + 9 * i;
    m[0] = 1.0f - b * (y * y + z * z);
    m[1] = b * x * y - a * z;
    m[2] = b * x * z + a * y;
    m[3] = b * x * y + a * z;
    m[4] = 1.0f - b * (x * x + z * z);
    m[5] = b * y * z - a * x;
    m[6] = b * x * z - a * y;
    m[7] = b * y * z + a * x;
    m[8] = 1.0f - b * (x * x + y * y);
}
