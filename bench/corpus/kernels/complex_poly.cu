// Values of a polynomial with complex coefficients at complex places, by Horner's rule in double precision.
#include <thrust/complex.h>

__global__ void complex_poly(const thrust::complex<double>* coefficient, const thrust::complex<double>* z,
                             thrust::complex<double>* y, int degree, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    thrust::complex<double> sum = coefficient[degree];
    for (int k = degree - 1; k >= 0; k--) sum = sum * z[i] + coefficient[k];
    y[i] = sum;
  }
}
