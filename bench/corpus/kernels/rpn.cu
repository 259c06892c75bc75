// Expressions in reverse Polish notation, a thread each.
extern "C" __global__ void rpn(const int* tokens, const float* x, float* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float stack[40];
    int top = 0;
    for (int k = 0; k < 40; k++) {
        int token = tokens[row * 40 + k];
        if (token < 4) {
            stack[top++] = x[row * 4 + token];
        } else if (top > 1) {
            float b = stack[--top], a = stack[top - 1];
            switch (token) {
                case 4: stack[top - 1] = a + b; break;
                case 5: stack[top - 1] = a - b; break;
                default: stack[top - 1] = fmaxf(a, b);
            }
        }
    }
    y[row] = top ? stack[top - 1] : 0.0f;
}
