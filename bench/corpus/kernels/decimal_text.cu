// Writes numbers in decimal into fields of 12 characters, to the right, after blanks.
__global__ void decimal_text(const int* x, unsigned char* text, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned rest = x[i] < 0 ? 0u - (unsigned)x[i] : x[i];
  unsigned char* field = text + 12 * i;
  int at = 12;
  do {
    field[--at] = '0' + rest % 10;
    rest /= 10;
  } while (rest);
  if (x[i] < 0) field[--at] = '-';
  while (at > 0) field[--at] = ' ';
}
