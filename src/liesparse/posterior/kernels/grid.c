/* The pose integrated out on the 2-torus, one image at a time, all of it in the first cache.
 *
 * P(s) ∝ exp(η·T(s)) with integer frequencies ω = (p, q). Three symmetries save most of the work:
 * q and -q share their cosines and sines; so do s and -s; and s + π only changes the sign of odd p.
 * adaptive.c refines the grid; fista.c and sampling.c have the entry points; kernel.c is what is compiled.
 */
#define PAD(n) (((n) + LANE - 1) / LANE * LANE)
#define TWO_PI 6.2831853f

typedef float Vector __attribute__((vector_size(4 * LANE), aligned(4)));
typedef int Integers __attribute__((vector_size(4 * LANE), aligned(4)));
typedef unsigned Bits __attribute__((vector_size(4 * LANE), aligned(4)));
typedef float Quad __attribute__((vector_size(16), aligned(4)));
typedef union {
    Vector whole;
    Quad parts[LANE / 4];
} Quads;

/* One grid, or one level of refinement. n is even. */
typedef struct {
    int n;
    const float *first;   /* (point, p, cos|sin) */
    const float *columns; /* (cos|sin, |q|, point), two periods and padding: any arc is contiguous; */
                          /* of a circle one half and padding, and nothing else */
    const float *rows;    /* (point, cos|sin, |q| padded), as many points */
    const float *lower;   /* of each column, s and then -s, how many times its weight is halved: points there twice, padding */
} Level;

typedef struct {
    int n_axes;               /* 2, or 1 for a circle, whose p are all 0 */
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

static inline Quad larger_of_quads(Quad a, Quad b) {
    const __typeof__(a > b) first = a > b;
    return (Quad)((first & (__typeof__(first))a) | (~first & (__typeof__(first))b));
}
static inline Quad largest_quad(Vector v) {
    const Quads quads = {v};
    Quad q = quads.parts[0];
    for (int i = 1; i < LANE / 4; i++) q = larger_of_quads(q, quads.parts[i]);
    return q;
}
/* The largest number of each of four vectors. */
static inline Quad largest_of_four(const Vector v[4]) {
    const Quad a = largest_quad(v[0]), b = largest_quad(v[1]), c = largest_quad(v[2]), d = largest_quad(v[3]);
    const Quad ab = larger_of_quads(__builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7));
    const Quad cd = larger_of_quads(__builtin_shufflevector(c, d, 0, 4, 1, 5), __builtin_shufflevector(c, d, 2, 6, 3, 7));
    return larger_of_quads(__builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
}
static inline float largest(Vector v) {
    const Quad q = largest_quad(v);
    const float a = q[0] > q[1] ? q[0] : q[1], b = q[2] > q[3] ? q[2] : q[3];
    return a > b ? a : b;
}

static inline float sum(Vector v) {
    const Quads quads = {v};
    Quad q = quads.parts[0];
    for (int i = 1; i < LANE / 4; i++) q += quads.parts[i];
    return (q[0] + q[2]) + (q[1] + q[3]);
}

#define LOG2_E 1.44269504f
#define NOTHING (-86.0f) /* 2^-86 adds nothing to a sum with a 1 in it, and is not denormal */

/* 2^x for x <= 0, as 2^-86 below that: a polynomial on [-1/2, 1/2], relative error 2e-7, and k into the exponent */
static inline Vector power_of_two(Vector x) {
    const float whole = 12582912.0f; /* 1.5 · 2^23: behind the point no bit is left */
    x = larger(x, (Vector){0} + NOTHING);
    const Vector shifted = x + whole, r = x - (shifted - whole);
    Vector p = r * 1.32764643e-3f + 9.67553935e-3f;
    p = p * r + 5.55071327e-2f;
    p = p * r + 2.40221202e-1f;
    p = p * r + 6.93146968e-1f;
    p = p * r + 1.0f;
    return (Vector)((Bits)p + ((Bits)shifted << 23));
}

/* exp(x) for x <= 0 */
static inline Vector exponential(Vector x) { return power_of_two(x * LOG2_E); }

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

/* ---- small products of matrices, in registers ---- */

/* Sums of rows times blocks of columns that stay in registers: few loads for many multiply-adds, and as many sums as an
 * adder needs to be busy. In functions marked INLINE rows and blocks are constants. */
#define MOST_SUMS 10
#define MOST_BLOCKS 2
typedef Vector Tile[MOST_SUMS][MOST_BLOCKS] __attribute__((aligned(64)));
#define INLINE static inline __attribute__((always_inline))

/* sums[i][b] = Σ_k weights[i · across + k · along] · the vector at from[k · stride + b · apart] */
INLINE void multiply(const int rows, const int blocks, int depth, const float *weights, int across, int along,
                     const float *from, int stride, int apart, Tile sums) {
    Tile found = {{{0}}};
    for (int k = 0; k < depth; k++, weights += along, from += stride) {
        Vector row[MOST_BLOCKS];
        for (int b = 0; b < blocks; b++) row[b] = load(from + b * apart);
        for (int i = 0; i < rows; i++)
            for (int b = 0; b < blocks; b++) found[i][b] += weights[i * across] * row[b];
    }
    for (int i = 0; i < rows; i++)
        for (int b = 0; b < blocks; b++) sums[i][b] = found[i][b];
}

/* Call a function with rows and blocks as constants, of which there are at most MOST_SUMS together. */
#define CALL_TILE(function, rows, blocks, ...)                \
    switch (10 * (blocks) + (rows)) {                         \
        case 11: function(1, 1, __VA_ARGS__); break;          \
        case 12: function(2, 1, __VA_ARGS__); break;          \
        case 13: function(3, 1, __VA_ARGS__); break;          \
        case 14: function(4, 1, __VA_ARGS__); break;          \
        case 15: function(5, 1, __VA_ARGS__); break;          \
        case 16: function(6, 1, __VA_ARGS__); break;          \
        case 17: function(7, 1, __VA_ARGS__); break;          \
        case 18: function(8, 1, __VA_ARGS__); break;          \
        case 19: function(9, 1, __VA_ARGS__); break;          \
        case 20: function(10, 1, __VA_ARGS__); break;         \
        case 21: function(1, 2, __VA_ARGS__); break;          \
        case 22: function(2, 2, __VA_ARGS__); break;          \
        case 23: function(3, 2, __VA_ARGS__); break;          \
        case 24: function(4, 2, __VA_ARGS__); break;          \
        default: function(5, 2, __VA_ARGS__);                 \
    }

/* How many of n to take at once, at most so many, so that the parts are about equal. */
static inline int share(int n, int most) {
    const int parts = (n + most - 1) / most;
    return (n + parts - 1) / parts;
}
static inline int fewer(int a, int b) { return a < b ? a : b; }
static inline int share_rows(int n, int blocks) { return share(n, MOST_SUMS / blocks); }

/* ---- the last axis ---- */

INLINE void turn_last_tile(const int rows, const int blocks, const Plan *plan, const float *mixed, const float *table,
                           int stride, int mirror, int apart, int fill, float *parts) {
    const int n_last = plan->n_last, half = plan->half;
    const float *sines = table + n_last * stride;
    for (int part = 0; part < 2; part++) { /* two sums at a time: as many as there are registers for */
        Tile even, odd;
        multiply(rows, blocks, n_last, mixed + 2 * part * half, n_last, 1, table, stride, LANE, even);
        multiply(rows, blocks, n_last, mixed + (2 * part + 1) * half, n_last, 1, sines, stride, LANE, odd);
        for (int i = 0; i < rows; i++) {
            float *to = parts + (2 * i + part) * apart;
            if (fill) store(to + fill, even[i][0]);
            for (int b = blocks - 1; b >= 0; b--) {
                store(to + b * LANE, even[i][b] + odd[i][b]);
                if (mirror) store(to + mirror + b * LANE, even[i][b] - odd[i][b]);
            }
        }
    }
}

/* parts[p][re|im][column] for one stretch of columns of a table (cos|sin, |q|, column), and from mirror on, if that is
 * not 0, for their mirror images. Rows lie so far apart that a vector fits behind their end. Blocks go from last to first, so
 * that what one writes behind the end of a stretch is written again by a later one. fill, if not 0, is where some value is put first: no block need reach the padding. */
static void turn_last(const Plan *plan, const float *mixed, const float *table, int stride, int n_columns, int mirror,
                      int width, int apart, float *parts) {
    const int n_first = plan->n_first, last = PAD(n_columns) / LANE;
    for (int end = last, blocks; end > 0; end -= blocks) {
        blocks = fewer(end, MOST_BLOCKS);
        const int at_once = share_rows(n_first, blocks);
        const int block = (end - blocks) * LANE, fill = mirror && end == last ? width - LANE - block : 0;
        for (int p = 0; p < n_first; p += at_once)
            CALL_TILE(turn_last_tile, fewer(at_once, n_first - p), blocks, plan, mixed + p * plan->n_last, table + block,
                      stride, mirror, apart, fill, parts + 2 * p * apart + block);
    }
}

/* Both signs of q from sums over the columns: C cos, C sin, S cos, S sin, of (C + iS) exp(iqs). Lanes behind the last |q|
 * hold zeros; the next p is written later. */
INLINE void project_last_tile(const int rows, const int blocks, const Plan *plan, int depth, const float *sums, int odd,
                              int imaginary, int across, const float *table, float scale, float *to) {
    const int padded = PAD(plan->n_last), half = plan->half;
    for (int part = 0; part < 2; part++) { /* C cos ∓ S sin, S cos ± C sin: two sums at a time */
        const float *same = sums + part * imaginary, *other = sums + (1 - part) * imaginary + odd;
        const float sign = part ? scale : -scale;
        Tile with_cos, with_sin;
        multiply(rows, blocks, depth, same, across, 1, table, 2 * padded, LANE, with_cos);
        multiply(rows, blocks, depth, other, across, 1, table + padded, 2 * padded, LANE, with_sin);
        for (int i = 0; i < rows; i++)
            for (int b = blocks - 1; b >= 0; b--) {
                float *at = to + 2 * part * half + i * plan->n_last + b * LANE;
                store(at, with_cos[i][b] * scale + with_sin[i][b] * sign);
                store(at + half, with_cos[i][b] * scale - with_sin[i][b] * sign);
            }
    }
}

/* rotation of all p from sums[p][...] over columns, whose even and odd, real and imaginary parts lie so far apart; table
 * is (column, cos|sin, |q| padded) */
static void project_last(const Plan *plan, int n_columns, const float *sums, int odd, int imaginary, int across,
                         const float *table, float scale, float *rotation) {
    const int n_first = plan->n_first;
    for (int end = PAD(plan->n_last) / LANE, blocks; end > 0; end -= blocks) {
        blocks = fewer(end, MOST_BLOCKS);
        const int block = (end - blocks) * LANE, at_once = share_rows(n_first, blocks);
        for (int p = 0; p < n_first; p += at_once)
            CALL_TILE(project_last_tile, fewer(at_once, n_first - p), blocks, plan, n_columns, sums + p * across, odd,
                      imaginary, across, table + block, scale, rotation + p * plan->n_last + block);
    }
}

/* ---- the whole grid: columns as (s, -s), rows as (s, -s, s + π, π - s) ---- */

static inline int n_columns_half(const Level *level) { return level->n / 2 + 1; }
/* Where in a row the mirror images -s begin: on a whole vector, where that makes the row no longer. */
static inline int mirror_of(const Level *level) {
    const int columns = n_columns_half(level), whole = PAD(columns);
    return 2 * whole == PAD(2 * columns) ? whole : columns;
}
static inline int n_row_orbits(const Level *level) { return level->n / 4 + 1; }

/* Orbits and blocks at a time: as many sums as there are registers for. */
#if LANE == 16
#define MOST_ORBITS 3
#define ORBIT_BLOCKS 2
#else
#define MOST_ORBITS 1
#define ORBIT_BLOCKS 3
#endif

/* One p more in the sums over even or odd p. */
INLINE void add_first(const int orbits, const int blocks, const Plan *plan, const float *weights, const float *parts, int apart,
                      Vector cosines[][ORBIT_BLOCKS], Vector sines[][ORBIT_BLOCKS]) {
    for (int b = 0; b < blocks; b++) {
        const Vector re = load(parts + b * LANE), im = load(parts + apart + b * LANE);
        for (int o = 0; o < orbits; o++) {
            cosines[o][b] += weights[2 * plan->n_first * o] * re;
            sines[o][b] += weights[2 * plan->n_first * o + 1] * im;
        }
    }
}

/* Some orbits of rows at some blocks of columns, with the largest of their values. */
INLINE void turn_orbits(const int orbits, const int blocks, const Plan *plan, const float *weights, const float *parts,
                        int apart, int width, float *values, Vector *top) {
    Vector cosines[2][MOST_ORBITS][ORBIT_BLOCKS] = {{{{0}}}}, sines[2][MOST_ORBITS][ORBIT_BLOCKS] = {{{{0}}}}; /* [odd p] */
    const float *end = weights + 2 * plan->n_first;
    if (plan->lowest & 1) {
        add_first(orbits, blocks, plan, weights, parts, apart, cosines[1], sines[1]);
        weights += 2;
        parts += 2 * apart;
    }
    for (; weights + 2 < end; weights += 4, parts += 4 * apart) {
        add_first(orbits, blocks, plan, weights, parts, apart, cosines[0], sines[0]);
        add_first(orbits, blocks, plan, weights + 2, parts + 2 * apart, apart, cosines[1], sines[1]);
    }
    if (weights < end) add_first(orbits, blocks, plan, weights, parts, apart, cosines[0], sines[0]);
    for (int o = 0; o < orbits; o++, values += 4 * width)
        for (int i = 0; i < blocks; i++) {
            const Vector cos_sum = cosines[0][o][i] + cosines[1][o][i], cos_gap = cosines[0][o][i] - cosines[1][o][i];
            const Vector sin_sum = sines[0][o][i] + sines[1][o][i], sin_gap = sines[0][o][i] - sines[1][o][i];
            const Vector a = cos_sum + sin_sum, b = cos_sum - sin_sum, c = cos_gap + sin_gap, d = cos_gap - sin_gap;
            store(values + i * LANE, a);
            store(values + width + i * LANE, b);
            store(values + 2 * width + i * LANE, c);
            store(values + 3 * width + i * LANE, d);
            *top = larger(*top, larger(larger(a, b), larger(c, d)));
        }
}

/* values[orbit][4][width], width = both halves of the columns; returns the largest */
static float evaluate_grid(const Plan *plan, const Level *level, const float *natural, Work *work) {
    const int columns = n_columns_half(level), width = PAD(2 * columns), apart = width + LANE;
    const int n_orbits = n_row_orbits(level);
    mix(plan, natural, work->mixed);
    turn_last(plan, work->mixed, level->columns, 2 * PAD(level->n) + LANE, columns, mirror_of(level), width, apart,
              work->parts);
    Vector top = (Vector){0} - 1e30f; /* points that are there twice are real values too */
    for (int at = 0, blocks; at < width; at += blocks * LANE) {
        blocks = share((width - at) / LANE, ORBIT_BLOCKS);
        for (int orbit = 0, orbits; orbit < n_orbits; orbit += orbits) {
            const float *weights = level->first + 2 * plan->n_first * orbit;
            float *to = work->values + (size_t)4 * orbit * width + at;
            orbits = fewer(MOST_ORBITS, n_orbits - orbit);
            switch (4 * orbits + blocks) {
#if LANE == 16
                case 14: turn_orbits(3, 2, plan, weights, work->parts + at, apart, width, to, &top); break;
                case 13: turn_orbits(3, 1, plan, weights, work->parts + at, apart, width, to, &top); break;
                case 10: turn_orbits(2, 2, plan, weights, work->parts + at, apart, width, to, &top); break;
                case 9: turn_orbits(2, 1, plan, weights, work->parts + at, apart, width, to, &top); break;
#else
                case 7: turn_orbits(1, 3, plan, weights, work->parts + at, apart, width, to, &top); break;
#endif
                case 6: turn_orbits(1, 2, plan, weights, work->parts + at, apart, width, to, &top); break;
                default: turn_orbits(1, 1, plan, weights, work->parts + at, apart, width, to, &top);
            }
        }
    }
    return largest(top);
}

/* Turn the values of each orbit into the sums and differences of its weights that even and odd p need: cos, cos, sin, sin;
 * returns the sum of all weights. */
static float weigh_grid(const Level *level, float top, Work *work) {
    const int width = PAD(2 * n_columns_half(level)), n_orbits = n_row_orbits(level);
    float *values = work->values;
    const float *lower = level->lower;
    Vector sums = {0};
    for (int orbit = 0; orbit < n_orbits; orbit++) {
        const int twice = orbit == 0 || 4 * orbit == level->n; /* each of its points is there twice: half the weight */
        const float shift = -top * LOG2_E - (float)twice;
        for (int block = 0; block < width; block += LANE) {
            float *at = values + (size_t)4 * orbit * width + block;
            const Vector offset = load(lower + block) + shift;
            const Vector a = power_of_two(load(at) * LOG2_E + offset);
            const Vector b = power_of_two(load(at + width) * LOG2_E + offset);
            const Vector c = power_of_two(load(at + 2 * width) * LOG2_E + offset);
            const Vector d = power_of_two(load(at + 3 * width) * LOG2_E + offset);
            const Vector near = a + b, far = c + d, near_gap = a - b, far_gap = c - d;
            store(at, near + far);
            store(at + width, near - far);
            store(at + 2 * width, near_gap + far_gap);
            store(at + 3 * width, near_gap - far_gap);
            sums += near + far;
        }
    }
    return sum(sums);
}

/* Sums over the orbits for every other p, at one block of columns and its mirror image: even and odd in s */
INLINE void project_orbits(const int rows, const int blocks, const Plan *plan, const Level *level, const float *weights,
                           const float *values, int width, int side, float *to) {
    Tile sums;
    multiply(rows, blocks, n_row_orbits(level), weights, 4, 2 * plan->n_first, values, 4 * width, mirror_of(level), sums);
    for (int i = 0; i < rows; i++) {
        store(to + 8 * i * side, sums[i][0] + sums[i][1]);
        store(to + 8 * i * side + side, sums[i][0] - sums[i][1]);
    }
}

/* Sum over the whole grid; returns ln Z without ω = 0 */
static float sum_grid(const Plan *plan, const Level *level, float top, float *rotation, Work *work) {
    const int n_first = plan->n_first, columns = n_columns_half(level), side = PAD(columns), width = PAD(2 * columns);
    const float total = weigh_grid(level, top, work);
    for (int parity = 0; parity < 2 && parity < n_first; parity++) {
        const int odd = (parity + plan->lowest) & 1, n = (n_first - parity + 1) / 2, at_once = share_rows(n, 2);
        for (int sine = 0; sine < 2; sine++)
            for (int block = 0; block < side; block += LANE)
                for (int i = 0; i < n; i += at_once) {
                    const int p = parity + 2 * i; /* parts[p][C|S][even|odd][column] */
                    CALL_TILE(project_orbits, fewer(at_once, n - i), 2, plan, level, level->first + 2 * p + sine,
                              work->values + (2 * sine + odd) * width + block, width, side,
                              work->parts + (4 * p + 2 * sine) * side + block);
                }
    }
    project_last(plan, columns, work->parts, side, 2 * side, 4 * side, level->rows, 1 / total, rotation);
    return top + logf(total) + 2 * logf(TWO_PI / level->n);
}
