// Which keys a query may see: none later than itself, none `window` or more before it, and those of its own document.
__global__ void band_mask(const int* document, bool* mask, int length, int window) {
  int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y * blockDim.y + threadIdx.y, batch = blockIdx.z;
  if (key >= length || query >= length) return;
  const int* own = document + batch * length;
  mask[(batch * length + query) * length + key] = key <= query && query - key < window && own[key] == own[query];
}
