/* The modes of the pose's density in any dimension, for a vector of poses at once.
 *
 * ω is integer and has a neighbour one step nearer to 0, so exp(iω·s) is one complex product away from its
 * neighbour's: no table of features is needed.
 */
#define MOST_MODES 4
#define MOST_AXES 6
#define MOST_BENDS (MOST_AXES * (MOST_AXES + 1) / 2)
#define N_STARTS 16 /* as in sampling.py; a multiple of LANE */
#define PI 3.14159265f

typedef struct {
    int n_axes, n_cells; /* cell 0 is ω = 0 */
    const int *parent;   /* of each cell: an earlier cell ... */
    const int *turn;     /* ... times exp(is_j) if this is 2j, exp(-is_j) if it is 2j + 1 */
    const float *omega;  /* (cell, axis) */
    const float *pairs;  /* (cell, lower triangle by rows): ω_i ω_j */
    int n_even, n_pairs; /* points, multiples of LANE; a cloud has s and -s */
    const float *even;   /* (axis, point): angles that cover the torus */
    const float *cloud;  /* (axis, point): places around a mode in units of its width */
    const float *share;  /* (point): proposal density there over that at the mode */
    const float *count;  /* (point): 1, but half for the mode itself, which is its own mirror image */
    int n_climbs;
    float spread, ridge, tail, arrived, low, high;
} Scatter;

typedef struct {
    float pose[MOST_AXES], root[MOST_AXES][MOST_AXES]; /* precision = root rootᵀ, lower triangular */
    float value, factor;                               /* points of the cloud per volume at the mode */
} Mode;

typedef struct { /* where each of the starts arrived */
    float pose[MOST_AXES][N_STARTS], bend[MOST_BENDS][N_STARTS], value[N_STARTS];
    float left[N_STARTS]; /* nats that are left to climb */
} Climbers;

static inline Vector constant(float value) { return (Vector){0} + value; }
static inline Vector choose(Integers which, Vector a, Vector b) {
    return (Vector)((which & (Integers)a) | (~which & (Integers)b));
}
typedef long long Words __attribute__((vector_size(4 * LANE)));
static inline int any(Integers which) {
    const Words words = (Words)which;
    long long all = 0;
    for (int i = 0; i < LANE / 2; i++) all |= words[i];
    return all != 0;
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

static inline void extend(const Scatter *plan, const Vector *z, int c, Vector *feature) {
    const Vector *from = feature + 2 * plan->parent[c], *by = z + 2 * plan->turn[c];
    feature[2 * c] = from[0] * by[0] - from[1] * by[1];
    feature[2 * c + 1] = from[0] * by[1] + from[1] * by[0];
}

/* Fill in exp(iω·s) of every cell and return the even part of η·T(s); the odd part goes to odd. Four sums, as each
 * has to wait for its last addition. */
static Vector evaluate_both(const Scatter *plan, const float *natural, const Vector *z, Vector *feature, Vector *odd) {
    Vector first = constant(natural[0]), second = constant(0), third = constant(0), fourth = constant(0);
    feature[0] = constant(1);
    feature[1] = constant(0);
    int c = 1;
    for (; c + 1 < plan->n_cells; c += 2) {
        extend(plan, z, c, feature);
        extend(plan, z, c + 1, feature);
        first += natural[2 * c] * feature[2 * c];
        second += natural[2 * c + 1] * feature[2 * c + 1];
        third += natural[2 * c + 2] * feature[2 * c + 2];
        fourth += natural[2 * c + 3] * feature[2 * c + 3];
    }
    if (c < plan->n_cells) {
        extend(plan, z, c, feature);
        first += natural[2 * c] * feature[2 * c];
        second += natural[2 * c + 1] * feature[2 * c + 1];
    }
    *odd = second + fourth;
    return first + third;
}

static Vector evaluate_at(const Scatter *plan, const float *natural, const Vector *z, Vector *feature) {
    Vector odd;
    const Vector even = evaluate_both(plan, natural, z, feature, &odd);
    return even + odd;
}

/* The same, with the slope and the bend (the negative second derivatives, lower triangle by rows). n is known when
 * this is compiled, so that the sums stay in registers. */
static inline __attribute__((always_inline)) Vector derive(const int n, const Scatter *plan, const float *natural,
                                                           const Vector *angle, Vector *feature, Vector *slope,
                                                           Vector *bend) {
    const int n_bends = n * (n + 1) / 2;
    Vector z[4 * MOST_AXES], rises[MOST_AXES], bends[MOST_BENDS];
    waves_of(n, angle, z);
    const Vector value = evaluate_at(plan, natural, z, feature);
    #pragma GCC unroll 6
    for (int i = 0; i < n; i++) rises[i] = constant(0);
    #pragma GCC unroll 21
    for (int i = 0; i < n_bends; i++) bends[i] = constant(0);
    for (int c = 1; c < plan->n_cells; c++) {
        const float *omega = plan->omega + c * n, *pairs = plan->pairs + c * n_bends;
        const Vector height = natural[2 * c] * feature[2 * c] + natural[2 * c + 1] * feature[2 * c + 1];
        const Vector rise = natural[2 * c + 1] * feature[2 * c] - natural[2 * c] * feature[2 * c + 1];
        #pragma GCC unroll 6
        for (int i = 0; i < n; i++) rises[i] += omega[i] * rise;
        #pragma GCC unroll 21
        for (int i = 0; i < n_bends; i++) bends[i] += pairs[i] * height;
    }
    #pragma GCC unroll 6
    for (int i = 0; i < n; i++) slope[i] = rises[i];
    #pragma GCC unroll 21
    for (int i = 0; i < n_bends; i++) bend[i] = bends[i];
    return value;
}

static Vector derive_at(const Scatter *plan, const float *natural, const Vector *angle, Vector *feature, Vector *slope,
                        Vector *bend) {
    switch (plan->n_axes) {
        case 1: return derive(1, plan, natural, angle, feature, slope, bend);
        case 2: return derive(2, plan, natural, angle, feature, slope, bend);
        case 3: return derive(3, plan, natural, angle, feature, slope, bend);
        case 4: return derive(4, plan, natural, angle, feature, slope, bend);
        case 5: return derive(5, plan, natural, angle, feature, slope, bend);
        default: return derive(6, plan, natural, angle, feature, slope, bend);
    }
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

/* Climb from a vector of even points; climbers at and behind the given one tell where they arrived. */
static void climb(const Scatter *plan, const float *natural, const Integers first, Climbers *climbers, int at,
                  Vector *feature) {
    const int n = plan->n_axes, n_bends = n * (n + 1) / 2;
    Vector pose[MOST_AXES], bend[MOST_BENDS], left = constant(0), slope[MOST_AXES], step[MOST_AXES], trial[MOST_AXES], next_slope[MOST_AXES];
    Vector next_bend[MOST_BENDS];
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
    newton_step(n, slope, bend, bound, constant(0), step);
    for (int i = 0; i < n; i++) left += 0.5f * slope[i] * step[i];
    for (int i = 0; i < n; i++) store(climbers->pose[i] + at, pose[i]);
    for (int i = 0; i < n_bends; i++) store(climbers->bend[i] + at, bend[i]);
    store(climbers->value + at, value);
    store(climbers->left + at, left);
}

/* Keep the highest distinct modes; returns how many. */
static int keep_modes(const Scatter *plan, const Climbers *climbers, float top, Mode *modes) {
    const int n = plan->n_axes;
    const float *value = climbers->value;
    int used[N_STARTS] = {0}, kept = 0;
    for (int turn = 0; turn < N_STARTS && kept < MOST_MODES; turn++) {
        int k = -1;
        for (int other = 0; other < N_STARTS; other++)
            if (!used[other] && (k < 0 || value[other] > value[k])) k = other;
        used[k] = 1;
        if (!(value[k] > top - plan->tail)) break;
        Mode *mode = modes + kept;
        int distinct = kept == 0 || climbers->left[k] < plan->arrived;
        for (int m = 0; m < kept && distinct; m++) {
            float apart[MOST_AXES], square = 0;
            for (int i = 0; i < n; i++) apart[i] = remainderf(climbers->pose[i][k] - modes[m].pose[i], TWO_PI);
            for (int j = 0; j < n; j++) {
                float along = 0;
                for (int i = j; i < n; i++) along += modes[m].root[i][j] * apart[i];
                square += along * along;
            }
            distinct = square > 1;
        }
        if (!distinct) continue;
        float volume = 2.0f * (float)plan->n_pairs;
        int positive = 1;
        for (int i = 0; i < n && positive; i++) {
            mode->pose[i] = remainderf(climbers->pose[i][k], TWO_PI);
            for (int j = 0; j <= i; j++) {
                float rest = climbers->bend[i * (i + 1) / 2 + j][k] + (i == j ? plan->ridge : 0);
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
