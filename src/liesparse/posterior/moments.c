/* Moments of P(s) ∝ exp(η·T(s)) on the 2-torus, one posterior at a time, all of it in the first cache.
 *
 * A coarse grid near the Nyquist rate gives the peak and how fine a grid is needed (as in adaptive.py);
 * the trapezoidal sum then runs over those rows and columns of the fine grid that come near the peak.
 * Built by native.py on first use; without a compiler adaptive.py does the same in torch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANE 16
#define PAD(n) (((n) + LANE - 1) / LANE * LANE)

typedef float Vector __attribute__((vector_size(4 * LANE), aligned(4)));
typedef int Integers __attribute__((vector_size(4 * LANE), aligned(4)));

typedef struct {
    int n_first, n_last;              /* sizes of the frequency box */
    int lowest_first, lowest_last;    /* its smallest frequencies */
    int has_zero;                     /* whether the box has a cell for ω = 0 */
    int n_levels;
    const int *n_points;              /* per level: points per axis; level 0 is the coarse grid */
    const float *const *first;        /* per level: (point, p, cos|sin) */
    const float *const *last_columns; /* per level: (cos|sin, q, point padded) */
    const float *const *last_rows;    /* per level: (point, cos|sin, q padded) */
    float least_points, points_per_width, tail;
} Plan;

typedef struct {
    float *parts, *packed, *values, *row_max, *column_max;
    int *rows, *columns;
} Work;

static inline Vector load(const float *from) { return *(const Vector *)from; }
static inline void store(float *to, Vector value) { *(Vector *)to = value; }
static inline Vector larger(Vector a, Vector b) {
    const Integers first = a > b;
    return (Vector)((first & (Integers)a) | (~first & (Integers)b));
}

/* exp(x) for -87 < x <= 0: 2^k times a polynomial, relative error 2e-7 */
static inline Vector exponential(Vector x) {
    const Integers power = __builtin_convertvector(x * 1.44269504f - 0.5f, Integers); /* rounds, as x <= 0 */
    const Vector k = __builtin_convertvector(power, Vector);
    Vector r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (Vector)((power + 127) << 23);
}

/* parts[p][cos|sin][column] = Σ_q (a + ib) exp(-iqs) */
static void turn_last(const Plan *plan, const float *natural, const float *table, int width, float *parts) {
    const int n_last = plan->n_last;
    for (int p = 0; p < plan->n_first; p++) {
        const float *row = natural + 2 * p * n_last;
        for (int block = 0; block < width; block += LANE) {
            Vector re = {0}, im = {0}, re2 = {0}, im2 = {0};
            for (int q = 0; q < n_last; q++) {
                const Vector cosine = load(table + q * width + block), sine = load(table + (n_last + q) * width + block);
                re += row[2 * q] * cosine;
                re2 += row[2 * q + 1] * sine;
                im += row[2 * q + 1] * cosine;
                im2 += row[2 * q] * sine;
            }
            store(parts + 2 * p * width + block, re + re2);
            store(parts + (2 * p + 1) * width + block, im - im2);
        }
    }
}

/* values[i][column] = Σ_j weights of row i · parts[j][column], four rows at a time */
static void turn_first(const Plan *plan, const float *parts, const float *table, const int *rows, int n_rows, int width,
                       float *values) {
    const int n = 2 * plan->n_first;
    for (int i = 0; i < n_rows; i += 4) {
        const float *a = table + n * rows[i];
        const float *b = table + n * rows[i + 1 < n_rows ? i + 1 : i];
        const float *c = table + n * rows[i + 2 < n_rows ? i + 2 : i];
        const float *d = table + n * rows[i + 3 < n_rows ? i + 3 : i];
        for (int block = 0; block < width; block += LANE) {
            Vector va = {0}, vb = {0}, vc = {0}, vd = {0};
            for (int j = 0; j < n; j++) {
                const Vector part = load(parts + j * width + block);
                va += a[j] * part;
                vb += b[j] * part;
                vc += c[j] * part;
                vd += d[j] * part;
            }
            float *to = values + (size_t)i * width + block; /* the buffer has room for three rows more */
            store(to, va);
            store(to + width, vb);
            store(to + 2 * width, vc);
            store(to + 3 * width, vd);
        }
    }
}

/* parts[j][column] = Σ_i weights of row i · values[i][column], four functions at a time */
static void project_first(const Plan *plan, const float *values, const float *table, const int *rows, int n_rows,
                          int width, float *parts) {
    const int n = 2 * plan->n_first;
    for (int j = 0; j < n; j += 4) {
        const int k = j + 2 < n ? j + 2 : j; /* n is even; the buffer has room for two functions more */
        for (int block = 0; block < width; block += LANE) {
            Vector va = {0}, vb = {0}, vc = {0}, vd = {0};
            for (int i = 0; i < n_rows; i++) {
                const Vector value = load(values + (size_t)i * width + block);
                const float *weights = table + n * rows[i];
                va += weights[j] * value;
                vb += weights[j + 1] * value;
                vc += weights[k] * value;
                vd += weights[k + 1] * value;
            }
            float *to = parts + j * width + block;
            store(to, va);
            store(to + width, vb);
            store(to + 2 * width, vc);
            store(to + 3 * width, vd);
        }
    }
}

/* rotation[p][q] = Σ_column parts[p] exp(iqs) / total */
static void project_last(const Plan *plan, const float *parts, const float *table, const int *columns, int n_columns,
                         int width, float total, float *rotation) {
    const int n_last = plan->n_last, padded = PAD(n_last);
    for (int block = 0; block < n_last; block += LANE) {
        const int count = n_last - block < LANE ? n_last - block : LANE;
        for (int p = 0; p < plan->n_first; p++) {
            const float *cosines = parts + 2 * p * width, *sines = cosines + width;
            Vector re = {0}, im = {0}, re2 = {0}, im2 = {0};
            for (int c = 0; c < n_columns; c++) {
                const float *row = table + 2 * padded * columns[c] + block;
                const Vector cosine = load(row), sine = load(row + padded);
                re += cosines[c] * cosine;
                re2 += sines[c] * sine;
                im += cosines[c] * sine;
                im2 += sines[c] * cosine;
            }
            const Vector x = (re - re2) / total, y = (im + im2) / total;
            float *to = rotation + 2 * (p * n_last + block);
            for (int q = 0; q < count; q++) {
                to[2 * q] = x[q];
                to[2 * q + 1] = y[q];
            }
        }
    }
}

/* Fine points of one axis at which the largest value, interpolated from the coarse nodes, comes within tail of the top. */
static int choose(const float *largest, int n_coarse, int n_fine, float tail, int *chosen) {
    float top = -1e30f;
    for (int i = 0; i < n_coarse; i++) top = largest[i] > top ? largest[i] : top;
    const float step = (float)n_coarse / n_fine, per_node = (float)n_fine / n_coarse;
    int count = 0, f = 0;
    for (int node = 0; node <= n_coarse; node++) { /* node n is node 0 again, seen from the other side */
        const int end = node == n_coarse ? n_fine : (int)ceilf((node + 0.5f) * per_node);
        const float here = largest[node == n_coarse ? 0 : node], left = largest[node ? node - 1 : n_coarse - 1];
        const float right = largest[node + 1 < n_coarse ? node + 1 : node + 1 - n_coarse];
        const float slope = 0.5f * (right - left), bend = 0.5f * (right + left) - here;
        if (here + 0.5f * fabsf(slope) + 0.25f * fabsf(bend) < top - tail) {
            f = end;
            continue;
        }
        for (; f < end; f++) {
            const float t = f * step - node;
            chosen[count] = f;
            count += here + t * (slope + t * bend) > top - tail;
        }
    }
    return count;
}

/* Look at the coarse grid: which level resolves the posterior (n_levels if none), and which of its points matter. */
static int look(const Plan *plan, const float *natural, Work *work, int *n_rows, int *n_columns) {
    const int n_first = plan->n_first, n_last = plan->n_last, n_coarse = plan->n_points[0], wide = PAD(n_coarse);
    /* The coarse grid and its largest values along both axes; the padded columns hold zeros and are not read. */
    for (int i = 0; i < n_coarse; i++) work->rows[i] = i;
    turn_last(plan, natural, plan->last_columns[0], wide, work->parts);
    turn_first(plan, work->parts, plan->first[0], work->rows, n_coarse, wide, work->values);
    for (int j = 0; j < wide; j += LANE) {
        Vector largest = load(work->values + j);
        for (int i = 1; i < n_coarse; i++) largest = larger(largest, load(work->values + i * wide + j));
        store(work->column_max + j, largest);
    }
    float peak = -1e30f;
    for (int i = 0; i < n_coarse; i++) {
        const float *row = work->values + i * wide;
        float largest = row[0];
        for (int j = 1; j < n_coarse; j++) largest = row[j] > largest ? row[j] : largest;
        work->row_max[i] = largest;
        peak = largest > peak ? largest : peak;
    }
    const int zero = plan->has_zero ? 2 * (-plan->lowest_first * n_last - plan->lowest_last) : 0;
    const float mean = plan->has_zero ? natural[zero] : 0;
    /* Curvature at the peak: its height times the mean square frequency. */
    float size = 0, first_square = 0, last_square = 0;
    for (int p = 0; p < n_first; p++) {
        const float x = p + plan->lowest_first;
        float row_size = 0, row_square = 0;
        for (int q = 0; q < n_last; q++) {
            const float y = q + plan->lowest_last;
            const float length = fabsf(natural[2 * (p * n_last + q)]) + fabsf(natural[2 * (p * n_last + q) + 1]);
            row_size += length;
            row_square += length * y * y;
        }
        size += row_size;
        first_square += x * x * row_size;
        last_square += row_square;
    }
    size -= plan->has_zero ? fabsf(mean) + fabsf(natural[zero + 1]) : 0; /* ω = 0 has height but no curvature */
    const float height = peak - mean, bend1 = height * first_square / (size + 1e-30f);
    const float bend2 = height * last_square / (size + 1e-30f);
    const float needed = plan->least_points + plan->points_per_width * sqrtf(bend1 > bend2 ? bend1 : bend2);
    int level = 0;
    while (level < plan->n_levels && plan->n_points[level] < needed) level++;
    if (level == plan->n_levels) return level;
    /* A mode between coarse nodes stands higher than it seems, by up to a quarter of the drop over one cell. */
    const int n_fine = plan->n_points[level];
    const float half_square = 0.5f * (6.2831853f / n_coarse) * (6.2831853f / n_coarse);
    const float drop1 = half_square * bend1, drop2 = half_square * bend2;
    *n_rows = choose(work->row_max, n_coarse, n_fine, plan->tail + 0.5f * drop1 + 0.4f * drop2, work->rows);
    *n_columns = choose(work->column_max, n_coarse, n_fine, plan->tail + 0.4f * drop1 + 0.5f * drop2, work->columns);
    return level;
}

/* Returns 0, or 1 if no level is fine enough. */
static int one(const Plan *plan, const float *natural, float *rotation, float *log_partition, Work *work) {
    const int n_last = plan->n_last;
    int n_rows, n_columns;
    const int level = look(plan, natural, work, &n_rows, &n_columns);
    if (level == plan->n_levels) return 1;
    const int n_fine = plan->n_points[level];
    const int width = PAD(n_columns), full = PAD(n_fine);
    const float *table = plan->last_columns[level];
    if (n_columns < n_fine) {
        for (int q = 0; q < 2 * n_last; q++)
            for (int j = 0; j < n_columns; j++) work->packed[q * width + j] = table[q * full + work->columns[j]];
        table = work->packed;
    }
    turn_last(plan, natural, table, width, work->parts);
    turn_first(plan, work->parts, plan->first[level], work->rows, n_rows, width, work->values);
    Vector highest = (Vector){0} - 1e30f;
    for (int i = 0; i < n_rows; i++) {
        float *row = work->values + (size_t)i * width;
        for (int j = n_columns; j < width; j++) row[j] = -1e30f;
        for (int j = 0; j < width; j += LANE) highest = larger(highest, load(row + j));
    }
    float top = highest[0];
    for (int k = 1; k < LANE; k++) top = highest[k] > top ? highest[k] : top;
    Vector sums = {0};
    const Vector lowest = (Vector){0} - 60.0f; /* exp(-60) adds nothing to a sum with a 1 in it */
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < width; j += LANE) {
            float *at = work->values + (size_t)i * width + j;
            const Vector weights = exponential(larger(load(at) - top, lowest));
            store(at, weights);
            sums += weights;
        }
    float total = 0;
    for (int k = 0; k < LANE; k++) total += sums[k];
    project_first(plan, work->values, plan->first[level], work->rows, n_rows, width, work->parts);
    project_last(plan, work->parts, plan->last_rows[level], work->columns, n_columns, width, total, rotation);
    *log_partition = top + logf(total) + 2 * logf(6.2831853f / n_fine);
    return 0;
}

/* Returns 0, or 1 if memory ran out or a posterior is too sharp for every level: then ask another engine. */
int moments(const Plan *plan, const float *natural, int batch, float *rotation, float *log_partition, int n_threads) {
    const size_t cells = (size_t)plan->n_first * plan->n_last;
    const size_t most = plan->n_points[plan->n_levels - 1], full = PAD(most);
    const size_t parts = (2 * plan->n_first + 4) * full, packed = 2 * plan->n_last * full;
    int failed = 0;
    #pragma omp parallel num_threads(n_threads)
    {
        float *memory = malloc(sizeof(float) * (parts + packed + 2 * full + (most + 4) * full) + sizeof(int) * 2 * full);
        if (memory) {
            Work work;
            work.parts = memory;
            work.packed = work.parts + parts;
            work.row_max = work.packed + packed;
            work.column_max = work.row_max + full;
            work.values = work.column_max + full;
            work.rows = (int *)(work.values + (most + 4) * full);
            work.columns = work.rows + full;
            #pragma omp for schedule(dynamic, 4)
            for (int b = 0; b < batch; b++)
                if (one(plan, natural + 2 * cells * b, rotation + 2 * cells * b, log_partition + b, &work)) failed = 1;
        } else {
            failed = 1;
        }
        free(memory);
    }
    return failed;
}
