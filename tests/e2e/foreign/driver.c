/* Calls a kernel library of another processor under an emulator: reads plans and numbers, writes what it found.
 *
 * driver LIBRARY INPUT OUTPUT. The input holds, in the machine's own layout, what test_foreign.py writes; kernel.c is
 * included for its structs alone, the functions are those of the library.
 */
#include <dlfcn.h>
#include <stdio.h>
#include "kernel.c"

static FILE *input, *output;

static void *numbers(size_t count) { /* ints or floats */
    void *memory = malloc(4 * count + 64);
    if (fread(memory, 4, count, input) != count) exit(3);
    return memory;
}

static int integer(void) { return *(int *)numbers(1); }
static float real(void) { return *(float *)numbers(1); }
static float *array(void) { return numbers(integer()); }

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) exit(4);
    return found;
}

static void run_grid(void *library) {
    Plan plan;
    Task task;
    void (*const find_moments)(Job *) = find(library, "moments"), (*const find_codes)(Job *) = find(library, "ascend");
    memcpy(&plan, numbers(7), 28);
    plan.place = (int *)array();
    plan.squares = array();
    plan.n_levels = integer();
    Level *levels = malloc(sizeof(Level) * plan.n_levels);
    for (int i = 0; i < plan.n_levels; i++) {
        levels[i].n = integer();
        levels[i].first = array();
        levels[i].columns = array();
        levels[i].rows = array();
        levels[i].lower = array();
    }
    plan.levels = levels;
    plan.least_points = real();
    plan.points_per_width = real();
    plan.tail = real();
    memcpy(&task, numbers(7), 28);
    task.dictionary = array();
    task.prior = array();
    const int batch = integer(), size = 2 * plan.n_irreps;
    const float *natural = array(), *images = array();
    float *codes = array(), *rotation = malloc(4 * size * batch), *log_partition = malloc(4 * batch);
    unsigned char *failed = malloc(batch);
    Job job = {&plan, &task, natural, {rotation, log_partition, failed}, batch};
    find_moments(&job);
    if (job.failed) exit(5);
    fwrite(rotation, 4, (size_t)size * batch, output);
    fwrite(log_partition, 4, batch, output);
    job = (Job){&plan, &task, images, {codes, failed}, batch};
    find_codes(&job);
    if (job.failed) exit(5);
    fwrite(codes, 4, (size_t)task.n_components * batch, output);
}

static void run_sampling(void *library) {
    Scatter plan;
    void (*const sample_all)(Job *) = find(library, "sample_clouds");
    plan.n_axes = integer();
    plan.n_cells = integer();
    plan.parent = (int *)array();
    plan.turn = (int *)array();
    plan.omega = array();
    plan.pairs = array();
    plan.n_even = integer();
    plan.n_pairs = integer();
    plan.even = array();
    plan.cloud = array();
    plan.share = array();
    plan.count = array();
    plan.n_climbs = integer();
    memcpy(&plan.spread, numbers(6), 24);
    const int batch = integer();
    const float *natural = array();
    float *values = array(), *total = malloc(8 * plan.n_cells * batch), *scale = malloc(4 * batch);
    float *squares = malloc(4 * batch);
    int *loud = malloc(4 * batch);
    Job job = {&plan, 0, natural, {values, total, scale, squares, loud}, batch};
    sample_all(&job);
    if (job.failed) exit(5);
    fwrite(values, 4, (size_t)plan.n_even * batch, output);
    fwrite(total, 4, (size_t)2 * plan.n_cells * batch, output);
    fwrite(scale, 4, batch, output);
    fwrite(squares, 4, batch, output);
    fwrite(loud, 4, batch, output);
}

int main(int n_arguments, char **arguments) {
    if (n_arguments != 4) return 2;
    void *library = dlopen(arguments[1], RTLD_NOW);
    input = fopen(arguments[2], "rb");
    output = fopen(arguments[3], "wb");
    if (!library || !input || !output) {
        fprintf(stderr, "%s\n", library ? "no file" : dlerror());
        return 2;
    }
    int found[7];
    ((void (*)(int *))find(library, "describe"))(found);
    fwrite(found, 4, 7, output);
    run_grid(library);
    run_sampling(library);
    fclose(output);
    return 0;
}
