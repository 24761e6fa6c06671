/* The pose integrated out on a circle. As on the torus, a coarse grid tells how fine a grid the posterior needs, and
 * which part of it matters.
 *
 * A circle is a torus of which p is always 0. s and -s share their cosines and sines, so a block of points stands for
 * its mirror image too.
 */
#define ABSENT (-1e30f) /* the log density of a point that is there twice, or not at all */

/* One half of a circle: its points, and those blocks of them at which there is something to see. */
typedef struct {
    int n, middle, width, n_blocks;
    const float *cosines, *sines; /* (|q|, point) */
    int *blocks;
} Arc;

static Arc half_circle(const Plan *plan, int level, int *blocks) {
    const int n = plan->levels[level].n, width = PAD(n / 2 + 1);
    const float *cosines = plan->levels[level].columns;
    for (int i = 0; i < width / LANE; i++) blocks[i] = i * LANE;
    return (Arc){n, n / 2, width, width / LANE, cosines, cosines + plan->n_last * width, blocks};
}

/* The log density at the points of the blocks, and at their mirror images; returns the largest. */
static float evaluate_circle(const Plan *plan, const Arc *arc, const float *even, const float *odd, float *values) {
    float *mirrored = values + arc->width;
    Vector most = (Vector){0} + ABSENT;
    for (int i = 0; i < arc->n_blocks; i += 2) {
        const int both[2] = {arc->blocks[i], arc->blocks[i + 1 < arc->n_blocks ? i + 1 : i]};
        Vector same[2] = {{0}}, opposite[2] = {{0}};
        for (int q = 0; q < plan->n_last; q++) {
            const float *cosines = arc->cosines + q * arc->width, *sines = arc->sines + q * arc->width;
            for (int j = 0; j < 2; j++) {
                same[j] += even[q] * load(cosines + both[j]);
                opposite[j] += odd[q] * load(sines + both[j]);
            }
        }
        for (int j = 0; j < 2; j++) {
            const int at = both[j];
            store(values + at, same[j] + opposite[j]);
            store(mirrored + at, same[j] - opposite[j]);
            if (at == 0) mirrored[0] = ABSENT; /* 0 and π are their own mirror images */
            if (arc->middle < at + LANE) mirrored[arc->middle] = ABSENT;
            for (int k = arc->middle + 1; k < at + LANE; k++) values[k] = mirrored[k] = ABSENT; /* in the last block */
            most = larger(most, larger(load(values + at), load(mirrored + at)));
        }
    }
    return largest(most);
}

/* Keep the blocks of a fine grid near which a node of the coarse one lies above floor. */
static void choose_blocks(const Arc *coarse, const float *values, float floor, Arc *fine) {
    const float per_point = (float)coarse->n / fine->n, *mirrored = values + coarse->width;
    int count = 0;
    for (int block = 0; block < fine->width; block += LANE) {
        int first = (int)(block * per_point) - 1, last = (int)((block + LANE) * per_point) + 2, near = 0;
        first = first > 0 ? first : 0;
        last = last < coarse->middle ? last : coarse->middle;
        for (int j = first; j <= last; j++) near |= values[j] > floor || mirrored[j] > floor;
        fine->blocks[count] = block;
        count += near;
    }
    if (count) fine->n_blocks = count;
    else for (int i = 0; i < fine->n_blocks; i++) fine->blocks[i] = i * LANE; /* the coarse grid misled */
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
    Arc arc = half_circle(plan, 0, work->rows);
    float top = evaluate_circle(plan, &arc, even, odd, values);
    if (!isfinite(top)) return 1; /* torch says what is wrong with such numbers */
    if (plan->n_levels > 1) { /* the curvature at the peak is its height times the mean of q² */
        const float height = top - even[0], curvature = height > 0 && most > 0 ? bend * height / most : 0;
        const float needed = plan->least_points + plan->points_per_width * sqrtf(curvature);
        int level = 0;
        while (level < plan->n_levels && plan->levels[level].n < needed) level++;
        if (level == plan->n_levels) return 1;
        if (level) {
            const float spacing = TWO_PI / arc.n;
            Arc fine = half_circle(plan, level, work->columns);
            choose_blocks(&arc, values, top - plan->tail - 0.5f * curvature * spacing * spacing, &fine);
            arc = fine;
            top = evaluate_circle(plan, &arc, even, odd, values);
        }
    }
    float *mirrored = values + arc.width;
    Vector weights = {0};
    for (int i = 0; i < arc.n_blocks; i++) {
        const int at = arc.blocks[i];
        const Vector one = exponential(load(values + at) - top), other = exponential(load(mirrored + at) - top);
        store(values + at, one + other);
        store(mirrored + at, one - other);
        weights += one + other;
    }
    const float total = sum(weights);
    for (int q = 0; q < n_last; q++) {
        const float *cosines = arc.cosines + q * arc.width, *sines = arc.sines + q * arc.width;
        Vector cosine = {0}, sine = {0};
        for (int i = 0; i < arc.n_blocks; i++) {
            cosine += load(values + arc.blocks[i]) * load(cosines + arc.blocks[i]);
            sine += load(mirrored + arc.blocks[i]) * load(sines + arc.blocks[i]);
        }
        rotation[q] = rotation[half + q] = sum(cosine) / total;
        rotation[2 * half + q] = sum(sine) / total;
        rotation[3 * half + q] = -rotation[2 * half + q];
    }
    *log_partition = top + logf(total) + logf(TWO_PI / arc.n);
    return 0;
}
