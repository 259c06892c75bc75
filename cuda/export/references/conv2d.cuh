// The reference for driver.cu of a zero-padded convolution of data (N,CI,H,W) with weight
// (CO,CI/groups,KH,KW), in the layout NHWC (N,H,W,CI) and (CO,KH,KW,CI/groups), with an optional bias
// (CO,) and ReLU: each thread computes its share of the output planes, in double precision.
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
#ifdef PARAMETER_layout_NHWC
  constexpr size_t channel = 1, pixel = ins, out_channel = 1, out_pixel = outs;
  constexpr size_t tap_channel = 1, tap_pixel = group_ins;
#else
  constexpr size_t channel = size_t(height) * width, out_channel = size_t(out_height) * out_width;
  constexpr size_t tap_channel = size_t(rows) * columns;
  constexpr size_t pixel = 1, out_pixel = 1, tap_pixel = 1;
#endif
  const std::vector<double>&data = values[0], &weight = values[1];
  std::vector<double>& results = values.back();
  for (int plane = worker; plane < n * outs; plane += workers) {
    const int out = plane % outs;
    const size_t image = size_t(plane / outs);
    double* output = &results[image * outs * out_height * out_width + out * out_channel];
    for (int in = 0; in < group_ins; ++in) {
      const size_t in_channel = size_t(out / group_outs) * group_ins + in;
      const double* input = &data[image * ins * height * width + in_channel * channel];
      for (int kh = 0; kh < rows; ++kh) {
        for (int kw = 0; kw < columns; ++kw) {
          const double tap = weight[size_t(out) * group_ins * rows * columns + in * tap_channel +
                                    (size_t(kh) * columns + kw) * tap_pixel];
          for (int oh = 0; oh < out_height; ++oh) {
            const int y = oh * stride + kh * dilation - padding;
            if (y < 0 || y >= height) continue;
            for (int ow = 0; ow < out_width; ++ow) {
              const int x = ow * stride + kw * dilation - padding;
              if (x < 0 || x >= width) continue;
              output[(size_t(oh) * out_width + ow) * out_pixel] +=
                  tap * input[(size_t(y) * width + x) * pixel];
            }
          }
        }
      }
    }
#if defined(PARAMETER_bias) || defined(PARAMETER_relu)
    for (size_t i = 0; i < size_t(out_height) * out_width; ++i) {
      double& result = output[i * out_pixel];
#ifdef PARAMETER_bias
      result += values[2][out];
#endif
#ifdef PARAMETER_relu
      result = std::max(result, 0.0);
#endif
    }
#endif
  }
}
