// The reference for driver.cu of C (M,N) = A B with A (M,K), which in the layout nt is stored as
// (K,M), and B (K,N): each thread computes its share of the rows, in double precision.
#pragma once

#ifndef PARAMETER_lda  // launch headers omit it if rows follow one another
#ifdef PARAMETER_layout_nt
#define PARAMETER_lda PARAMETER_M
#else
#define PARAMETER_lda PARAMETER_K
#endif
#endif
#ifndef PARAMETER_ldb
#define PARAMETER_ldb PARAMETER_N
#endif

static void reference(Values& values, int worker, int workers) {
  constexpr size_t rows = PARAMETER_M, columns = PARAMETER_N, depth = PARAMETER_K;
  constexpr size_t lda = PARAMETER_lda, ldb = PARAMETER_ldb;
#ifdef PARAMETER_layout_nt
  constexpr size_t next_row = 1, next_product = lda;
#else
  constexpr size_t next_row = lda, next_product = 1;
#endif
  // A part of B that stays in the cache while all rows use it.
  constexpr size_t HEIGHT = 256, WIDTH = 32;
  std::vector<double> part(HEIGHT * WIDTH);
  const double *a = values[0].data(), *b = values[1].data();
  for (size_t first = 0; first < depth; first += HEIGHT) {
    const size_t height = std::min(HEIGHT, depth - first);
    for (size_t column = 0; column < columns; column += WIDTH) {
      const size_t width = std::min(WIDTH, columns - column);
      for (size_t k = 0; k < height; ++k) {
        std::copy_n(b + (first + k) * ldb + column, width, &part[k * WIDTH]);
      }
      for (size_t row = worker; row < rows; row += workers) {
        double sums[WIDTH] = {};
        for (size_t k = 0; k < height; ++k) {
          const double factor = a[row * next_row + (first + k) * next_product];
          for (size_t j = 0; j < WIDTH; ++j) sums[j] += factor * part[k * WIDTH + j];
        }
        double* c = values[2].data() + row * columns + column;
        for (size_t j = 0; j < width; ++j) c[j] += sums[j];
      }
    }
  }
}
