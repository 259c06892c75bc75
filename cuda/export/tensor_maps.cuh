// Tensor maps: what a kernel is told of a tensor for copies by the tensor memory accelerator.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

// The driver's function, found at run time: programs need not be linked with the driver's library.
inline auto* tensor_map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaError_t status = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    std::fprintf(stderr, "Tensor maps need a driver of CUDA 12 or later: update it.\n");
    std::exit(2);
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

// A map of a tensor: sizes in elements, the innermost dimension first; strides in bytes of all others.
inline CUtensorMap tensor_map(void* tensor, CUtensorMapDataType type,
                              const std::vector<cuuint64_t>& dims,
                              const std::vector<cuuint64_t>& strides,
                              const std::vector<cuuint32_t>& box, CUtensorMapSwizzle swizzle) {
  static auto* encode = tensor_map_encoder();
  const std::vector<cuuint32_t> every(dims.size(), 1);
  CUtensorMap map;
  CUresult status = encode(&map, type, static_cast<cuuint32_t>(dims.size()), tensor, dims.data(),
                           strides.data(), box.data(), every.data(),
                           CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    std::fprintf(stderr, "The driver refuses a tensor map (error %d).\n", static_cast<int>(status));
    std::exit(2);
  }
  return map;
}
