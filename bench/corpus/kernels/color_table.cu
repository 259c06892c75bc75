// Looks colours up in a table of 17 x 17 x 17, with trilinear interpolation.
extern "C" __global__ void color_table(const float* colour, const float* table, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int cell[3];
    float part[3];
    for (int k = 0; k < 3; k++) {
        float v = fminf(fmaxf(colour[i * 3 + k], 0.0f), 1.0f) * 16.0f;
        cell[k] = min((int)v, 15);
        part[k] = v - cell[k];
    }
    float sum = 0.0f;
    for (int corner = 0; corner < 8; corner++) {
        float weight = 1.0f;
        int at = 0;
        for (int k = 0; k < 3; k++) {
            int up = corner >> k & 1;
            weight *= up ? part[k] : 1.0f - part[k];
            at = at * 17 + cell[k] + up;
        }
        sum += weight * table[at];
    }
    out[i] = sum;
}
