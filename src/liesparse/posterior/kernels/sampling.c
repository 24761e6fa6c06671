/* Importance sampling of the pose in any dimension, one image at a time; sampling.py says the same in torch. */
#define HEADROOM 5.0f /* nats that a point may lie above the best mode */
#define SILENT 16.0f  /* nats below the best mode from which a point counts for nothing */
#define FEW (192 / LANE) /* even blocks that are summed here; if more of them matter, torch sums all */
#define LOUDNESS 0x1p33f /* on every weight: its square must not be a denormal number, which are slow */

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

/* Places around a mode at the ends of its cloud's arms; tells which lie on the torus only once. */
static inline Integers spread_out(const Scatter *plan, const Mode *mode, int k, Vector *angle) {
    Integers inside = ~(Integers){0};
    for (int j = plan->n_axes - 1; j >= 0; j--) {
        Vector along = load(plan->cloud + (size_t)j * plan->n_pairs + k);
        for (int i = j + 1; i < plan->n_axes; i++) along -= mode->root[i][j] * angle[i];
        angle[j] = along / mode->root[j][j];
        inside &= magnitude(angle[j]) <= constant(PI);
    }
    for (int j = 0; j < plan->n_axes; j++) angle[j] = choose(inside, angle[j], constant(0));
    return inside;
}

/* The weight of points with these values and this density of the proposal. */
static inline Vector weigh(Vector value, float top, float loudness, Vector density) {
    const Vector weight = loudness * exponential(value - top) / density;
    return choose(value > constant(top - HEADROOM - SILENT), weight, constant(0));
}

/* The clouds of one posterior. values holds η·T(s) at the even points and leaves with their weights. Leaves in total
 * Σ w exp(iω·s) over the clouds, and over the even points too unless loud says that torch must; returns Σ w² over all points; all weights are to be multiplied by exp(*scale). */
static float sample(const Scatter *plan, const float *natural, Vector *memory, float *values, float *total, float *scale,
                    int *loud) {
    const int n = plan->n_axes, n_cells = plan->n_cells;
    Vector *feature = memory, *tally = memory + 2 * n_cells, squares = constant(0);
    float *turned = (float *)(memory + 4 * n_cells), *place = turned + 2 * n_cells;
    Vector z[4 * MOST_AXES], angle[MOST_AXES], pose[MOST_AXES];
    Vector best[N_STARTS / LANE];
    Integers lane, first[N_STARTS / LANE] = {{0}};
    for (int k = 0; k < LANE; k++) lane[k] = k;
    for (int i = 0; i < N_STARTS / LANE; i++) best[i] = constant(-INFINITY);
    for (int k = 0; k < plan->n_even; k += LANE) { /* every 16th even point competes for the same start */
        const int i = k / LANE % (N_STARTS / LANE);
        const Vector value = load(values + k);
        const Integers better = value > best[i];
        best[i] = choose(better, value, best[i]);
        first[i] = (better & (lane + k)) | (~better & first[i]);
    }
    Mode modes[MOST_MODES];
    int n_modes = 0;
    float top = -INFINITY, weight = 0;
    for (int i = 0; i < N_STARTS / LANE; i++) top = fmaxf(top, largest(best[i]));
    if (top - natural[0] > 0.3f * plan->low) { /* a lower one has no mode that rises above low */
        Climbers climbers;
        float highest = -INFINITY;
        for (int i = 0; i < N_STARTS / LANE; i++) {
            climb(plan, natural, first[i], &climbers, i * LANE, feature);
            highest = fmaxf(highest, largest(load(climbers.value + i * LANE)));
        }
        top = fmaxf(highest, top);
        const float rise = fminf(fmaxf((top - natural[0] - plan->low) / (plan->high - plan->low), 0), 1);
        weight = rise * rise * (3 - 2 * rise);
        if (weight > 0) n_modes = keep_modes(plan, &climbers, highest, modes);
    }
    top += HEADROOM;
    const float even_density = (float)plan->n_even / powf(TWO_PI, (float)n);
    const float loudness = LOUDNESS * even_density;
    int some[FEW];
    *loud = 0;
    for (int k = 0; k < plan->n_even; k += LANE) {
        const Vector value = load(values + k);
        if (n_modes && !any(value > constant(top - HEADROOM - SILENT))) {
            store(values + k, constant(0));
            continue;
        }
        if (*loud < FEW) some[*loud] = k;
        ++*loud;
        Vector density = constant(even_density);
        for (int j = 0; j < n; j++) angle[j] = load(plan->even + (size_t)j * plan->n_even + k);
        for (int m = 0; m < n_modes; m++) density += weight * modes[m].factor * proposal(plan, modes + m, angle);
        const Vector found = weigh(value, top, loudness, density);
        store(values + k, found);
        squares += found * found;
    }
    for (int i = 0; i < 2 * n_cells; i++) tally[i] = constant(0);
    if (*loud <= FEW) {
        for (int b = 0; b < *loud; b++) {
            for (int j = 0; j < n; j++) angle[j] = load(plan->even + (size_t)j * plan->n_even + some[b]);
            waves_of(n, angle, z);
            evaluate_at(plan, natural, z, feature);
            const Vector found = load(values + some[b]);
            for (int i = 0; i < 2 * n_cells; i++) tally[i] += found * feature[i];
        }
        *loud = 0;
    }
    for (int i = 0; i < 2 * n_cells; i++) total[i] = sum(tally[i]);
    for (int m = 0; m < n_modes; m++) {
        for (int j = 0; j < n; j++) pose[j] = constant(modes[m].pose[j]);
        waves_of(n, pose, z);
        evaluate_at(plan, natural, z, feature);
        for (int c = 0; c < n_cells; c++) { /* seen from the mode, s and -s share their cosines and sines */
            const float cosine = feature[2 * c][0], sine = feature[2 * c + 1][0];
            place[2 * c] = cosine;
            place[2 * c + 1] = sine;
            turned[2 * c] = natural[2 * c] * cosine + natural[2 * c + 1] * sine;
            turned[2 * c + 1] = natural[2 * c + 1] * cosine - natural[2 * c] * sine;
        }
        for (int i = 0; i < 2 * n_cells; i++) tally[i] = constant(0);
        for (int k = 0; k < plan->n_pairs; k += LANE) {
            const float volume = weight * modes[m].factor;
            Vector odd, ahead, back, found[2];
            const Integers inside = spread_out(plan, modes + m, k, angle);
            waves_of(n, angle, z);
            const Vector even = evaluate_both(plan, turned, z, feature, &odd);
            ahead = back = even_density + volume * load(plan->share + k);
            for (int other = 0; other < n_modes; other++) {
                if (other == m) continue;
                Vector there[MOST_AXES];
                for (int j = 0; j < n; j++) there[j] = pose[j] + angle[j];
                ahead += weight * modes[other].factor * proposal(plan, modes + other, there);
                for (int j = 0; j < n; j++) there[j] = pose[j] - angle[j];
                back += weight * modes[other].factor * proposal(plan, modes + other, there);
            }
            const Vector count = choose(inside, load(plan->count + k), constant(0));
            found[0] = count * weigh(even + odd, top, weight * loudness, ahead);
            found[1] = count * weigh(even - odd, top, weight * loudness, back);
            const Vector both = found[0] + found[1], excess = found[0] - found[1];
            for (int c = 0; c < n_cells; c++) {
                tally[2 * c] += both * feature[2 * c];
                tally[2 * c + 1] += excess * feature[2 * c + 1];
            }
            squares += found[0] * found[0] + found[1] * found[1];
        }
        for (int c = 0; c < n_cells; c++) {
            const float cosine = sum(tally[2 * c]), sine = sum(tally[2 * c + 1]);
            total[2 * c] += cosine * place[2 * c] - sine * place[2 * c + 1];
            total[2 * c + 1] += cosine * place[2 * c + 1] + sine * place[2 * c];
        }
    }
    *scale = top - logf(loudness);
    return sum(squares);
}

/* Of natural parameters (image, cell, 2) the results are: values at the even points (image, even point), which leave
 * with their weights, sums (image, cell, 2), their scale, Σ w², and whether torch must sum over the even points. */
EXPORT void sample_clouds(Job *job) {
    const Scatter *plan = job->plan;
    float *values = job->results[0], *total = job->results[1], *scale = job->results[2], *squares = job->results[3];
    int *loud = job->results[4];
    const size_t row = 2 * (size_t)plan->n_cells;
    void *whole;
    Vector *memory = (Vector *)allocate(2 * row * LANE + PAD(2 * row), &whole);
    if (!memory) {
        job->failed = 1;
        return;
    }
    for (int b = take(job, 1); b < job->batch; b = take(job, 1))
        squares[b] = sample(plan, job->input + row * b, memory, values + (size_t)plan->n_even * b, total + row * b,
                            scale + b, loud + b);
    free(whole);
}
