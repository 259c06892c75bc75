// Values of blocks of 256 in the format q4_K: four bits, eight scales and minima of six bits.
#include <cuda_fp16.h>

extern "C" __global__ void q4k_blocks(const __half* d, const __half* dmin, const unsigned char* scales, const unsigned char* q, float* y) {
    int block = blockIdx.x, t = threadIdx.x;  // 128 threads, two values each
    const unsigned char* packed = scales + block * 12;
    int pair = t / 32, l = t % 32;
    for (int high = 0; high < 2; high++) {
        int j = 2 * pair + high, scale, least;
        if (j < 4) {
            scale = packed[j] & 63;
            least = packed[j + 4] & 63;
        } else {
            scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
            least = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
        }
        int four = q[block * 128 + pair * 32 + l] >> 4 * high & 15;
        y[block * 256 + pair * 64 + high * 32 + l] =
            __half2float(d[block]) * scale * four - __half2float(dmin[block]) * least;
    }
}
