/* The pose integrated out on a circle: a coarse grid tells how fine a grid the posterior needs, which is summed whole.
 *
 * A circle is a torus of which p is always 0. s and -s share their cosines and sines.
 */
#define ABSENT (-1e30f) /* the log density of a point that is there twice, or not at all */

typedef struct {
    int middle, width, stride;
    const float *cosines, *sines; /* (|q|, point) */
} Arc;

/* The second of two that are summed together: the next one, or where there is none the first again. */
static inline int partner(int i, int step, int end) { return i + step < end ? i + step : i; }

static Arc half_circle(const Plan *plan, int level) {
    const int n = plan->levels[level].n, stride = 2 * PAD(n) + LANE;
    const float *cosines = plan->levels[level].columns;
    return (Arc){n / 2, PAD(n / 2 + 1), stride, cosines, cosines + plan->n_last * stride};
}

/* The log density at the points of half a circle, then at their mirror images; returns the largest. */
static float evaluate_circle(const Plan *plan, const Arc *arc, const float *even, const float *odd, float *values) {
    float *mirrored = values + arc->width;
    for (int block = 0; block < arc->width; block += 2 * LANE) {
        const int next = partner(block, LANE, arc->width);
        Vector same[2] = {{0}}, opposite[2] = {{0}};
        for (int q = 0; q < plan->n_last; q++) {
            const float *cosine = arc->cosines + q * arc->stride, *sine = arc->sines + q * arc->stride;
            same[0] += even[q] * load(cosine + block);
            same[1] += even[q] * load(cosine + next);
            opposite[0] += odd[q] * load(sine + block);
            opposite[1] += odd[q] * load(sine + next);
        }
        store(values + block, same[0] + opposite[0]);
        store(mirrored + block, same[0] - opposite[0]);
        store(values + next, same[1] + opposite[1]);
        store(mirrored + next, same[1] - opposite[1]);
    }
    for (int j = arc->middle + 1; j < arc->width; j++) values[j] = mirrored[j] = ABSENT;
    mirrored[0] = mirrored[arc->middle] = ABSENT; /* 0 and π are their own mirror images */
    Vector most = load(values);
    for (int block = LANE; block < 2 * arc->width; block += LANE) most = larger(most, load(values + block));
    return largest(most);
}

/* As integrate() of adaptive.c. */
static int integrate_circle(const Plan *plan, const float *natural, float *rotation, float *log_partition, Work *work) {
    const int half = plan->half, n_last = plan->n_last;
    float *even = work->mixed, *odd = work->mixed + half, *values = work->values, bend = 0, most = 0;
    for (int q = 0; q < n_last; q++) { /* q and -q together */
        even[q] = natural[q] + natural[half + q];
        odd[q] = natural[2 * half + q] - natural[3 * half + q];
        const float size = q ? sqrtf(even[q] * even[q] + odd[q] * odd[q]) : 0;
        most += size;
        bend += q * q * size;
    }
    Arc arc = half_circle(plan, 0);
    float top = evaluate_circle(plan, &arc, even, odd, values);
    if (!isfinite(top)) return 1; /* torch says what is wrong with such numbers */
    int level = 0;
    if (plan->n_levels > 1) { /* the curvature at the peak is its height times the mean of q² */
        const float height = top - even[0], curvature = height > 0 && most > 0 ? bend * height / most : 0;
        const float needed = plan->least_points + plan->points_per_width * sqrtf(curvature);
        while (level < plan->n_levels && plan->levels[level].n < needed) level++;
        if (level == plan->n_levels) return 1;
    }
    if (level) {
        arc = half_circle(plan, level);
        top = evaluate_circle(plan, &arc, even, odd, values);
    }
    float *mirrored = values + arc.width;
    Vector weights = {0};
    for (int block = 0; block < arc.width; block += LANE) {
        const Vector one = exponential(load(values + block) - top), other = exponential(load(mirrored + block) - top);
        store(values + block, one + other);
        store(mirrored + block, one - other);
        weights += one + other;
    }
    const float total = sum(weights);
    for (int q = 0; q < n_last; q += 2) {
        const int both[2] = {q, partner(q, 1, n_last)};
        Vector cosine[2] = {{0}}, sine[2] = {{0}};
        for (int block = 0; block < arc.width; block += LANE)
            for (int i = 0; i < 2; i++) {
                cosine[i] += load(values + block) * load(arc.cosines + both[i] * arc.stride + block);
                sine[i] += load(mirrored + block) * load(arc.sines + both[i] * arc.stride + block);
            }
        for (int i = 0; i < 2; i++) {
            float *to = rotation + both[i];
            to[0] = to[half] = sum(cosine[i]) / total;
            to[2 * half] = sum(sine[i]) / total;
            to[3 * half] = -to[2 * half];
        }
    }
    *log_partition = top + logf(total) + logf(TWO_PI / plan->levels[level].n);
    return 0;
}
