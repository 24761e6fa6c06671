/* Importance sampling of the pose in any dimension, one image at a time; sampling.py says the same in torch.
 *
 * ω is integer and has a neighbour one step nearer to 0, so exp(iω·s) is one complex product away from its
 * neighbour's: no table of features is needed, and 16 poses are treated at once.
 */
#include "grid.c"

#define MOST_MODES 4
#define MOST_AXES 8
#define PI 3.14159265f
#define HEADROOM 5.0f /* nats that a point may lie above the best mode */
#define SILENT 25.0f  /* nats below the best mode from which a point counts for nothing */

typedef struct {
    int n_axes, n_cells; /* cell 0 is ω = 0 */
    const int *parent;   /* of each cell: an earlier cell ... */
    const int *turn;     /* ... times exp(is_j) if this is 2j, exp(-is_j) if it is 2j + 1 */
    const float *omega;  /* (cell, axis) */
    int n_even, n_cloud; /* points, multiples of LANE */
    const float *even;   /* (axis, point): angles that cover the torus */
    const float *waves;  /* (axis, cos|sin, point) of them */
    const float *cloud;  /* (axis, point): places around a mode in units of its width */
    const float *share;  /* (point): proposal density there over that at the mode; 0 for the point at infinity */
    int n_climbs;
    float spread, ridge, tail, low, high;
} Scatter;

typedef struct {
    float pose[MOST_AXES], root[MOST_AXES][MOST_AXES]; /* precision = root rootᵀ, lower triangular */
    float value, factor;                               /* points of the cloud per volume at the mode */
} Mode;

static inline Vector constant(float value) { return (Vector){0} + value; }
static inline Vector choose(Integers which, Vector a, Vector b) {
    return (Vector)((which & (Integers)a) | (~which & (Integers)b));
}
static inline Vector nearest(Vector x) { /* whole number; adding and taking 2²³ away would be optimized out */
    const Vector half = choose(x < constant(0), constant(-0.5f), constant(0.5f));
    return __builtin_convertvector(__builtin_convertvector(x + half, Integers), Vector);
}
static inline Vector wrap(Vector x) { return x - nearest(x * 0.15915494f) * TWO_PI; }

static inline void cos_sin(Vector angle, Vector *cosine, Vector *sine) {
    const Vector quarter = nearest(angle * 0.63661977f);
    const Vector r = angle - quarter * 1.57079633f, q = r * r;
    const Vector s = r + r * q * (constant(-1.6666654611e-1f) + q * (constant(8.3321608736e-3f) - q * 1.9515295891e-4f));
    const Vector c = constant(1) - 0.5f * q +
                     q * q * (constant(4.166664568298827e-2f) + q * (constant(-1.388731625493765e-3f) + q * 2.443315711809948e-5f));
    const Integers k = __builtin_convertvector(quarter, Integers), odd = (k & 1) == 1;
    const Vector even_sign = __builtin_convertvector(1 - (k & 2), Vector), odd_sign = __builtin_convertvector(1 - ((k + 1) & 2), Vector);
    *cosine = odd_sign * choose(odd, s, c);
    *sine = even_sign * choose(odd, c, s);
}

static inline void waves_of(int n, const Vector *angle, Vector *z) { /* (2 · axis + conjugate, cos|sin) */
    for (int j = 0; j < n; j++) {
        cos_sin(angle[j], z + 4 * j, z + 4 * j + 1);
        z[4 * j + 2] = z[4 * j];
        z[4 * j + 3] = -z[4 * j + 1];
    }
}

static inline void waves_at(const Scatter *plan, int k, Vector *z) {
    for (int j = 0; j < plan->n_axes; j++) {
        const float *from = plan->waves + (size_t)2 * j * plan->n_even + k;
        z[4 * j] = z[4 * j + 2] = load(from);
        z[4 * j + 1] = load(from + plan->n_even);
        z[4 * j + 3] = -z[4 * j + 1];
    }
}

/* Fill in exp(iω·s) of every cell and return η·T(s). */
static Vector evaluate_at(const Scatter *plan, const float *natural, const Vector *z, Vector *feature) {
    Vector value = constant(natural[0]);
    feature[0] = constant(1);
    feature[1] = constant(0);
    for (int c = 1; c < plan->n_cells; c++) {
        const Vector *from = feature + 2 * plan->parent[c], *by = z + 2 * plan->turn[c];
        const Vector cosine = from[0] * by[0] - from[1] * by[1], sine = from[0] * by[1] + from[1] * by[0];
        feature[2 * c] = cosine;
        feature[2 * c + 1] = sine;
        value += natural[2 * c] * cosine + natural[2 * c + 1] * sine;
    }
    return value;
}

/* The same, with the slope and the bend (the negative second derivatives, lower triangle by rows). */
static Vector derive_at(const Scatter *plan, const float *natural, const Vector *angle, Vector *feature, Vector *slope,
                        Vector *bend) {
    const int n = plan->n_axes;
    Vector z[4 * MOST_AXES];
    waves_of(n, angle, z);
    const Vector value = evaluate_at(plan, natural, z, feature);
    for (int i = 0; i < n; i++) slope[i] = constant(0);
    for (int i = 0; i < n * (n + 1) / 2; i++) bend[i] = constant(0);
    for (int c = 1; c < plan->n_cells; c++) {
        const float *omega = plan->omega + c * n;
        const Vector height = natural[2 * c] * feature[2 * c] + natural[2 * c + 1] * feature[2 * c + 1];
        const Vector rise = natural[2 * c + 1] * feature[2 * c] - natural[2 * c] * feature[2 * c + 1];
        for (int i = 0; i < n; i++) {
            if (omega[i] == 0) continue;
            slope[i] += omega[i] * rise;
            for (int j = 0; j <= i; j++)
                if (omega[j] != 0) bend[i * (i + 1) / 2 + j] += omega[i] * omega[j] * height;
        }
    }
    return value;
}

/* Newton's step (bend + damping · bound)⁻¹ slope, or slope / bound, which always climbs, where that has no root. */
static void newton_step(int n, const Vector *slope, const Vector *bend, const float *bound, Vector damping, Vector *step) {
    Vector root[MOST_AXES][MOST_AXES], inverse[MOST_AXES];
    Integers bad = {0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            Vector rest = bend[i * (i + 1) / 2 + j];
            for (int k = 0; k < j; k++) rest -= root[i][k] * root[j][k];
            if (i != j) {
                root[i][j] = rest * inverse[j];
                continue;
            }
            rest += damping * bound[i];
            const Integers low = rest < constant(1e-3f * bound[i]);
            bad |= low;
            rest = choose(low, constant(bound[i]), rest);
            for (int k = 0; k < LANE; k++) inverse[i][k] = 1 / sqrtf(rest[k]);
        }
    for (int i = 0; i < n; i++) {
        step[i] = slope[i];
        for (int k = 0; k < i; k++) step[i] -= root[i][k] * step[k];
        step[i] *= inverse[i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++) step[i] -= root[k][i] * step[k];
        step[i] *= inverse[i];
    }
    for (int i = 0; i < n; i++) step[i] = choose(bad, slope[i] / bound[i], step[i]);
}

/* Climb from the best of every 16th even point; leaves poses, values and bends. */
static Vector climb_hills(const Scatter *plan, const float *natural, const Integers first, Vector *pose, Vector *bend,
                          Vector *feature) {
    const int n = plan->n_axes, n_bends = n * (n + 1) / 2;
    Vector slope[MOST_AXES], step[MOST_AXES], trial[MOST_AXES], next_slope[MOST_AXES];
    Vector next_bend[MOST_AXES * (MOST_AXES + 1) / 2];
    float bound[MOST_AXES] = {0};
    for (int c = 1; c < plan->n_cells; c++) {
        const float *omega = plan->omega + c * n;
        float size = 0;
        for (int i = 0; i < n; i++) size += fabsf(omega[i]);
        size *= sqrtf(natural[2 * c] * natural[2 * c] + natural[2 * c + 1] * natural[2 * c + 1]);
        for (int i = 0; i < n; i++) bound[i] += size * fabsf(omega[i]);
    }
    for (int i = 0; i < n; i++) {
        bound[i] += 1e-20f;
        for (int k = 0; k < LANE; k++) pose[i][k] = plan->even[(size_t)i * plan->n_even + first[k]];
    }
    Vector damping = constant(0.1f), value = derive_at(plan, natural, pose, feature, slope, bend);
    for (int t = 0; t < plan->n_climbs; t++) {
        newton_step(n, slope, bend, bound, damping, step);
        for (int i = 0; i < n; i++) trial[i] = pose[i] + step[i];
        const Vector reached = derive_at(plan, natural, trial, feature, next_slope, next_bend);
        const Integers better = reached > value;
        for (int i = 0; i < n; i++) {
            pose[i] = choose(better, trial[i], pose[i]);
            slope[i] = choose(better, next_slope[i], slope[i]);
        }
        for (int i = 0; i < n_bends; i++) bend[i] = choose(better, next_bend[i], bend[i]);
        value = choose(better, reached, value);
        damping = choose(better, damping * 0.1f, damping * 4.0f + 0.1f);
    }
    return value;
}

/* Keep the highest distinct modes; returns how many. */
static int keep_modes(const Scatter *plan, const Vector *pose, const Vector value, const Vector *bend, Mode *modes) {
    const int n = plan->n_axes;
    int used[LANE] = {0}, kept = 0;
    const float top = largest(value);
    for (int turn = 0; turn < LANE && kept < MOST_MODES; turn++) {
        int k = -1;
        for (int other = 0; other < LANE; other++)
            if (!used[other] && (k < 0 || value[other] > value[k])) k = other;
        used[k] = 1;
        if (!(value[k] > top - plan->tail)) break;
        Mode *mode = modes + kept;
        int distinct = 1;
        for (int m = 0; m < kept && distinct; m++) {
            float apart[MOST_AXES], square = 0;
            for (int i = 0; i < n; i++) apart[i] = remainderf(pose[i][k] - modes[m].pose[i], TWO_PI);
            for (int j = 0; j < n; j++) {
                float along = 0;
                for (int i = j; i < n; i++) along += modes[m].root[i][j] * apart[i];
                square += along * along;
            }
            distinct = square > 1;
        }
        if (!distinct) continue;
        float volume = (float)plan->n_cloud;
        int positive = 1;
        for (int i = 0; i < n && positive; i++) {
            mode->pose[i] = remainderf(pose[i][k], TWO_PI);
            for (int j = 0; j <= i; j++) {
                float rest = bend[i * (i + 1) / 2 + j][k] + (i == j ? plan->ridge : 0);
                for (int m = 0; m < j; m++) rest -= mode->root[i][m] * mode->root[j][m];
                if (i == j) {
                    positive = rest > 0.1f * plan->ridge;
                    mode->root[i][i] = sqrtf(rest);
                    volume *= mode->root[i][i] / (4 * plan->spread);
                } else {
                    mode->root[i][j] = rest / mode->root[j][j];
                }
            }
        }
        mode->value = value[k];
        mode->factor = volume;
        kept += positive;
    }
    return kept;
}

/* Density of a mode's proposal over that at the mode: a logistic density along each axis of its root. */
static Vector proposal(const Scatter *plan, const Mode *mode, const Vector *angle) {
    const int n = plan->n_axes;
    Vector apart[MOST_AXES], density = constant(1);
    for (int i = 0; i < n; i++) apart[i] = wrap(angle[i] - mode->pose[i]);
    for (int j = 0; j < n; j++) {
        Vector along = constant(0);
        for (int i = j; i < n; i++) along += mode->root[i][j] * apart[i];
        const Vector fall = exponential(-magnitude(along) / plan->spread), base = constant(1) + fall;
        density *= 4.0f * fall / (base * base);
    }
    return density;
}

typedef struct {
    Vector *total; /* Σ w exp(iω·s) of every cell; that of ω = 0 is Σ w */
    Vector squares;
} Tally;

static inline void count(const Scatter *plan, const Vector *feature, Vector weight, Tally *tally) {
    for (int i = 0; i < 2 * plan->n_cells; i++) tally->total[i] += weight * feature[i];
    tally->squares += weight * weight;
}

/* R̄, ln Z and the effective sample size of one posterior; memory holds 4 · n_cells vectors and n_even floats. */
static void sample(const Scatter *plan, const float *natural, Vector *memory, float *rotation, float *log_partition,
                   float *effective) {
    const int n = plan->n_axes, n_cells = plan->n_cells;
    Vector *feature = memory, z[4 * MOST_AXES], angle[MOST_AXES], pose[MOST_AXES];
    Vector bend[MOST_AXES * (MOST_AXES + 1) / 2];
    Tally tally = {memory + 2 * n_cells, constant(0)};
    float *values = (float *)(memory + 4 * n_cells);
    Vector best = constant(-INFINITY);
    Integers lane, first = {0};
    for (int k = 0; k < LANE; k++) lane[k] = k;
    for (int k = 0; k < plan->n_even; k += LANE) {
        waves_at(plan, k, z);
        const Vector value = evaluate_at(plan, natural, z, feature);
        store(values + k, value);
        const Integers better = value > best;
        best = choose(better, value, best);
        first = (better & (lane + k)) | (~better & first);
    }
    Mode modes[MOST_MODES];
    int n_modes = 0;
    float top = largest(best), weight = 0;
    /* Up to 2Σ|η| nats high a posterior has nothing to climb. */
    float rise = top - natural[0];
    if (rise > 0.3f * plan->low) {
        const Vector value = climb_hills(plan, natural, first, pose, bend, feature);
        top = larger(constant(top), constant(largest(value)))[0];
        rise = (top - natural[0] - plan->low) / (plan->high - plan->low);
        rise = rise < 0 ? 0 : rise > 1 ? 1 : rise;
        weight = rise * rise * (3 - 2 * rise);
        if (weight > 0) n_modes = keep_modes(plan, pose, value, bend, modes);
    }
    top += HEADROOM;
    const float even_density = (float)plan->n_even / powf(TWO_PI, (float)n);
    for (int i = 0; i < 2 * n_cells; i++) tally.total[i] = constant(0);
    for (int k = 0; k < plan->n_even; k += LANE) {
        const Vector value = load(values + k);
        if (n_modes && largest(value) < top - HEADROOM - SILENT) continue;
        Vector density = constant(even_density);
        for (int j = 0; j < n; j++) angle[j] = load(plan->even + (size_t)j * plan->n_even + k);
        for (int m = 0; m < n_modes; m++) density += weight * modes[m].factor * proposal(plan, modes + m, angle);
        waves_at(plan, k, z);
        evaluate_at(plan, natural, z, feature);
        count(plan, feature, exponential(value - top) / density, &tally);
    }
    for (int m = 0; m < n_modes; m++) {
        const Mode *mode = modes + m;
        for (int k = 0; k < plan->n_cloud; k += LANE) {
            const Vector share = load(plan->share + k);
            Integers inside = share > constant(0);
            for (int j = n - 1; j >= 0; j--) {
                Vector along = load(plan->cloud + (size_t)j * plan->n_cloud + k);
                for (int i = j + 1; i < n; i++) along -= mode->root[i][j] * angle[i];
                angle[j] = along / mode->root[j][j];
                inside &= magnitude(angle[j]) <= constant(PI);
            }
            for (int j = 0; j < n; j++) angle[j] = wrap(choose(inside, angle[j], constant(0)) + mode->pose[j]);
            Vector density = even_density + weight * mode->factor * share;
            for (int other = 0; other < n_modes; other++)
                if (other != m) density += weight * modes[other].factor * proposal(plan, modes + other, angle);
            waves_of(n, angle, z);
            const Vector value = evaluate_at(plan, natural, z, feature);
            const Vector found = weight * exponential(value - top) / density;
            count(plan, feature, choose(inside, found, constant(0)), &tally);
        }
    }
    const float all = sum(tally.total[0]);
    for (int c = 0; c < 2 * n_cells; c++) rotation[c] = sum(tally.total[c]) / all;
    *log_partition = logf(all) + top;
    *effective = all * all / sum(tally.squares);
}

/* natural and rotation are (image, cell, 2), equal frequencies added already. Returns 0, or 1 if memory ran out. */
int sample_moments(const Scatter *plan, const float *natural, int batch, float *rotation, float *log_partition,
                   float *effective, int n_threads) {
    int failed = 0;
    const size_t row = 2 * (size_t)plan->n_cells;
    #pragma omp parallel num_threads(n_threads) reduction(| : failed)
    {
        Vector *memory = aligned_alloc(64, sizeof(Vector) * 2 * row + sizeof(float) * PAD(plan->n_even));
        if (memory) {
            #pragma omp for schedule(dynamic, 1)
            for (int b = 0; b < batch; b++)
                sample(plan, natural + row * b, memory, rotation + row * b, log_partition + b, effective + b);
        } else {
            failed = 1;
        }
        free(memory);
    }
    return failed;
}
