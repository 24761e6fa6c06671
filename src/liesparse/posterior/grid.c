/* The pose integrated out on the 2-torus, one image at a time, all of it in the first cache.
 *
 * P(s) ∝ exp(η·T(s)) with integer frequencies ω = (p, q). Three symmetries save most of the work:
 * q and -q share their cosines and sines; so do s and -s; and s + π only changes the sign of odd p.
 * adaptive.c includes this file and refines the grid; codes.c includes that and has the entry points.
 * Built by native.py on first use; without a compiler torch does the same.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANE 16
#define PAD(n) (((n) + LANE - 1) / LANE * LANE)
#define TWO_PI 6.2831853f

typedef float Vector __attribute__((vector_size(4 * LANE), aligned(4)));
typedef int Integers __attribute__((vector_size(4 * LANE), aligned(4)));

/* One grid, or one level of refinement. n is even. */
typedef struct {
    int n;
    const float *first;   /* (point, p, cos|sin) */
    const float *columns; /* (cos|sin, |q|, point), two periods and padding: any arc is contiguous */
    const float *rows;    /* (point, cos|sin, |q| padded) */
    const float *keep;    /* 1 or 0 for each column of the whole grid: padding, and points that are there twice */
} Level;

typedef struct {
    int n_irreps, n_layers;   /* a layer holds each frequency once */
    int n_first, lowest;      /* p runs over lowest ... lowest + n_first - 1 */
    int n_last;               /* |q| runs over 0 ... n_last - 1 */
    int half;                 /* floats for the cells of one sign of q, padded; a layer has 4 halves: */
                              /* (re, q >= 0), (re, q < 0), (im, q >= 0), (im, q < 0) */
    int zero;                 /* the cell of ω = 0, or -1 */
    const int *place;         /* where in the layers each plane has its real part */
    const float *squares;     /* (p² | q², both signs, half) */
    int n_levels;             /* 1: a plain grid; else level 0 is the coarse one */
    const Level *levels;
    float least_points, points_per_width, tail;
} Plan;

typedef struct {
    float *mixed, *parts, *packed, *values, *row_max, *column_max;
    int *rows, *columns;
} Work;

static inline Vector load(const float *from) { return *(const Vector *)from; }
static inline void store(float *to, Vector value) { *(Vector *)to = value; }
static inline Vector larger(Vector a, Vector b) {
    const Integers first = a > b;
    return (Vector)((first & (Integers)a) | (~first & (Integers)b));
}
static inline Vector magnitude(Vector a) { return (Vector)((Integers)a & 0x7fffffff); }

/* Halve a vector four times; the compiler does not find this by itself. */
#define SHIFTED(v, by) __builtin_shuffle(v, (Integers){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} ^ (by))

static inline float largest(Vector v) {
    for (int by = LANE / 2; by; by /= 2) v = larger(v, SHIFTED(v, by));
    return v[0];
}

static inline float sum(Vector v) {
    for (int by = LANE / 2; by; by /= 2) v += SHIFTED(v, by);
    return v[0];
}

/* exp(x) for x <= 0, as exp(-60) below that: 2^k times a polynomial, relative error 2e-7 */
static inline Vector exponential(Vector x) {
    x = larger(x, (Vector){0} - 60.0f); /* adds nothing to a sum with a 1 in it, and is not denormal */
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

/* q and -q together: the coefficients of cos and sin in the two parts of Σ_q (a + ib) exp(-iqs). */
static void mix(const Plan *plan, const float *natural, float *mixed) {
    const int half = plan->half;
    for (int i = 0; i < half; i += LANE) {
        const Vector a = load(natural + i), a2 = load(natural + half + i);
        const Vector b = load(natural + 2 * half + i), b2 = load(natural + 3 * half + i);
        store(mixed + i, a + a2);
        store(mixed + half + i, b - b2);
        store(mixed + 2 * half + i, b + b2);
        store(mixed + 3 * half + i, a2 - a);
    }
}

/* parts[p][re|im][column] for one stretch of columns of a table (cos|sin, |q|, column) */
static void turn_last(const Plan *plan, const float *mixed, const float *table, int stride, int width, float *parts) {
    const int n_last = plan->n_last, half = plan->half;
    for (int block = 0; block < width; block += LANE)
        for (int p = 0; p < plan->n_first; p++) {
            const float *row = mixed + p * n_last;
            Vector re = {0}, im = {0}, re2 = {0}, im2 = {0};
            for (int q = 0; q < n_last; q++) {
                const Vector cosine = load(table + q * stride + block);
                const Vector sine = load(table + (n_last + q) * stride + block);
                re += row[q] * cosine;
                re2 += row[half + q] * sine;
                im += row[2 * half + q] * cosine;
                im2 += row[3 * half + q] * sine;
            }
            store(parts + 2 * p * width + block, re + re2);
            store(parts + (2 * p + 1) * width + block, im + im2);
        }
}

/* Both signs of q from the sums C cos, S sin, C sin and S cos over the columns: (C + iS) exp(iqs). */
static inline void put(const Plan *plan, float *to, Vector cc, Vector ss, Vector cs, Vector sc, float scale) {
    /* lanes behind the last |q| hold zeros, and the next p writes over them */
    store(to, (cc - ss) * scale);
    store(to + plan->half, (cc + ss) * scale);
    store(to + 2 * plan->half, (sc + cs) * scale);
    store(to + 3 * plan->half, (sc - cs) * scale);
}

/* ---- the whole grid: columns as (s, -s), rows as (s, -s, s + π, π - s) ---- */

static inline int n_columns_half(const Level *level) { return level->n / 2 + 1; }
static inline int n_row_orbits(const Level *level) { return level->n / 4 + 1; }

/* values[orbit][4][width], width = two halves of the columns; returns the largest */
static float evaluate_grid(const Plan *plan, const Level *level, const float *natural, Work *work) {
    const int n_first = plan->n_first, n_last = plan->n_last, half = plan->half, stride = 2 * PAD(level->n) + LANE;
    const int side = PAD(n_columns_half(level)), width = 2 * side;
    mix(plan, natural, work->mixed);
    for (int block = 0; block < side; block += LANE)
        for (int p = 0; p < n_first; p++) {
            const float *row = work->mixed + p * n_last, *table = level->columns + block;
            Vector re = {0}, im = {0}, re2 = {0}, im2 = {0};
            for (int q = 0; q < n_last; q++) {
                const Vector cosine = load(table + q * stride), sine = load(table + (n_last + q) * stride);
                re += row[q] * cosine;
                re2 += row[half + q] * sine;
                im += row[2 * half + q] * cosine;
                im2 += row[3 * half + q] * sine;
            }
            float *to = work->parts + 2 * p * width + block;
            store(to, re + re2);
            store(to + side, re - re2);
            store(to + width, im + im2);
            store(to + width + side, im - im2);
        }
    const int odd = plan->lowest & 1; /* whether the first p is odd */
    Vector top = (Vector){0} - 1e30f; /* points that are there twice are real values too */
    for (int orbit = 0; orbit < n_row_orbits(level); orbit++) {
        const float *weights = level->first + 2 * n_first * orbit;
        for (int block = 0; block < width; block += LANE) {
            Vector even_cos = {0}, even_sin = {0}, odd_cos = {0}, odd_sin = {0};
            const float *from = work->parts + block;
            int p = 0;
            if (odd) {
                odd_cos = weights[0] * load(from);
                odd_sin = weights[1] * load(from + width);
                p = 1;
            }
            for (; p + 1 < n_first; p += 2) {
                even_cos += weights[2 * p] * load(from + 2 * p * width);
                even_sin += weights[2 * p + 1] * load(from + (2 * p + 1) * width);
                odd_cos += weights[2 * p + 2] * load(from + (2 * p + 2) * width);
                odd_sin += weights[2 * p + 3] * load(from + (2 * p + 3) * width);
            }
            if (p < n_first) {
                even_cos += weights[2 * p] * load(from + 2 * p * width);
                even_sin += weights[2 * p + 1] * load(from + (2 * p + 1) * width);
            }
            const Vector cos_sum = even_cos + odd_cos, cos_gap = even_cos - odd_cos;
            const Vector sin_sum = even_sin + odd_sin, sin_gap = even_sin - odd_sin;
            const Vector a = cos_sum + sin_sum, b = cos_sum - sin_sum, c = cos_gap + sin_gap, d = cos_gap - sin_gap;
            float *to = work->values + (size_t)4 * orbit * width + block;
            store(to, a);
            store(to + width, b);
            store(to + 2 * width, c);
            store(to + 3 * width, d);
            top = larger(top, larger(larger(a, b), larger(c, d)));
        }
    }
    return largest(top);
}

/* What a point of an orbit counts: points that are their own mirror image are there twice. */
static inline int is_double(const Level *level, int orbit, int member) {
    if (orbit == 0) return member == 1 || member == 3;
    return 4 * orbit == level->n && member >= 2;
}

/* Sum over the whole grid; returns ln Z without ω = 0 */
static float sum_grid(const Plan *plan, const Level *level, float top, float *rotation, Work *work) {
    const int n_first = plan->n_first, n_last = plan->n_last, padded = PAD(n_last);
    const int side = PAD(n_columns_half(level)), width = 2 * side, orbits = n_row_orbits(level);
    Vector sums = {0};
    for (int orbit = 0; orbit < orbits; orbit++) {
        const float b_counts = !is_double(level, orbit, 1), c_counts = !is_double(level, orbit, 2);
        const float d_counts = !is_double(level, orbit, 3);
        for (int block = 0; block < width; block += LANE) {
            float *at = work->values + (size_t)4 * orbit * width + block;
            const Vector mask = load(level->keep + block);
            const Vector a = exponential(load(at) - top) * mask, b = exponential(load(at + width) - top) * (mask * b_counts);
            const Vector c = exponential(load(at + 2 * width) - top) * (mask * c_counts);
            const Vector d = exponential(load(at + 3 * width) - top) * (mask * d_counts);
            const Vector near = a + b, far = c + d, near_gap = a - b, far_gap = c - d;
            store(at, near + far);
            store(at + width, near - far);
            store(at + 2 * width, near_gap + far_gap);
            store(at + 3 * width, near_gap - far_gap);
            sums += near + far;
        }
    }
    const float total = sum(sums);
    for (int block = 0; block < side; block += LANE)
        for (int p = 0; p < n_first; p++) {
            const int odd = (p + plan->lowest) & 1;
            const float *cosines = work->values + odd * width + block, *sines = cosines + 2 * width;
            Vector c = {0}, s = {0}, c2 = {0}, s2 = {0}; /* the two halves of the columns */
            for (int orbit = 0; orbit < orbits; orbit++) {
                const float *weights = level->first + 2 * (n_first * orbit + p);
                const size_t at = (size_t)4 * orbit * width;
                c += weights[0] * load(cosines + at);
                c2 += weights[0] * load(cosines + at + side);
                s += weights[1] * load(sines + at);
                s2 += weights[1] * load(sines + at + side);
            }
            float *to = work->parts + 2 * p * width + block;
            store(to, c + c2);
            store(to + side, c - c2);
            store(to + width, s + s2);
            store(to + width + side, s - s2);
        }
    for (int p = 0; p < n_first; p++)
        for (int block = 0; block < n_last; block += LANE) {
            const float *even_c = work->parts + 2 * p * width, *odd_c = even_c + side;
            const float *even_s = even_c + width, *odd_s = even_s + side;
            Vector cc = {0}, ss = {0}, cs = {0}, sc = {0};
            for (int j = 0; j < n_columns_half(level); j++) {
                const Vector cosine = load(level->rows + 2 * padded * j + block);
                const Vector sine = load(level->rows + 2 * padded * j + padded + block);
                cc += even_c[j] * cosine;
                ss += odd_s[j] * sine;
                cs += odd_c[j] * sine;
                sc += even_s[j] * cosine;
            }
            put(plan, rotation + p * n_last + block, cc, ss, cs, sc, 1 / total);
        }
    return top + logf(total) + 2 * logf(TWO_PI / level->n);
}
