/* The hot path as one library: built with the package for each instruction set, with LANE floats in a vector.
 *
 * Every entry point is called by as many threads as there are, each with the same job; they share its images by a
 * counter. Without a library, torch does the same.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTERFACE 2 /* raised whenever a struct or an entry point changes; kernels/__init__.py has the same number */

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Memory that starts on a cache line; the pointer to give to free() is left in *whole. */
static float *allocate(size_t n_floats, void **whole) {
    *whole = malloc(sizeof(float) * n_floats + 64);
    return *whole ? (float *)(((size_t)*whole + 63) / 64 * 64) : 0;
}

/* What all threads work on together. */
typedef struct {
    const void *plan;   /* a Plan or a Scatter */
    const void *task;   /* a Task, for the ascent */
    const float *input; /* one row for each image */
    void *results[5];   /* as each entry point says */
    int batch;
    int next;   /* the first image that nobody has taken */
    int failed; /* whether memory ran out */
} Job;

/* Take the next so many of the images; returns the first of them. */
static inline int take(Job *job, int count) { return __atomic_fetch_add(&job->next, count, __ATOMIC_RELAXED); }

#include "grid.c"
#include "circle.c"
#include "adaptive.c"
#include "fista.c"
#include "modes.c"
#include "sampling.c"

/* As many multiply-adds, or exponentials, as a core can do at most, against which the rest is held: AT_PEAK sums a
 * round that wait for nothing but themselves. */
#define AT_PEAK 10

static inline __attribute__((always_inline)) float repeat(int n_rounds, const int exponentials) {
    Vector sums[AT_PEAK];
    volatile float unknown = -0.5f; /* when this is compiled */
    const Vector by = (Vector){0} + unknown;
    for (int i = 0; i < AT_PEAK; i++) sums[i] = (Vector){0} + (float)i;
    for (int round = 0; round < n_rounds; round++)
        for (int i = 0; i < AT_PEAK; i++) sums[i] = exponentials ? exponential(sums[i] * by) : sums[i] * by + by;
    for (int i = 1; i < AT_PEAK; i++) sums[0] += sums[i];
    return sum(sums[0]);
}

EXPORT float exercise(int n_rounds, int exponentials) {
    return exponentials ? repeat(n_rounds, 1) : repeat(n_rounds, 0);
}

/* What the caller must agree with before it calls anything else. */
EXPORT void describe(int *numbers) {
    const int found[] = {INTERFACE, LANE, sizeof(Level), sizeof(Plan), sizeof(Task), sizeof(Scatter), sizeof(Job)};
    memcpy(numbers, found, sizeof found);
}
