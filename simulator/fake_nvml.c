/* A libnvidia-ml.so.1 without a GPU: the calls of NVML that joulegate makes, on GPUs that live in a file.
 *
 * FAKE_NVML_STATE names that file; its layout and its physics are also simulator/gpu_state.py's, and one contract suite
 * holds the two equal. Every call opens, locks, reads, writes and closes it, so that processes share the GPUs and a
 * process that is killed leaves no lock and no half-written record behind. Own prototypes: no CUDA header is needed. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, UNKNOWN = 999 };
enum { IDLE = 1, SW_POWER_CAP = 4 };
enum { POWER_AVERAGE = 185, POWER_INSTANT = 186 };
enum { AMPERE = 7, MAX_GPUS = 64 };

typedef struct {
    char magic[8];
    int64_t count, generation, init_error;
    double hand_s; /* above 0: the time, set by hand; else CLOCK_MONOTONIC */
    char driver[32];
    char unused[184];
} header_t;

typedef struct {
    char uuid[64], name[64];
    int64_t architecture, min_mhz, max_mhz, step_mhz, memory_mhz;
    int64_t locked_min_mhz, locked_max_mhz;   /* the lock as last set; 0 = none */
    int64_t before_min_mhz, before_max_mhz;   /* the lock in force until effect_s */
    int64_t bin_mhz, deaf, throttle_mhz, throttle_reasons, read_error, write_error, old_driver, writes;
    double effect_s, delay_s, call_s, load, given_w, energy_j, settled_s, average_w, temperature_c;
    double idle_w, limit_w, tdp_w, min_limit_w;
    char unused[144];
} gpu_t;

_Static_assert(sizeof(header_t) == 256 && sizeof(gpu_t) == 512, "gpu_state.py says the same");

typedef struct { int index; } *device_t;
static struct { int index; } devices[MAX_GPUS];
static int64_t seen_generation = -1; /* of the driver that this process met at its last nvmlInit; -1 before it */
static int inits;

static int open_state(header_t *header) {
    const char *path = getenv("FAKE_NVML_STATE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return -1;
    if (flock(file, LOCK_EX) || pread(file, header, sizeof *header, 0) != sizeof *header ||
        memcmp(header->magic, "JGNVML01", 8) || header->count > MAX_GPUS) {
        close(file);
        return -1;
    }
    return file;
}

static double now(const header_t *header) {
    struct timespec t;
    if (header->hand_s > 0) return header->hand_s;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* --- physics; the same in gpu_state.py */

static double watts_at(const gpu_t *g, int64_t mhz) {
    double share = (double)mhz / g->max_mhz;
    return g->idle_w + g->load * (g->tdp_w - g->idle_w) * share * share;
}

static int64_t bin(const gpu_t *g, int64_t mhz) {
    int64_t step = g->bin_mhz ? g->bin_mhz : g->step_mhz, up = g->bin_mhz ? step - 1 : 0;
    if (mhz < g->min_mhz) mhz = g->min_mhz;
    mhz = g->min_mhz + (mhz - g->min_mhz + up) / step * step;
    return mhz < g->max_mhz ? mhz : g->max_mhz;
}

/* The clock under load when the lock allows `top` (0: no lock), and why it is lower if it is. */
static int64_t loaded_mhz(const gpu_t *g, int64_t top, uint64_t *reasons) {
    int64_t mhz = top ? bin(g, top) : g->max_mhz;
    if (g->throttle_mhz && g->throttle_mhz < mhz) {
        mhz = g->throttle_mhz;
        *reasons |= (uint64_t)g->throttle_reasons;
    }
    while (g->given_w < 0 && mhz > g->min_mhz && watts_at(g, mhz) > g->limit_w) {
        mhz -= g->step_mhz;
        *reasons |= SW_POWER_CAP;
    }
    return mhz;
}

static double watts(const gpu_t *g, int64_t top) {
    uint64_t reasons = 0;
    return g->given_w >= 0 ? g->given_w : watts_at(g, loaded_mhz(g, top, &reasons));
}

static void run_for(gpu_t *g, double seconds, double w) {
    double target_c = 30 + 45 * w / g->tdp_w;
    g->energy_j += w * seconds;
    g->average_w += (w - g->average_w) * (seconds < 1 ? seconds : 1);
    g->temperature_c += (target_c - g->temperature_c) * (seconds < 20 ? seconds / 20 : 1);
}

static void settle(gpu_t *g, double now_s) {
    if (g->settled_s < g->effect_s && g->effect_s <= now_s) {
        run_for(g, g->effect_s - g->settled_s, watts(g, g->before_max_mhz));
        g->settled_s = g->effect_s;
    }
    if (now_s > g->settled_s) {
        run_for(g, now_s - g->settled_s, watts(g, now_s < g->effect_s ? g->before_max_mhz : g->locked_max_mhz));
        g->settled_s = now_s;
    }
}

static int64_t clock_now(const gpu_t *g, uint64_t *reasons) {
    int early = g->settled_s < g->effect_s;
    int64_t low = early ? g->before_min_mhz : g->locked_min_mhz;
    if (g->load > 0) return loaded_mhz(g, early ? g->before_max_mhz : g->locked_max_mhz, reasons);
    *reasons |= IDLE;
    return low > g->min_mhz ? low : g->min_mhz;
}

static void lock(gpu_t *g, int64_t low, int64_t high) {
    if (g->deaf) return;
    if (g->settled_s >= g->effect_s) {
        g->before_min_mhz = g->locked_min_mhz;
        g->before_max_mhz = g->locked_max_mhz;
    }
    g->locked_min_mhz = low;
    g->locked_max_mhz = high;
    g->effect_s = g->settled_s + g->delay_s;
}

/* --- one call on one GPU */

typedef int (*action_t)(gpu_t *g, void *in, void *out);

static int call(device_t device, int writes, action_t action, void *in, void *out) {
    header_t header;
    gpu_t g;
    int file, code;
    off_t at = sizeof header + (off_t)device->index * sizeof g;
    if (!inits || (file = open_state(&header)) < 0) return UNINITIALIZED;
    if (header.generation != seen_generation) { close(file); return UNINITIALIZED; }
    if (pread(file, &g, sizeof g, at) != sizeof g) { close(file); return UNKNOWN; }
    if (writes && g.call_s > 0) { /* the driver is busy, the GPU works on: nobody else waits for the file */
        struct timespec busy = {(time_t)g.call_s, (long)((g.call_s - (time_t)g.call_s) * 1e9)};
        flock(file, LOCK_UN);
        nanosleep(&busy, NULL);
        flock(file, LOCK_EX);
        if (pread(file, &g, sizeof g, at) != sizeof g) { close(file); return UNKNOWN; }
    }
    settle(&g, now(&header));
    code = (int)(g.read_error ? g.read_error : writes ? g.write_error : 0);
    if (!code) code = action(&g, in, out);
    if (!code && writes) g.writes++;
    if (pwrite(file, &g, sizeof g, at) != sizeof g) code = UNKNOWN;
    close(file);
    return code;
}

/* --- the library and its devices */

int nvmlInitWithFlags(unsigned flags) {
    header_t header;
    int file = open_state(&header);
    (void)flags;
    if (file < 0) return DRIVER_NOT_LOADED;
    close(file);
    if (header.init_error) return (int)header.init_error;
    seen_generation = header.generation;
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    inits++;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return inits > 0 ? (inits--, SUCCESS) : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

static int look(header_t *header) {
    int file = inits ? open_state(header) : -1;
    if (file < 0) return UNINITIALIZED;
    close(file);
    return header->generation == seen_generation ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    header_t header;
    int code = look(&header);
    if (!code) snprintf(text, size, "%.32s", header.driver);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    header_t header;
    int code = look(&header);
    if (!code) *count = (unsigned)header.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    unsigned count = 0;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code) return code;
    if (index >= count) return INVALID_ARGUMENT;
    *device = (device_t)&devices[index];
    return SUCCESS;
}

/* NVML names and finds its devices even when they are lost, and so does this. */
static int record(device_t device, gpu_t *g) {
    header_t header;
    int file = inits ? open_state(&header) : -1;
    if (file < 0) return UNINITIALIZED;
    int read = pread(file, g, sizeof *g, sizeof header + (off_t)device->index * sizeof *g) == sizeof *g;
    close(file);
    return read && header.generation == seen_generation ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    unsigned count = 0;
    int code = nvmlDeviceGetCount_v2(&count);
    for (unsigned i = 0; !code && i < count; i++) {
        gpu_t g;
        *device = (device_t)&devices[i];
        code = record(*device, &g);
        if (!code && !strcmp(g.uuid, uuid)) return SUCCESS;
    }
    return code ? code : NOT_FOUND;
}

#define TEXT(function, field)                                      \
    int function(device_t device, char *text, unsigned size) {     \
        gpu_t g;                                                   \
        int code = record(device, &g);                             \
        if (!code) snprintf(text, size, "%s", g.field);            \
        return code;                                               \
    }
TEXT(nvmlDeviceGetUUID, uuid)
TEXT(nvmlDeviceGetName, name)

/* --- reads */

#define READ(function, type, value)                                                                             \
    static int function##_(gpu_t *g, void *in, void *out) { (void)in; *(type *)out = (type)(value); return 0; } \
    int function(device_t device, type *out) { return call(device, 0, function##_, NULL, out); }

static int averages(const gpu_t *g) { return g->architecture >= AMPERE && !strstr(g->name, "A100"); }
static double instant_w(const gpu_t *g) {
    return watts(g, g->settled_s < g->effect_s ? g->before_max_mhz : g->locked_max_mhz);
}
static uint64_t reasons_now(const gpu_t *g) { uint64_t reasons = 0; clock_now(g, &reasons); return reasons; }

READ(nvmlDeviceGetArchitecture, unsigned, g->architecture)
READ(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, g->energy_j * 1e3)
READ(nvmlDeviceGetPowerUsage, unsigned, (averages(g) ? g->average_w : instant_w(g)) * 1e3 + 0.5)
READ(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons_now(g))
READ(nvmlDeviceGetPowerManagementLimit, unsigned, g->limit_w * 1e3 + 0.5)
READ(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, g->tdp_w * 1e3 + 0.5)

static int limits(gpu_t *g, void *in, void *out) {
    *(unsigned *)in = (unsigned)(g->min_limit_w * 1e3 + 0.5);
    *(unsigned *)out = (unsigned)(g->tdp_w * 1e3 + 0.5);
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimitConstraints(device_t d, unsigned *low, unsigned *high) { return call(d, 0, limits, low, high); }

static int celsius(gpu_t *g, void *in, void *out) {
    if (in && g->old_driver) return FUNCTION_NOT_FOUND;
    *(unsigned *)out = (unsigned)(g->temperature_c + 0.5);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device_t d, int sensor, unsigned *out) { (void)sensor; return call(d, 0, celsius, NULL, out); }
typedef struct { unsigned version, sensor; int celsius; } temperature_t;
int nvmlDeviceGetTemperatureV(device_t d, temperature_t *t) { return call(d, 0, celsius, t, &t->celsius); }

static int sm_clock(gpu_t *g, void *in, void *out) {
    uint64_t reasons = 0;
    (void)in;
    *(unsigned *)out = (unsigned)clock_now(g, &reasons);
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device_t d, int type, unsigned *out) { (void)type; return call(d, 0, sm_clock, NULL, out); }

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int32_t type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_t;

static int field(gpu_t *g, void *in, void *out) {
    field_t *f = out;
    (void)in;
    f->type = 1; /* unsigned int */
    f->code = g->old_driver || (f->field != POWER_INSTANT && f->field != POWER_AVERAGE) ? NOT_SUPPORTED : SUCCESS;
    f->value.u = (unsigned)((f->field == POWER_INSTANT ? instant_w(g) : g->average_w) * 1e3 + 0.5);
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields) {
    int code = SUCCESS;
    for (int i = 0; !code && i < count; i++) code = call(device, 0, field, NULL, &fields[i]);
    return code;
}

typedef struct { unsigned memory_mhz, *count, *out; } list_t;

static int memory_clocks(gpu_t *g, void *in, void *out) {
    list_t *list = in;
    (void)out;
    if (!list->out || *list->count < 1) { *list->count = 1; return INSUFFICIENT_SIZE; }
    *list->count = 1;
    list->out[0] = (unsigned)g->memory_mhz;
    return SUCCESS;
}
int nvmlDeviceGetSupportedMemoryClocks(device_t d, unsigned *count, unsigned *out) {
    list_t list = {0, count, out};
    return call(d, 0, memory_clocks, &list, NULL);
}

static int graphics_clocks(gpu_t *g, void *in, void *out) {
    list_t *list = in;
    unsigned n = (unsigned)((g->max_mhz - g->min_mhz) / g->step_mhz + 1);
    (void)out;
    if (list->memory_mhz != (unsigned)g->memory_mhz) return NOT_FOUND;
    if (!list->out || *list->count < n) { *list->count = n; return INSUFFICIENT_SIZE; }
    *list->count = n;
    for (unsigned i = 0; i < n; i++) list->out[i] = (unsigned)(g->max_mhz - i * g->step_mhz);
    return SUCCESS;
}
int nvmlDeviceGetSupportedGraphicsClocks(device_t d, unsigned memory_mhz, unsigned *count, unsigned *out) {
    list_t list = {memory_mhz, count, out};
    return call(d, 0, graphics_clocks, &list, NULL);
}

/* --- writes */

static int set_lock(gpu_t *g, void *in, void *out) {
    int64_t *range = in;
    (void)out;
    if (range[0] > range[1] || range[1] <= 0) return INVALID_ARGUMENT;
    lock(g, range[0], range[1]);
    return SUCCESS;
}
int nvmlDeviceSetGpuLockedClocks(device_t d, unsigned low, unsigned high) {
    int64_t range[2] = {low, high};
    return call(d, 1, set_lock, range, NULL);
}

static int reset_lock(gpu_t *g, void *in, void *out) { (void)in; (void)out; lock(g, 0, 0); return SUCCESS; }
int nvmlDeviceResetGpuLockedClocks(device_t d) { return call(d, 1, reset_lock, NULL, NULL); }

static int set_limit(gpu_t *g, void *in, void *out) {
    double w = *(unsigned *)in / 1e3;
    (void)out;
    if (w < g->min_limit_w || w > g->tdp_w) return INVALID_ARGUMENT;
    g->limit_w = w;
    return SUCCESS;
}
int nvmlDeviceSetPowerManagementLimit(device_t d, unsigned milliwatts) { return call(d, 1, set_limit, &milliwatts, NULL); }
