// The reference for driver.cu of a zero-padded convolution of data (N,CI,H,W) with weight
// (CO,CI/groups,KH,KW): each thread computes its share of the output planes, in double precision.
#pragma once

#ifndef PARAMETER_dilation  // launch headers omit it if it is 1
#define PARAMETER_dilation 1
#endif
#ifndef PARAMETER_groups
#define PARAMETER_groups 1
#endif

static void reference(Values& values, int worker, int workers) {
  constexpr int n = PARAMETER_N, height = PARAMETER_H, width = PARAMETER_W;
  constexpr int outs = PARAMETER_CO, ins = PARAMETER_CI;
  constexpr int rows = PARAMETER_KH, columns = PARAMETER_KW;
  constexpr int stride = PARAMETER_strides, padding = PARAMETER_padding;
  constexpr int dilation = PARAMETER_dilation, groups = PARAMETER_groups;
  constexpr int out_height = (height + 2 * padding - dilation * (rows - 1) - 1) / stride + 1;
  constexpr int out_width = (width + 2 * padding - dilation * (columns - 1) - 1) / stride + 1;
  constexpr int group_ins = ins / groups, group_outs = outs / groups;
  const std::vector<double>&data = values[0], &weight = values[1];
  for (int plane = worker; plane < n * outs; plane += workers) {
    const int out = plane % outs;
    double* output = values[2].data() + size_t(plane) * out_height * out_width;
    const size_t first_in = size_t(plane / outs) * ins + out / group_outs * group_ins;
    for (int in = 0; in < group_ins; ++in) {
      const double* image = data.data() + (first_in + in) * height * width;
      for (int kh = 0; kh < rows; ++kh) {
        for (int kw = 0; kw < columns; ++kw) {
          const double tap = weight[((size_t(out) * group_ins + in) * rows + kh) * columns + kw];
          for (int oh = 0; oh < out_height; ++oh) {
            const int y = oh * stride + kh * dilation - padding;
            if (y < 0 || y >= height) continue;
            for (int ow = 0; ow < out_width; ++ow) {
              const int x = ow * stride + kw * dilation - padding;
              if (x < 0 || x >= width) continue;
              output[size_t(oh) * out_width + ow] += tap * image[size_t(y) * width + x];
            }
          }
        }
      }
    }
  }
}
