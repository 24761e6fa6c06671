/* Entry points: the moments of many posteriors, and FISTA on the codes with the pose integrated out. */
#define GROUP 4 /* images that share each load of the dictionary */

/* Bring planes (plane, 2) into the layers. */
static void pull(const Plan *plan, const float *planes, float *layers) {
    const int half = plan->half;
    memset(layers, 0, sizeof(float) * 4 * half * plan->n_layers);
    for (int l = 0; l < plan->n_irreps; l++) {
        layers[plan->place[l]] = planes[2 * l];
        layers[plan->place[l] + 2 * half] = planes[2 * l + 1];
    }
}

/* Add planes (plane, 2) up in one layer: equal frequencies share one coefficient. */
static void fold(const Plan *plan, const float *planes, float *layer) {
    const int half = plan->half;
    memset(layer, 0, sizeof(float) * 4 * half);
    for (int l = 0; l < plan->n_irreps; l++) {
        layer[plan->place[l] % (4 * half)] += planes[2 * l];
        layer[plan->place[l] % (4 * half) + 2 * half] += planes[2 * l + 1];
    }
}

/* Of natural parameters the results are R̄, ln Z, and which posteriors failed: those too sharp for every level. */
EXPORT void moments(Job *job) {
    const Plan *plan = job->plan;
    float *rotation = job->results[0], *log_partition = job->results[1];
    unsigned char *failed = job->results[2];
    const int half = plan->half, layer = 4 * half;
    void *whole;
    Work work;
    float *folded = allocate(work_size(plan) + 2 * layer, &whole);
    if (!folded) {
        job->failed = 1;
        return;
    }
    float *found = folded + layer;
    divide(plan, found + layer, &work);
    memset(found, 0, sizeof(float) * layer);
    for (int b = take(job, 1); b < job->batch; b = take(job, 1)) {
        float *to = rotation + (size_t)2 * plan->n_irreps * b;
        fold(plan, job->input + (size_t)2 * plan->n_irreps * b, folded);
        failed[b] = integrate(plan, folded, found, log_partition + b, &work);
        for (int l = 0; l < plan->n_irreps; l++) {
            to[2 * l] = found[plan->place[l] % layer];
            to[2 * l + 1] = found[plan->place[l] % layer + 2 * half];
        }
    }
    free(whole);
}

typedef struct {
    int n_components, n_steps, exact, subgradient;
    float step, sparsity, variance;
    const float *dictionary; /* (component, plane, 2): A = WᵀΦ */
    const float *prior;      /* (plane, 2) */
} Task;

/* u = A α for a group of images, two vectors at a time */
static void compose(const float *dictionary, int n_components, int size, const float *codes, float *shapes) {
    for (int i = 0; i < size; i += 2 * LANE) {
        Vector u[GROUP] = {{0}}, w[GROUP] = {{0}};
        for (int k = 0; k < n_components; k++) {
            const Vector atom = load(dictionary + (size_t)k * size + i);
            const Vector more = load(dictionary + (size_t)k * size + i + LANE);
            for (int g = 0; g < GROUP; g++) {
                u[g] += codes[g * n_components + k] * atom;
                w[g] += codes[g * n_components + k] * more;
            }
        }
        for (int g = 0; g < GROUP; g++) {
            store(shapes + (size_t)g * size + i, u[g]);
            store(shapes + (size_t)g * size + i + LANE, w[g]);
        }
    }
}

/* Turn the shape of one image into its residual turned back, R̄ᵀv - u or R̄ᵀ(v - R̄u), in place. */
static int residual(const Plan *plan, const Task *task, const float *image, const float *prior, float *shape,
                    float *natural, float *rotation, Work *work) {
    const int half = plan->half, layer = 4 * half;
    const float precision = 1 / task->variance;
    memcpy(natural, prior, sizeof(float) * layer);
    for (int at = 0; at < layer * plan->n_layers; at += layer)
        for (int i = 0; i < 2 * half; i += LANE) { /* η̂ = η + ūv/σ² */
            const Vector u1 = load(shape + at + i), u2 = load(shape + at + 2 * half + i);
            const Vector v1 = load(image + at + i), v2 = load(image + at + 2 * half + i);
            store(natural + i, load(natural + i) + (u1 * v1 + u2 * v2) * precision);
            store(natural + 2 * half + i, load(natural + 2 * half + i) + (u1 * v2 - u2 * v1) * precision);
        }
    float log_partition;
    if (integrate(plan, natural, rotation, &log_partition, work)) {
        memset(shape, 0, sizeof(float) * layer * plan->n_layers); /* whoever does it again starts from the image */
        return 1;
    }
    for (int at = 0; at < layer * plan->n_layers; at += layer)
        for (int i = 0; i < 2 * half; i += LANE) {
            const Vector c = load(rotation + i), s = load(rotation + 2 * half + i);
            const Vector u1 = load(shape + at + i), u2 = load(shape + at + 2 * half + i);
            const Vector v1 = load(image + at + i), v2 = load(image + at + 2 * half + i);
            const Vector certain = task->exact ? (Vector){0} + 1.0f : c * c + s * s;
            store(shape + at + i, c * v1 + s * v2 - certain * u1);
            store(shape + at + 2 * half + i, c * v2 - s * v1 - certain * u2);
        }
    return 0;
}

static inline float step_code(const Task *task, float here, float slope) {
    const float sign = task->subgradient ? (float)((here > 0) - (here < 0)) : 1.0f;
    const float moved = here + task->step * (slope / task->variance - task->sparsity * sign);
    return moved > 0 ? moved : 0;
}

/* codes ← max(0, ahead + step (∇ - λ sign)) for a group of images, two codes at a time */
static void advance(const Task *task, const float *dictionary, int size, const float *residuals, const float *ahead,
                    float *codes) {
    const int n = task->n_components;
    for (int k = 0; k < n; k += 2) {
        const int other = k + 1 < n ? k + 1 : k;
        Vector dots[GROUP] = {{0}}, more[GROUP] = {{0}};
        for (int i = 0; i < size; i += LANE) {
            const Vector atom = load(dictionary + (size_t)k * size + i);
            const Vector next = load(dictionary + (size_t)other * size + i);
            for (int g = 0; g < GROUP; g++) {
                const Vector error = load(residuals + (size_t)g * size + i);
                dots[g] += atom * error;
                more[g] += next * error;
            }
        }
        for (int g = 0; g < GROUP; g++) {
            codes[g * n + k] = step_code(task, ahead[g * n + k], sum(dots[g]));
            codes[g * n + other] = step_code(task, ahead[g * n + other], sum(more[g]));
        }
    }
}

/* FISTA on the codes of each image. The results are the codes, which hold where to start, and which images failed. */
EXPORT void ascend(Job *job) {
    const Plan *plan = job->plan;
    const Task *task = job->task;
    float *codes = job->results[0];
    unsigned char *failed = job->results[1];
    const int batch = job->batch;
    const int layer = 4 * plan->half, size = layer * plan->n_layers, n_components = task->n_components;
    const size_t n_codes = (size_t)GROUP * n_components, n_planes = (size_t)GROUP * size;
    void *whole;
    Work work;
    const size_t room = (size_t)size * n_components + 2 * n_planes + 3 * layer + PAD(3 * n_codes) + work_size(plan);
    float *dictionary = allocate(room, &whole);
    if (!dictionary) {
        job->failed = 1;
        return;
    }
    float *planes = dictionary + (size_t)size * n_components, *shapes = planes + n_planes;
    float *prior = shapes + n_planes, *natural = prior + layer, *rotation = natural + layer;
    float *current = rotation + layer, *following = current + n_codes, *ahead = following + n_codes;
    divide(plan, current + PAD(3 * n_codes), &work);
    memset(rotation, 0, sizeof(float) * layer);
    for (int k = 0; k < n_components; k++)
        pull(plan, task->dictionary + (size_t)2 * plan->n_irreps * k, dictionary + (size_t)size * k);
    fold(plan, task->prior, prior);
    for (int first = take(job, GROUP); first < batch; first = take(job, GROUP)) {
        const int count = batch - first < GROUP ? batch - first : GROUP;
        memset(planes, 0, sizeof(float) * n_planes);
        memset(ahead, 0, sizeof(float) * n_codes);
        memset(failed + first, 0, count);
        for (int g = 0; g < count; g++)
            pull(plan, job->input + (size_t)2 * plan->n_irreps * (first + g), planes + (size_t)g * size);
        memcpy(ahead, codes + (size_t)first * n_components, sizeof(float) * count * n_components);
        memcpy(current, ahead, sizeof(float) * n_codes);
        double momentum = 1;
        for (int t = 0; t < task->n_steps; t++) {
            compose(dictionary, n_components, size, ahead, shapes);
            for (int g = 0; g < count; g++)
                failed[first + g] |= residual(plan, task, planes + (size_t)g * size, prior, shapes + (size_t)g * size,
                                              natural, rotation, &work);
            advance(task, dictionary, size, shapes, ahead, following);
            const double next_momentum = (1 + sqrt(1 + 4 * momentum * momentum)) / 2;
            const float push = (float)((momentum - 1) / next_momentum);
            for (size_t i = 0; i < n_codes; i++) {
                ahead[i] = following[i] + push * (following[i] - current[i]);
                current[i] = following[i];
            }
            momentum = next_momentum;
        }
        memcpy(codes + (size_t)first * n_components, current, sizeof(float) * count * n_components);
    }
    free(whole);
}
