// Puts rows of 256 into the order of reversed bits, in place.
extern "C" __global__ void bit_reversal(float* x) {
    int i = threadIdx.x, j = __brev(i) >> 24;
    float* row = x + blockIdx.x * 256;
    if (i < j) {
        float former = row[i];
        row[i] = row[j];
        row[j] = former;
    }
}
