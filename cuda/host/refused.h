// What only a card has. Each use that is compiled is refused with its reason.
#pragma once

namespace cuda_device {

#define CUHOST_TEXTURES "cannot run on the emulated GPU: textures and surfaces; pass the data as a pointer"
template <class T, int dimensions = 1, int mode = 0>
struct texture {
  static_assert(dimensions < 0, CUHOST_TEXTURES);
};
template <class T, int dimensions = 1>
struct surface {
  static_assert(dimensions < 0, CUHOST_TEXTURES);
};
using cudaTextureObject_t = unsigned long long;
using cudaSurfaceObject_t = unsigned long long;

// What host code in a kernel's file may mention, too.
using CUtexObject = cudaTextureObject_t;
using CUsurfObject = cudaSurfaceObject_t;
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaTextureType { cudaTextureType1D = 1, cudaTextureType2D, cudaTextureType3D, cudaSurfaceType2D = 2 };
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };
struct cudaArray;
typedef struct cudaArray* cudaArray_t;
struct cudaExtent {
  size_t width, height, depth;
};

using cudaGraphConditionalHandle = unsigned long long;
inline void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned)
    __attribute__((error("cannot run on the emulated GPU: conditional nodes of graphs")));

struct cuhost_Texel {
  template <class T>
  operator T() const;
};
#define CUHOST_FETCH(name)                                                               \
  template <class T, class... Rest>                                                      \
  T name(Rest...) __attribute__((error(CUHOST_TEXTURES)));                               \
  template <class... Rest>                                                               \
  cuhost_Texel name(Rest...) __attribute__((error(CUHOST_TEXTURES)));
CUHOST_FETCH(tex1D)
CUHOST_FETCH(tex1Dfetch)
CUHOST_FETCH(tex1DLod)
CUHOST_FETCH(tex1DGrad)
CUHOST_FETCH(tex1DLayered)
CUHOST_FETCH(tex2D)
CUHOST_FETCH(tex2DLod)
CUHOST_FETCH(tex2DGrad)
CUHOST_FETCH(tex2DLayered)
CUHOST_FETCH(tex2Dgather)
CUHOST_FETCH(tex3D)
CUHOST_FETCH(tex3DLod)
CUHOST_FETCH(tex3DGrad)
CUHOST_FETCH(texCubemap)
CUHOST_FETCH(texCubemapLayered)
CUHOST_FETCH(surf1Dread)
CUHOST_FETCH(surf1Dwrite)
CUHOST_FETCH(surf2Dread)
CUHOST_FETCH(surf2Dwrite)
CUHOST_FETCH(surf3Dread)
CUHOST_FETCH(surf3Dwrite)
CUHOST_FETCH(surf2DLayeredread)
CUHOST_FETCH(surf2DLayeredwrite)
#undef CUHOST_FETCH

}  // namespace cuda_device

// The translator takes them from the text. Others come from a macro.
#define __shared__ cuhost_shared_in_a_macro
#define __builtin_assume(...) ((void)0)
#define __block_size__(...)
#define __maxnreg__(...)
