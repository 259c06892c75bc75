// Determinants of 4 x 4 matrices by elimination with pivots, a thread each.
extern "C" __global__ void determinants(const float* a, float* det, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float m[4][4];
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) m[r][c] = a[i * 16 + r * 4 + c];
    float product = 1.0f;
    for (int k = 0; k < 4; k++) {
        int pivot = k;
        for (int r = k + 1; r < 4; r++)
            if (fabsf(m[r][k]) > fabsf(m[pivot][k])) pivot = r;
        if (m[pivot][k] == 0.0f) {
            product = 0.0f;
            break;
        }
        if (pivot != k) {
            product = -product;
            for (int c = k; c < 4; c++) {
                float former = m[k][c];
                m[k][c] = m[pivot][c];
                m[pivot][c] = former;
            }
        }
        product *= m[k][k];
        for (int r = k + 1; r < 4; r++) {
            float factor = m[r][k] / m[k][k];
            for (int c = k; c < 4; c++) m[r][c] -= factor * m[k][c];
        }
    }
    det[i] = product;
}
