// Acceleration of bodies by each other's masses, softened. A body is x, y, z and its mass.
#define TILE 64

struct Vec3 {
  float x, y, z;
};

__device__ inline Vec3 attract(Vec3 a, float4 own, float4 other, float softening) {
  float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
  float square = dx * dx + dy * dy + dz * dz + softening;
  float inverse = 1.0f / sqrtf(square);
  float s = other.w * inverse * inverse * inverse;
  a.x += dx * s;
  a.y += dy * s;
  a.z += dz * s;
  return a;
}

__global__ void nbody(const float4* body, float* acceleration, float softening, int n) {
  __shared__ float4 tile[TILE];
  int i = blockIdx.x * TILE + threadIdx.x;
  float4 own = i < n ? body[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  Vec3 a = {0.0f, 0.0f, 0.0f};
  for (int first = 0; first < n; first += TILE) {
    int j = first + threadIdx.x;
    tile[threadIdx.x] = j < n ? body[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
    for (int k = 0; k < TILE; k++) a = attract(a, own, tile[k], softening);
    __syncthreads();
  }
  if (i < n) {
    acceleration[3 * i] = a.x;
    acceleration[3 * i + 1] = a.y;
    acceleration[3 * i + 2] = a.z;
  }
}
