// A libnvidia-ml of two GPUs. STUB_FAIL="nvmlX=15 nvmlY=3@2": what nvmlX returns, and nvmlY from its second call on.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u32 pid; u64 memory; u32 gpu, compute; } Process;
typedef struct { u32 pid; u64 memory; } Process1;
typedef struct { u32 field, scope; u64 stamp, latency; u32 type, status; union { u32 u; u64 ull; } value; } Field;
typedef struct { u64 stamp; union { u32 u; u64 ull; } value; } Sample;
static long number(const char *name, long usual) { const char *s = getenv(name); return s ? atol(s) : usual; }
static int failure(const char *name, int call) {
    const char *all = getenv("STUB_FAIL"), *at = all ? strstr(all, name) : 0;
    int code = 0, first = 1;
    for (; at; at = strstr(at + 1, name))
        if (sscanf(at + strlen(name), "=%d@%d", &code, &first) > 0) return call >= first ? code : 0;
    return 0;
}
#define CALL(name, ...) int name(__VA_ARGS__) { static int calls; int code = failure(#name, ++calls); if (code) return code;
#define TELL(name, type, value) CALL(name, void *gpu, type *out) *out = (value); return 0; }
#define TEXT(text) (snprintf(out, size, "%s", text) >= (int)size ? 7 : 0)
#define LIST(type, ...) u32 room = *count; *count = n; if (!out && n) return 7; if (room < n) return 7; \
    for (u32 i = 0; i < n; i++) out[i] = (type)__VA_ARGS__; return 0
#define RUNNING(name, type, ...) CALL(name, void *gpu, u32 *count, type *out) \
    u32 n = number("STUB_PROCESSES", 0) + (out ? number("STUB_LATECOMERS", 0) : 0); LIST(type, __VA_ARGS__); }

const char *nvmlErrorString(int code) { return getenv("STUB_ERROR") ?: "stub"; }
CALL(nvmlInitWithFlags, u32 flags) return 0; }
CALL(nvmlShutdown, void) return 0; }
CALL(nvmlSystemGetDriverVersion, char *out, u32 size) return TEXT("535.98"); }
CALL(nvmlSystemGetNVMLVersion, char *out, u32 size) return TEXT("12.535.98"); }
CALL(nvmlSystemGetCudaDriverVersion_v2, int *out) *out = 12020; return 0; }
CALL(nvmlDeviceGetCount_v2, u32 *out) *out = 2; return 0; }
CALL(nvmlDeviceGetHandleByIndex_v2, u32 index, void **out) *out = (void *)(1L + index); return index < 2 ? 0 : 6; }
CALL(nvmlDeviceGetHandleByUUID, const char *uuid, void **out)
    *out = (void *)(long)(uuid[4] - '0');
    return strlen(uuid) == 40 && (uuid[4] == '1' || uuid[4] == '2') ? 0 : 6; }
CALL(nvmlDeviceGetUUID, long gpu, char *out, u32 size)
    char uuid[] = "GPU-11111111-1111-1111-1111-111111111111";
    for (char *c = uuid; *c; c++) if (*c == '1') *c = '0' + gpu;
    return TEXT(uuid); }
CALL(nvmlDeviceGetName, void *gpu, char *out, u32 size) return TEXT(getenv("STUB_NAME") ?: "NVIDIA A10"); }
TELL(nvmlDeviceGetIndex, u32, (long)gpu - 1)
TELL(nvmlDeviceGetPersistenceMode, u32, 1)
TELL(nvmlDeviceGetComputeMode, u32, 0)
TELL(nvmlDeviceGetNumGpuCores, u32, 9216)
TELL(nvmlDeviceGetPowerManagementLimit, u32, 150000)
TELL(nvmlDeviceGetEnforcedPowerLimit, u32, 150000)
TELL(nvmlDeviceGetPowerUsage, u32, 60000 + calls % 5)
TELL(nvmlDeviceGetTotalEnergyConsumption, u64, 1000000ull + 100 * calls)
TELL(nvmlDeviceGetCurrentClocksEventReasons, u64, 1)
TELL(nvmlDeviceGetCurrentClocksThrottleReasons, u64, 4)
CALL(nvmlDeviceGetTemperature, void *gpu, u32 sensor, u32 *out) *out = 40; return 0; }
CALL(nvmlDeviceGetClockInfo, void *gpu, u32 kind, u32 *out) *out = 1000 + kind; return 0; }
CALL(nvmlDeviceGetMigMode, void *gpu, u32 *now, u32 *then) *now = *then = number("STUB_MIG", 0); return 0; }
CALL(nvmlDeviceGetCudaComputeCapability, void *gpu, int *major, int *minor) *major = 8; *minor = 6; return 0; }
CALL(nvmlDeviceGetPowerManagementLimitConstraints, void *gpu, u32 *low, u32 *high) *low = 100000; *high = 150000; return 0; }
CALL(nvmlDeviceGetSupportedMemoryClocks, void *gpu, u32 *count, u32 *out) u32 n = 2; LIST(u32, (6251 - i)); }
CALL(nvmlDeviceGetSupportedGraphicsClocks, void *gpu, u32 memory, u32 *count, u32 *out) u32 n = 9; LIST(u32, (210 + 15 * i)); }
CALL(nvmlDeviceGetFieldValues, void *gpu, int n, Field *out)
    for (int i = 0; i < n; i++) out[i].value.u = 61000, out[i].status = number("STUB_FIELD", 0);
    return 0; }
// As real ones may: it writes samples that came since it was asked how many there are.
CALL(nvmlDeviceGetSamples, void *gpu, u32 kind, u64 since, u32 *type, u32 *count, Sample *out)
    u32 n = 119 + (out ? number("STUB_LATECOMERS", 0) : 0);
    *type = 1; *count = n;
    for (u32 i = 0; out && i < n; i++) out[i] = (Sample){since + 20000 * (i + 1), {60000}};
    return 0; }
RUNNING(nvmlDeviceGetComputeRunningProcesses, Process1, {i + 100, ~0ull})
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, Process, {i + 200, 2ull << 20, ~0u, ~0u})
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, Process, {i + 300, 3ull << 20, ~0u, ~0u})
