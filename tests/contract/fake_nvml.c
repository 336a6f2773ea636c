/* A libnvidia-ml.so.1 for tests: two GPUs, no driver. Own prototypes, so that no CUDA header is needed.
 *
 * Environment: FAKE_NVML_STATE names a file with lines "MILLIJOULES MILLIWATTS CELSIUS MHZ ERROR", one a GPU, read on
 * every call; ERROR is the nvmlReturn_t that reads of that GPU answer. FAKE_NVML_INIT is what nvmlInit answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } *device_t;
static struct { int index; } devices[2] = {{0}, {1}};
typedef struct { unsigned long long mj; unsigned mw, celsius, mhz; int error; } state_t;

static int read_state(device_t device, state_t *state) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 999;
    for (int line = 0; line <= device->index; line++)
        if (fscanf(file, "%llu %u %u %u %d", &state->mj, &state->mw, &state->celsius, &state->mhz, &state->error) != 5) {
            fclose(file);
            return 999;
        }
    fclose(file);
    return state->error;
}

int nvmlInitWithFlags(unsigned flags) { const char *code = getenv("FAKE_NVML_INIT"); (void)flags; return code ? atoi(code) : 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.00-fake"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index > 1) return 2;
    *device = (device_t)&devices[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    if (strcmp(uuid, "GPU-fake-0") && strcmp(uuid, "GPU-fake-1")) return 6;
    return nvmlDeviceGetHandleByIndex_v2(uuid[9] - '0', device);
}

int nvmlDeviceGetUUID(device_t device, char *text, unsigned size) { snprintf(text, size, "GPU-fake-%d", device->index); return 0; }
int nvmlDeviceGetName(device_t device, char *text, unsigned size) { (void)device; snprintf(text, size, "Fake H100"); return 0; }

#define READ(name, type, value)                       \
    int name(device_t device, type *out) {            \
        state_t state;                                \
        int code = read_state(device, &state);        \
        if (!code) *out = (value);                    \
        return code;                                  \
    }
READ(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, state.mj)
READ(nvmlDeviceGetPowerUsage, unsigned, state.mw)

int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *celsius) {
    state_t state;
    int code = read_state(device, &state);
    (void)sensor;
    if (!code) *celsius = state.celsius;
    return code;
}

int nvmlDeviceGetClockInfo(device_t device, int type, unsigned *mhz) {
    state_t state;
    int code = read_state(device, &state);
    (void)type;
    if (!code) *mhz = state.mhz;
    return code;
}

static int list(unsigned *count, unsigned *out, const unsigned *values, unsigned n) {
    if (!out || *count < n) { *count = n; return 7; }
    *count = n;
    memcpy(out, values, n * sizeof *values);
    return 0;
}

int nvmlDeviceGetSupportedMemoryClocks(device_t device, unsigned *count, unsigned *out) {
    static const unsigned mhz[] = {2619, 1593};
    (void)device;
    return list(count, out, mhz, 2);
}

int nvmlDeviceGetSupportedGraphicsClocks(device_t device, unsigned memory_mhz, unsigned *count, unsigned *out) {
    static const unsigned high[] = {1980, 1965, 345}, low[] = {600, 345};
    (void)device;
    return memory_mhz == 2619 ? list(count, out, high, 3) : list(count, out, low, 2);
}
