// A libcuda of the GPUs whose numbers STUB_CUDA lists, such as "21"; without it, of both in NVML's order.
#include <stdlib.h>
#include <string.h>
static const char *gpus(void) { return getenv("STUB_CUDA") ?: "12"; }
static int status(const char *name) { const char *s = getenv("STUB_CUDA_FAIL"); return s && !strcmp(s, name) ? 100 : 0; }
int cuInit(unsigned flags) { return status("cuInit"); }
int cuDeviceGetCount(int *count) { *count = strlen(gpus()); return status("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return status("cuDeviceGet"); }
int cuDeviceGetUuid(unsigned char *raw, int device) { memset(raw, 0x11 * (gpus()[device] - '0'), 16); return 0; }
int cuDeviceGetUuid_v2(unsigned char *raw, int device) { return cuDeviceGetUuid(raw, device); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
