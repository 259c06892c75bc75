// Base64 of rows of up to 50 bytes; a thread a group of three bytes. What follows the text is zero.
#define WIDTH 50
#define GROUPS 17

__device__ char digit(unsigned v) {
  return v < 26 ? 'A' + v : v < 52 ? 'a' + (v - 26) : v < 62 ? '0' + (v - 52) : v == 62 ? '+' : '/';
}

__global__ void base64_rows(const unsigned char* bytes, const int* length, unsigned char* text, int rows) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / GROUPS, group = i % GROUPS;
  if (row >= rows) return;
  const int left = length[row] - 3 * group;
  unsigned char* out = text + (row * GROUPS + group) * 4;
  if (left <= 0) {
    for (int k = 0; k < 4; ++k) out[k] = 0;
    return;
  }
  const unsigned char* in = bytes + row * WIDTH + 3 * group;
  const unsigned v = in[0] << 16 | (left > 1 ? in[1] << 8 : 0) | (left > 2 ? in[2] : 0);
  out[0] = digit(v >> 18);
  out[1] = digit(v >> 12 & 63);
  out[2] = left > 1 ? digit(v >> 6 & 63) : '=';
  out[3] = left > 2 ? digit(v & 63) : '=';
}
