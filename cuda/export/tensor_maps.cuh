// Tensor maps: what a kernel is told of a tensor for copies by the tensor memory accelerator.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

// A function of the driver, found at run time: programs need not be linked with the driver's library.
template <class Encode>
Encode* tensor_map_encoder(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    std::fprintf(stderr, "Tensor maps need a driver of CUDA 12 or later: update it.\n");
    std::exit(2);
  }
  return reinterpret_cast<Encode*>(found);
}

inline void check_tensor_map(CUresult status) {
  if (status == CUDA_SUCCESS) return;
  std::fprintf(stderr, "The driver refuses a tensor map (error %d).\n", static_cast<int>(status));
  std::exit(2);
}

// A map of a tensor: sizes in elements, the innermost dimension first; strides in bytes of all others.
inline CUtensorMap tensor_map(void* tensor, CUtensorMapDataType type,
                              const std::vector<cuuint64_t>& dims,
                              const std::vector<cuuint64_t>& strides,
                              const std::vector<cuuint32_t>& box, CUtensorMapSwizzle swizzle) {
  static auto* encode = tensor_map_encoder<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const std::vector<cuuint32_t> every(dims.size(), 1);
  CUtensorMap map;
  check_tensor_map(encode(&map, type, static_cast<cuuint32_t>(dims.size()), tensor, dims.data(),
                          strides.data(), box.data(), every.data(),
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

// The same for im2col: `box` has channels and pixels, `lower` and `upper` are the corners of the box of
// pixels in W, H and D, and `steps` the elements from one pixel to the next in each dimension.
inline CUtensorMap im2col_map(void* tensor, CUtensorMapDataType type,
                              const std::vector<cuuint64_t>& dims,
                              const std::vector<cuuint64_t>& strides,
                              const std::vector<cuuint32_t>& box, const std::vector<int>& lower,
                              const std::vector<int>& upper, const std::vector<cuuint32_t>& steps,
                              CUtensorMapSwizzle swizzle) {
  static auto* encode = tensor_map_encoder<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  CUtensorMap map;
  check_tensor_map(encode(&map, type, static_cast<cuuint32_t>(dims.size()), tensor, dims.data(),
                          strides.data(), lower.data(), upper.data(), box[0], box[1], steps.data(),
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}
