// The reference for driver.cu of C (M,N) = activation(A B + bias) + residual with A (M,K) and B (K,N), and
// if they are there a bias (N) and a residual that is stored as C is: each thread computes its share of the
// rows, in double precision. In the layouts nt and tt, A is stored as (K,M), in tn and tt B as
// (N,K). What lies between rows of C is NaN: the kernel must not write there. Of a batch, the matrices of
// all products follow one another; with groups of rows, those of B and the rows of bias do.
#pragma once

#if defined PARAMETER_layout_nt || defined PARAMETER_layout_tt
static constexpr bool a_transposed = true;
#else
static constexpr bool a_transposed = false;
#endif
#if defined PARAMETER_layout_tn || defined PARAMETER_layout_tt
static constexpr bool b_transposed = true;
#else
static constexpr bool b_transposed = false;
#endif
#ifndef PARAMETER_lda  // launch headers omit it if rows follow one another
#define PARAMETER_lda (a_transposed ? PARAMETER_M : PARAMETER_K)
#endif
#ifndef PARAMETER_ldb
#define PARAMETER_ldb (b_transposed ? PARAMETER_K : PARAMETER_N)
#endif
#ifndef PARAMETER_ldc
#define PARAMETER_ldc PARAMETER_N
#endif
#ifndef PARAMETER_bias
#define PARAMETER_bias 0
#endif
#ifndef PARAMETER_residual
#define PARAMETER_residual 0
#endif
#ifndef PARAMETER_B  // the number of products of a batch
#define PARAMETER_B 1
#endif
#ifndef PARAMETER_groups  // the rows of each group
#define PARAMETER_groups PARAMETER_M
#endif

static double activated(double x) {
#if defined PARAMETER_activation_relu
  return std::max(x, 0.0);
#elif defined PARAMETER_activation_gelu
  return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
#elif defined PARAMETER_activation_gelu_tanh
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
#elif defined PARAMETER_activation_silu
  return x / (1 + std::exp(-x));
#else
  return x;
#endif
}

// The rows of one product or group, and the matrices of it alone; bias and residual may be null.
struct Product {
  const double *a, *b, *bias, *residual;
  double* c;
  size_t rows;
};

static constexpr size_t columns = PARAMETER_N, depth = PARAMETER_K;
static constexpr size_t lda = PARAMETER_lda, ldb = PARAMETER_ldb, ldc = PARAMETER_ldc;
static constexpr size_t next_row = a_transposed ? 1 : lda, next_product = a_transposed ? lda : 1;

static void multiply(const Product& product, int worker, int workers) {
  constexpr size_t down = b_transposed ? 1 : ldb, along = b_transposed ? ldb : 1;
  // A part of B that stays in the cache while all rows use it.
  constexpr size_t HEIGHT = 256, WIDTH = 32;
  std::vector<double> part(HEIGHT * WIDTH);
  for (size_t row = worker; row < product.rows; row += workers) {
    double* c = product.c + row * ldc;
    std::fill(c + columns, c + ldc, std::nan(""));
  }
  for (size_t first = 0; first < depth; first += HEIGHT) {
    const size_t height = std::min(HEIGHT, depth - first);
    for (size_t column = 0; column < columns; column += WIDTH) {
      const size_t width = std::min(WIDTH, columns - column);
      for (size_t k = 0; k < height; ++k) {
        for (size_t j = 0; j < width; ++j) {
          part[k * WIDTH + j] = product.b[(first + k) * down + (column + j) * along];
        }
      }
      for (size_t row = worker; row < product.rows; row += workers) {
        double sums[WIDTH] = {};
        for (size_t k = 0; k < height; ++k) {
          const double factor = product.a[row * next_row + (first + k) * next_product];
          for (size_t j = 0; j < WIDTH; ++j) sums[j] += factor * part[k * WIDTH + j];
        }
        double* c = product.c + row * ldc + column;
        for (size_t j = 0; j < width; ++j) c[j] += sums[j];
      }
    }
  }
  for (size_t row = worker; row < product.rows; row += workers) {
    double* c = product.c + row * ldc;
    for (size_t column = 0; column < columns; ++column) {
      c[column] = activated(c[column] + (product.bias ? product.bias[column] : 0.0));
      if (product.residual) c[column] += product.residual[row * ldc + column];
    }
  }
}

static void reference(Values& values, int worker, int workers) {
  constexpr size_t all_rows[] = {PARAMETER_groups};
  constexpr size_t next_a = (a_transposed ? depth : PARAMETER_M) * lda;
  constexpr size_t next_b = (b_transposed ? columns : depth) * ldb;
  const double* bias = PARAMETER_bias ? values[2].data() : nullptr;
  const double* residual = PARAMETER_residual ? values[2 + PARAMETER_bias].data() : nullptr;
  double* const c = values[2 + PARAMETER_bias + PARAMETER_residual].data();
  size_t first = 0, number = 0;  // row of C, and matrix of B
  for (size_t batch = 0; batch < PARAMETER_B; ++batch) {
    size_t begin = 0;
    for (const size_t rows : all_rows) {
      multiply({values[0].data() + batch * next_a + begin * next_row,
                values[1].data() + number * next_b, bias ? bias + number * columns : nullptr,
                residual ? residual + first * ldc : nullptr, c + first * ldc, rows},
               worker, workers);
      begin += rows, first += rows, ++number;
    }
  }
}
