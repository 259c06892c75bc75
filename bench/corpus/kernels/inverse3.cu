// Inverses of matrices of three rows, whose diagonals are stored apart from their other numbers.
__global__ void inverse3(const float* diagonal, const float* off, float* inverse, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double a = diagonal[3 * i], e = diagonal[3 * i + 1], k = diagonal[3 * i + 2];
  double b = off[6 * i], c = off[6 * i + 1], d = off[6 * i + 2];
  double f = off[6 * i + 3], g = off[6 * i + 4], h = off[6 * i + 5];
  double first = e * k - f * h, second = f * g - d * k, third = d * h - e * g;
  double whole = a * first + b * second + c * third;
  float* out = inverse + 9 * i;
  out[0] = (float)(first / whole);
  out[1] = (float)((c * h - b * k) / whole);
  out[2] = (float)((b * f - c * e) / whole);
  out[3] = (float)(second / whole);
  out[4] = (float)((a * k - c * g) / whole);
  out[5] = (float)((c * d - a * f) / whole);
  out[6] = (float)(third / whole);
  out[7] = (float)((b * g - a * h) / whole);
  out[8] = (float)((a * e - b * d) / whole);
}
