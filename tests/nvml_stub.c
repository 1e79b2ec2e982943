/* A libnvidia-ml without a GPU: it answers what a file says at that moment.
 *
 * The file is named by NVML_STUB_STATE and has a line for each fact:
 *
 *   gpu     LABEL UUID TOTAL RESERVED USED UTILIZATION    bytes, and 0 to 100
 *   process LABEL PID BYTES      PID "self": who asks; BYTES -1: the driver does not tell
 *   error   FUNCTION LABEL CODE  the function answers with this nvmlReturn_t
 *   hang    FUNCTION LABEL       the function returns once this line is gone
 *
 * LABEL is the index of a GPU, 0, or of a part of one (MIG), 0:1; in the last two it may be *.
 * A GPU that has parts is in MIG mode. Without the file there is no driver. While a function hangs
 * there is a second file, named as the first with .hung after it.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25
};
enum { MOST = 32, PARTS = 8, TEXT = 96 };

typedef unsigned long long bytes_t;
typedef void *device_t; /* 1 + its place in the file of the GPUs; the file may not reorder them */

typedef struct { bytes_t total, free, used; } memory_t;
typedef struct { unsigned version; bytes_t total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; bytes_t used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned gpu, memory; } utilization_t;

typedef struct { char label[TEXT], uuid[TEXT]; bytes_t total, reserved, used; unsigned busy; } gpu_t;
typedef struct { char label[TEXT]; process_t process; } running_t;
typedef struct { char function[TEXT], label[TEXT]; int code; } fault_t; /* code -1: it hangs */
typedef struct {
    int gpus, processes, faults;
    gpu_t gpu[MOST];
    running_t process[MOST];
    fault_t fault[MOST];
} state_t;

static int read_state(state_t *state)
{
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4 * TEXT], pid[TEXT];
    long long used;
    memset(state, 0, sizeof *state);
    if (!file)
        return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        gpu_t *gpu = &state->gpu[state->gpus];
        running_t *running = &state->process[state->processes];
        fault_t *fault = &state->fault[state->faults];
        if (state->gpus == MOST || state->processes == MOST || state->faults == MOST)
            abort();
        if (sscanf(line, "gpu %95s %95s %llu %llu %llu %u", gpu->label, gpu->uuid, &gpu->total,
                   &gpu->reserved, &gpu->used, &gpu->busy) == 6) {
            state->gpus++;
        } else if (sscanf(line, "process %95s %95s %lld", running->label, pid, &used) == 3) {
            running->process.pid = strcmp(pid, "self") ? (unsigned)atoi(pid) : (unsigned)getpid();
            running->process.used = (bytes_t)used; /* -1 is NVML_VALUE_NOT_AVAILABLE */
            state->processes++;
        } else if (sscanf(line, "error %95s %95s %d", fault->function, fault->label,
                          &fault->code) == 3) {
            state->faults++;
        } else if (sscanf(line, "hang %95s %95s", fault->function, fault->label) == 2) {
            fault->code = -1;
            state->faults++;
        } else {
            abort();
        }
    }
    fclose(file);
    return OK;
}

static void tell_of_hang(void)
{
    char path[4096];
    FILE *file;
    snprintf(path, sizeof path, "%s.hung", getenv("NVML_STUB_STATE"));
    if ((file = fopen(path, "w")))
        fclose(file);
}

/* What the file says, once `function` does not hang; the error that it orders. */
static int enter(state_t *state, const char *function, const char *label)
{
    for (;;) {
        int code = read_state(state), i;
        for (i = 0; code == OK && i < state->faults; i++) {
            const fault_t *fault = &state->fault[i];
            if (!strcmp(fault->function, function) &&
                (!strcmp(fault->label, "*") || !strcmp(fault->label, label)))
                code = fault->code;
        }
        if (code >= 0)
            return code;
        tell_of_hang();
        usleep(5000);
    }
}

/* As `enter`, of a device. */
static int enter_device(state_t *state, const char *function, device_t device, gpu_t **gpu)
{
    size_t place = (size_t)device - 1;
    int code = read_state(state);
    if (code != OK)
        return code;
    if (place >= (size_t)state->gpus)
        return INVALID_ARGUMENT;
    *gpu = &state->gpu[place];
    return enter(state, function, (*gpu)->label);
}

static int is_part(const gpu_t *gpu) { return strchr(gpu->label, ':') != NULL; }

static int find(const state_t *state, const char *label, device_t *device)
{
    int i;
    for (i = 0; i < state->gpus; i++)
        if (!strcmp(state->gpu[i].label, label)) {
            *device = (device_t)(size_t)(i + 1);
            return OK;
        }
    return NOT_FOUND;
}

static int has_parts(const state_t *state, const gpu_t *gpu)
{
    int i;
    size_t length = strlen(gpu->label);
    for (i = 0; i < state->gpus; i++)
        if (!strncmp(state->gpu[i].label, gpu->label, length) &&
            state->gpu[i].label[length] == ':')
            return 1;
    return 0;
}

int nvmlInitWithFlags(unsigned flags)
{
    state_t state;
    (void)flags;
    return enter(&state, __func__, "*");
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code)
{
    static char text[TEXT];
    snprintf(text, sizeof text, "error %d of the stub", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    state_t state;
    int i, code = enter(&state, __func__, "*");
    for (*count = 0, i = 0; i < state.gpus; i++)
        *count += !is_part(&state.gpu[i]);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    state_t state;
    char label[TEXT];
    int code;
    snprintf(label, sizeof label, "%u", index);
    code = enter(&state, __func__, label);
    if (code != OK)
        return code;
    return find(&state, label, device) == OK ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    state_t state;
    int i, code = enter(&state, __func__, "*");
    for (i = 0; code == OK && i < state.gpus; i++)
        if (!strcmp(state.gpu[i].uuid, uuid)) {
            *device = (device_t)(size_t)(i + 1);
            return OK;
        }
    return code == OK ? NOT_FOUND : code;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, device, &gpu);
    if (code == OK)
        snprintf(uuid, length, "%s", gpu->uuid);
    return code;
}

int nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, device, &gpu);
    if (code == OK) {
        const char *part = strchr(gpu->label, ':');
        *index = (unsigned)atoi(part ? part + 1 : gpu->label);
    }
    return code;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, device, &gpu);
    if (code == OK)
        *current = *pending = (unsigned)has_parts(&state, gpu);
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, device, &gpu);
    if (code == OK)
        *count = PARTS;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *part)
{
    state_t state;
    gpu_t *gpu;
    char label[2 * TEXT];
    int code = enter_device(&state, __func__, device, &gpu);
    if (code != OK)
        return code;
    snprintf(label, sizeof label, "%s:%u", gpu->label, index);
    return find(&state, label, part);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t part, device_t *device)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, part, &gpu);
    if (code != OK)
        return code;
    if (!is_part(gpu))
        return INVALID_ARGUMENT;
    *strchr(gpu->label, ':') = '\0';
    return find(&state, gpu->label, device);
}

static bytes_t free_bytes(const gpu_t *gpu) { return gpu->total - gpu->reserved - gpu->used; }

/* Of a GPU in MIG mode only root is told. */
static int enter_memory(state_t *state, const char *function, device_t device, gpu_t **gpu)
{
    int code = enter_device(state, function, device, gpu);
    return code == OK && has_parts(state, *gpu) ? NO_PERMISSION : code;
}

/* As drivers since 510 do, it counts what is reserved as used. */
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_memory(&state, __func__, device, &gpu);
    if (code == OK) {
        memory->total = gpu->total;
        memory->free = free_bytes(gpu);
        memory->used = gpu->used + gpu->reserved;
    }
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_memory(&state, __func__, device, &gpu);
    if (code == OK && memory->version != (sizeof *memory | 2u << 24))
        code = VERSION_MISMATCH;
    if (code == OK) {
        memory->total = gpu->total;
        memory->reserved = gpu->reserved;
        memory->free = free_bytes(gpu);
        memory->used = gpu->used;
    }
    return code;
}

int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *utilization)
{
    state_t state;
    gpu_t *gpu;
    int code = enter_device(&state, __func__, device, &gpu);
    if (code == OK && (is_part(gpu) || has_parts(&state, gpu)))
        code = NOT_SUPPORTED;
    if (code == OK)
        utilization->gpu = utilization->memory = gpu->busy;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *processes)
{
    state_t state;
    gpu_t *gpu;
    unsigned room = *count;
    int i, code = enter_device(&state, __func__, device, &gpu);
    if (code != OK)
        return code;
    for (*count = 0, i = 0; i < state.processes; i++) {
        if (strcmp(state.process[i].label, gpu->label))
            continue;
        if (*count < room)
            processes[*count] = state.process[i].process;
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}
