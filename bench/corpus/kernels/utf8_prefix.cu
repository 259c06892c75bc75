// Characters of rows of UTF-8, and the number of bytes of the first k of them; a warp a row.
// Bytes of the form 10xxxxxx continue a character; whatever else begins one.
__global__ void utf8_prefix(const unsigned char* bytes, const int* length, int* characters, int* prefix, int rows, int width,
                            int k) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int n = length[row];
  int count = 0, end = n;
  for (int first = 0; first < n; first += 32) {
    const int i = first + lane;
    const bool begins = i < n && (bytes[row * width + i] & 0xc0) != 0x80;
    const unsigned all = __ballot_sync(0xffffffff, begins);
    if (begins && count + __popc(all & ((1u << lane) - 1)) == k) end = i;
    count += __popc(all);
  }
  end = __reduce_min_sync(0xffffffff, end);
  if (lane == 0) {
    characters[row] = count;
    prefix[row] = end;
  }
}
