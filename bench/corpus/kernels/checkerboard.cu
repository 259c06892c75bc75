// A sweep of the Ising model: fields of one colour, then those of the other.
extern "C" __global__ void sweep(signed char* up, const float* drawn, int colour) {
    int r = blockIdx.x, c = threadIdx.x, rows = gridDim.x, columns = blockDim.x;
    if ((r + c) % 2 != colour) return;
    int near = up[(r + 1) % rows * columns + c] + up[(r + rows - 1) % rows * columns + c];
    near += up[r * columns + (c + 1) % columns] + up[r * columns + (c + columns - 1) % columns];
    int own = up[r * columns + c];
    int alike = own ? near : 4 - near;  // neighbours of the same direction
    float chance = alike <= 2 ? 1.0f : alike == 3 ? 0.25f : 0.0625f;
    if (drawn[r * columns + c] < chance) up[r * columns + c] = 1 - own;
}
