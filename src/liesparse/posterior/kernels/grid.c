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
    const float *columns; /* (cos|sin, |q|, point), two periods and padding: any arc is contiguous */
    const float *rows;    /* (point, cos|sin, |q| padded) */
    const float *lower;   /* 0, or what makes nothing of it, for each column: padding, and points that are there twice */
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

static inline float largest(Vector v) {
    const Quads quads = {v};
    Quad q = quads.parts[0];
    for (int i = 1; i < LANE / 4; i++) {
        const Quad other = quads.parts[i];
        for (int j = 0; j < 4; j++) q[j] = q[j] > other[j] ? q[j] : other[j];
    }
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

/* Σ_q of the four kinds of coefficients in one row of mixed: re + re2 and im + im2 at s, re - re2 and im - im2 at -s.
 * Everywhere two sums that share their loads are made together: one alone would wait for its last addition. */
typedef struct {
    Vector re, re2, im, im2;
} Parts;

static inline void sum_last(const Plan *plan, const float *const rows[2], const float *table, int stride, Parts to[2]) {
    const int n_last = plan->n_last, half = plan->half;
    Parts sums[2] = {{{0}}};
    for (int q = 0; q < n_last; q++) {
        const Vector cosine = load(table + q * stride), sine = load(table + (n_last + q) * stride);
        for (int i = 0; i < 2; i++) {
            sums[i].re += rows[i][q] * cosine;
            sums[i].re2 += rows[i][half + q] * sine;
            sums[i].im += rows[i][2 * half + q] * cosine;
            sums[i].im2 += rows[i][3 * half + q] * sine;
        }
    }
    to[0] = sums[0];
    to[1] = sums[1];
}

/* The place of the second of two: the next one, or where there is none the first again. */
static inline int partner(int i, int step, int end) { return i + step < end ? i + step : i; }

/* parts[p][re|im][column] for one stretch of columns of a table (cos|sin, |q|, column) */
static void turn_last(const Plan *plan, const float *mixed, const float *table, int stride, int width, float *parts) {
    for (int block = 0; block < width; block += LANE)
        for (int p = 0; p < plan->n_first; p += 2) {
            const int both[2] = {p, partner(p, 1, plan->n_first)};
            const float *const rows[2] = {mixed + both[0] * plan->n_last, mixed + both[1] * plan->n_last};
            Parts sums[2];
            sum_last(plan, rows, table + block, stride, sums);
            for (int i = 0; i < 2; i++) {
                store(parts + 2 * both[i] * width + block, sums[i].re + sums[i].re2);
                store(parts + (2 * both[i] + 1) * width + block, sums[i].im + sums[i].im2);
            }
        }
}

/* Sums over columns of even and odd functions of them, two rows p at a time: C cos, S sin, C sin and S cos. */
typedef struct {
    Vector cc, ss, cs, sc;
} Products;

/* Both signs of q from the sums C cos, S sin, C sin and S cos over the columns: (C + iS) exp(iqs). */
static inline void put(const Plan *plan, float *to, Products sums, float scale) {
    /* lanes behind the last |q| hold zeros; the first block of the next p is written later */
    store(to, (sums.cc - sums.ss) * scale);
    store(to + plan->half, (sums.cc + sums.ss) * scale);
    store(to + 2 * plan->half, (sums.sc + sums.cs) * scale);
    store(to + 3 * plan->half, (sums.sc - sums.cs) * scale);
}

/* ---- the whole grid: columns as (s, -s), rows as (s, -s, s + π, π - s) ---- */

static inline int n_columns_half(const Level *level) { return level->n / 2 + 1; }
static inline int n_row_orbits(const Level *level) { return level->n / 4 + 1; }

/* Both orbits of rows at one block of columns; returns their largest values. */
static inline Vector turn_orbits(const Plan *plan, const Level *level, const int both[2], int width, int block, Work *work) {
    const int n_first = plan->n_first, odd = plan->lowest & 1; /* whether the first p is odd */
    const float *const weights[2] = {level->first + 2 * n_first * both[0], level->first + 2 * n_first * both[1]};
    const float *from = work->parts + block;
    Vector cosines[2][2] = {{{0}}}, sines[2][2] = {{{0}}}; /* [orbit][odd p] */
    Vector top = (Vector){0} - 1e30f;
    int p = 0;
    for (; p + 1 < n_first; p += 2) {
        const Vector re = load(from + 2 * p * width), im = load(from + (2 * p + 1) * width);
        const Vector re2 = load(from + (2 * p + 2) * width), im2 = load(from + (2 * p + 3) * width);
        for (int i = 0; i < 2; i++) {
            cosines[i][0] += weights[i][2 * p] * re;
            sines[i][0] += weights[i][2 * p + 1] * im;
            cosines[i][1] += weights[i][2 * p + 2] * re2;
            sines[i][1] += weights[i][2 * p + 3] * im2;
        }
    }
    if (p < n_first)
        for (int i = 0; i < 2; i++) {
            cosines[i][0] += weights[i][2 * p] * load(from + 2 * p * width);
            sines[i][0] += weights[i][2 * p + 1] * load(from + (2 * p + 1) * width);
        }
    const float sign = odd ? -1 : 1; /* sums over even p minus sums over odd p */
    for (int i = 0; i < 2; i++) {
        const Vector cos_sum = cosines[i][0] + cosines[i][1], cos_gap = sign * (cosines[i][0] - cosines[i][1]);
        const Vector sin_sum = sines[i][0] + sines[i][1], sin_gap = sign * (sines[i][0] - sines[i][1]);
        const Vector a = cos_sum + sin_sum, b = cos_sum - sin_sum, c = cos_gap + sin_gap, d = cos_gap - sin_gap;
        float *to = work->values + (size_t)4 * both[i] * width + block;
        store(to, a);
        store(to + width, b);
        store(to + 2 * width, c);
        store(to + 3 * width, d);
        top = larger(top, larger(larger(a, b), larger(c, d)));
    }
    return top;
}

/* values[orbit][4][width], width = two halves of the columns; returns the largest */
static float evaluate_grid(const Plan *plan, const Level *level, const float *natural, Work *work) {
    const int n_first = plan->n_first, n_last = plan->n_last, stride = 2 * PAD(level->n) + LANE;
    const int side = PAD(n_columns_half(level)), width = 2 * side;
    mix(plan, natural, work->mixed);
    for (int block = 0; block < side; block += LANE)
        for (int p = 0; p < n_first; p += 2) {
            const int both[2] = {p, partner(p, 1, n_first)};
            const float *const rows[2] = {work->mixed + both[0] * n_last, work->mixed + both[1] * n_last};
            Parts sums[2];
            sum_last(plan, rows, level->columns + block, stride, sums);
            for (int i = 0; i < 2; i++) {
                float *to = work->parts + 2 * both[i] * width + block;
                store(to, sums[i].re + sums[i].re2);
                store(to + side, sums[i].re - sums[i].re2);
                store(to + width, sums[i].im + sums[i].im2);
                store(to + width + side, sums[i].im - sums[i].im2);
            }
        }
    const int n_orbits = n_row_orbits(level);
    Vector top = (Vector){0} - 1e30f; /* points that are there twice are real values too */
    for (int orbit = 0; orbit < n_orbits; orbit += 2) {
        const int both[2] = {orbit, partner(orbit, 1, n_orbits)};
        for (int block = 0; block < width; block += LANE) top = larger(top, turn_orbits(plan, level, both, width, block, work));
    }
    return largest(top);
}

/* Whether a member of an orbit is the same point as an earlier one. */
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
        float lower[4]; /* points that are their own mirror image are there twice */
        for (int member = 0; member < 4; member++) lower[member] = is_double(level, orbit, member) ? 2 * NOTHING : 0;
        for (int block = 0; block < width; block += LANE) {
            float *at = work->values + (size_t)4 * orbit * width + block;
            const Vector offset = load(level->lower + block) - top * LOG2_E;
            const Vector a = power_of_two(load(at) * LOG2_E + offset);
            const Vector b = power_of_two(load(at + width) * LOG2_E + (offset + lower[1]));
            const Vector c = power_of_two(load(at + 2 * width) * LOG2_E + (offset + lower[2]));
            const Vector d = power_of_two(load(at + 3 * width) * LOG2_E + (offset + lower[3]));
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
        for (int parity = 0; parity < 2; parity++)
            for (int p = parity; p < n_first; p += 4) { /* p and p + 2 weigh the same sums */
                const int odd = (p + plan->lowest) & 1, both[2] = {p, partner(p, 2, n_first)};
                const float *cosines = work->values + odd * width + block, *sines = cosines + 2 * width;
                Vector c[2] = {{0}}, s[2] = {{0}}, c2[2] = {{0}}, s2[2] = {{0}}; /* the two halves of the columns */
                for (int orbit = 0; orbit < orbits; orbit++) {
                    const float *weights = level->first + 2 * n_first * orbit;
                    const size_t at = (size_t)4 * orbit * width;
                    const Vector near = load(cosines + at), far = load(cosines + at + side);
                    const Vector near2 = load(sines + at), far2 = load(sines + at + side);
                    for (int i = 0; i < 2; i++) {
                        c[i] += weights[2 * both[i]] * near;
                        c2[i] += weights[2 * both[i]] * far;
                        s[i] += weights[2 * both[i] + 1] * near2;
                        s2[i] += weights[2 * both[i] + 1] * far2;
                    }
                }
                for (int i = 0; i < 2; i++) {
                    float *to = work->parts + 2 * both[i] * width + block;
                    store(to, c[i] + c2[i]);
                    store(to + side, c[i] - c2[i]);
                    store(to + width, s[i] + s2[i]);
                    store(to + width + side, s[i] - s2[i]);
                }
            }
    for (int p = 0; p < n_first; p += 2)
        for (int block = padded - LANE; block >= 0; block -= LANE) { /* put writes beyond the last |q| */
            const int both[2] = {p, partner(p, 1, n_first)};
            Products sums[2] = {{{0}}};
            for (int j = 0; j < n_columns_half(level); j++) {
                const Vector cosine = load(level->rows + 2 * padded * j + block);
                const Vector sine = load(level->rows + 2 * padded * j + padded + block);
                for (int i = 0; i < 2; i++) {
                    const float *parts = work->parts + 2 * both[i] * width + j;
                    sums[i].cc += parts[0] * cosine;
                    sums[i].ss += parts[width + side] * sine;
                    sums[i].cs += parts[side] * sine;
                    sums[i].sc += parts[width] * cosine;
                }
            }
            for (int i = 0; i < 2; i++) put(plan, rotation + both[i] * n_last + block, sums[i], 1 / total);
        }
    return top + logf(total) + 2 * logf(TWO_PI / level->n);
}
