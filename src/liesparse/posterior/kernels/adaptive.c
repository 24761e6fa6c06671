/* As adaptive.py: a coarse grid tells how fine a grid the posterior needs, and which part of it matters. */
/* Fine points of one axis at which the largest value, a parabola through the coarse nodes, exceeds floor.
 * most has room for a vector before and behind; the nodes are continued there around the circle. */
static int choose_points(float *most, int n_coarse, int n_fine, float floor, int *chosen) {
    float slopes[n_coarse + LANE], bends[n_coarse + LANE], bounds[n_coarse + LANE];
    most[-1] = most[n_coarse - 1];
    most[n_coarse] = most[0];
    most[n_coarse + 1] = most[1];
    for (int i = 0; i <= n_coarse; i += LANE) { /* node n is node 0 again, seen from the other side */
        const Vector here = load(most + i), left = load(most + i - 1), right = load(most + i + 1);
        const Vector slope = 0.5f * (right - left), bend = 0.5f * (right + left) - here;
        store(slopes + i, slope);
        store(bends + i, bend);
        store(bounds + i, here + 0.5f * magnitude(slope) + 0.25f * magnitude(bend));
    }
    const float step = (float)n_coarse / n_fine, per_node = (float)n_fine / n_coarse;
    int count = 0;
    for (int node = 0; node <= n_coarse; node++) {
        if (bounds[node] < floor) continue;
        const int end = node == n_coarse ? n_fine : (int)ceilf((node + 0.5f) * per_node);
        for (int f = node ? (int)ceilf((node - 0.5f) * per_node) : 0; f < end; f++) {
            const float t = f * step - node;
            chosen[count] = f;
            count += most[node] + t * (slopes[node] + t * bends[node]) > floor;
        }
    }
    return count;
}

/* Turn sorted points so that an arc across the end becomes one run; returns whether they are one run. */
static int make_run(int *chosen, int count, int n) {
    int cut = 0;
    while (cut + 1 < count && chosen[cut + 1] == chosen[cut] + 1) cut++;
    if (cut + 1 == count) return 1;
    if (chosen[0] != 0 || chosen[count - 1] != n - 1) return 0;
    for (int i = cut + 1; i + 1 < count; i++)
        if (chosen[i + 1] != chosen[i] + 1) return 0;
    const int start = chosen[cut + 1];
    for (int i = 0; i < count; i++) chosen[i] = start + i < n ? start + i : start + i - n;
    return 1;
}

/* The largest values of the coarse grid along both axes, back in the order of the points. */
static void profile(const Level *coarse, const Work *work) {
    const int side = n_columns_half(coarse), width = PAD(2 * side), n = coarse->n;
    float columns[width];
    for (int block = 0; block < width; block += LANE) {
        Vector most = load(work->values + block);
        for (int i = 1; i < 4 * n_row_orbits(coarse); i++) most = larger(most, load(work->values + i * width + block));
        store(columns + block, most);
    }
    for (int j = 0; j < n; j++) work->column_max[j] = j <= n / 2 ? columns[j] : columns[mirror_of(coarse) + n - j];
    for (int orbit = 0; orbit < n_row_orbits(coarse); orbit++) {
        const int at[4] = {orbit, orbit ? n - orbit : 0, orbit + n / 2, n / 2 - orbit};
        const float *rows = work->values + 4 * orbit * width;
        Vector most[4];
        for (int member = 0; member < 4; member++) {
            most[member] = load(rows + member * width);
            for (int block = LANE; block < width; block += LANE)
                most[member] = larger(most[member], load(rows + member * width + block));
        }
        const Quad tops = largest_of_four(most);
        for (int member = 0; member < 4; member++) work->row_max[at[member]] = tops[member];
    }
}

/* How fine a grid resolves the posterior (n_levels: none does), and which of its rows and columns matter. */
static int look(const Plan *plan, const float *natural, float top, Work *work, int *n_rows, int *n_columns) {
    const Level *coarse = plan->levels;
    const int half = plan->half;
    Vector sizes = {0}, firsts = {0}, lasts = {0};
    for (int i = 0; i < 2 * half; i += LANE) { /* curvature at the peak: its height times the mean square frequency */
        const Vector length = magnitude(load(natural + i)) + magnitude(load(natural + 2 * half + i));
        firsts += length * load(plan->squares + i);
        lasts += length * load(plan->squares + 2 * half + i);
        sizes += length;
    }
    const float per_size = top / (sum(sizes) + 1e-30f), bend1 = per_size * sum(firsts), bend2 = per_size * sum(lasts);
    const float needed = plan->least_points + plan->points_per_width * sqrtf(bend1 > bend2 ? bend1 : bend2);
    int level = 0;
    while (level < plan->n_levels && plan->levels[level].n < needed) level++;
    if (level == 0 || level == plan->n_levels) return level;
    profile(coarse, work);
    /* A mode between coarse nodes stands higher than it seems, by up to a quarter of the drop over one cell. */
    const float half_square = 0.5f * (TWO_PI / coarse->n) * (TWO_PI / coarse->n);
    const float drop1 = half_square * bend1, drop2 = half_square * bend2;
    const int n_fine = plan->levels[level].n;
    const float row_floor = top - plan->tail - 0.5f * drop1 - 0.4f * drop2;
    const float column_floor = top - plan->tail - 0.4f * drop1 - 0.5f * drop2;
    *n_rows = choose_points(work->row_max, coarse->n, n_fine, row_floor, work->rows);
    *n_columns = choose_points(work->column_max, coarse->n, n_fine, column_floor, work->columns);
    return level;
}

INLINE void put_tile(const int rows, const int blocks, int depth, const float *weights, int across, int along,
                     const float *from, int width, float *to) {
    Tile sums;
    multiply(rows, blocks, depth, weights, across, along, from, width, LANE, sums);
    for (int i = 0; i < rows; i++)
        for (int b = 0; b < blocks; b++) store(to + (size_t)i * width + b * LANE, sums[i][b]);
}

/* to[i][column] = Σ_k weights[i · across + k · along] · from[k][column] */
static void multiply_rows(int n_rows, int depth, int width, const float *weights, int across, int along, const float *from,
                          float *to) {
    for (int block = 0, blocks; block < width; block += blocks * LANE) {
        blocks = fewer(MOST_BLOCKS, (width - block) / LANE);
        const int at_once = share_rows(n_rows, blocks);
        for (int i = 0; i < n_rows; i += at_once)
            CALL_TILE(put_tile, fewer(at_once, n_rows - i), blocks, depth, weights + i * across, across, along,
                      from + block, width, to + (size_t)i * width + block);
    }
}

/* Sum over the chosen rows and columns; returns ln Z without ω = 0 */
static float sum_part(const Plan *plan, const Level *level, int n_rows, int n_columns, float *rotation, Work *work) {
    const int n = 2 * plan->n_first, n_last = plan->n_last, padded = PAD(n_last), width = PAD(n_columns);
    int stride = 2 * PAD(level->n) + LANE;
    const float *columns = level->columns, *by_column = level->rows;
    float *free = work->packed;
    const float *weights = level->first + n * work->rows[0];
    if (work->rows[n_rows - 1] - work->rows[0] + 1 > n_rows) { /* not one run */
        for (int i = 0; i < n_rows; i++, free += n) memcpy(free, level->first + n * work->rows[i], sizeof(float) * n);
        weights = work->packed;
    }
    if (make_run(work->columns, n_columns, level->n)) {
        columns += work->columns[0];
        by_column += 2 * padded * work->columns[0];
    } else {
        float *packed = free, *rows = free + 2 * n_last * width;
        for (int q = 0; q < 2 * n_last; q++) store(packed + q * width + width - LANE, (Vector){0});
        for (int j = 0; j < n_columns; j++) {
            for (int q = 0; q < 2 * n_last; q++) packed[q * width + j] = columns[q * stride + work->columns[j]];
            memcpy(rows + 2 * padded * j, by_column + 2 * padded * work->columns[j], sizeof(float) * 2 * padded);
        }
        columns = packed;
        stride = width;
        by_column = rows;
    }
    turn_last(plan, work->mixed, columns, stride, width, 0, width, width, work->parts); /* mixed as on the coarse grid */
    multiply_rows(n_rows, n, width, weights, n, 1, work->parts, work->values);
    Vector highest = (Vector){0} - 1e30f, beyond = {0};
    for (int j = n_columns; j < width; j++) beyond[j - width + LANE] = -1e30f;
    for (int i = 0; i < n_rows; i++) {
        float *row = work->values + (size_t)i * width;
        for (int j = 0; j < width - LANE; j += LANE) highest = larger(highest, load(row + j));
        const Vector last = load(row + width - LANE) + beyond;
        store(row + width - LANE, last);
        highest = larger(highest, last);
    }
    const float top = largest(highest);
    Vector sums = {0};
    for (int i = 0; i < n_rows * width; i += LANE) {
        const Vector weight = exponential(load(work->values + i) - top);
        store(work->values + i, weight);
        sums += weight;
    }
    const float total = sum(sums);
    multiply_rows(n, n_rows, width, weights, 1, n, work->values, work->parts);
    project_last(plan, n_columns, work->parts, 0, width, 2 * width, by_column, 1 / total, rotation);
    return top + logf(total) + 2 * logf(TWO_PI / level->n);
}

/* ---- one posterior ---- */

/* natural and rotation are one layer each; returns 0, or 1 if no level is fine enough */
static int integrate(const Plan *plan, float *natural, float *rotation, float *log_partition, Work *work) {
    if (plan->n_axes == 1) return integrate_circle(plan, natural, rotation, log_partition, work);
    float still = 0; /* ω = 0 shifts ln Z and nothing else */
    if (plan->zero >= 0) {
        still = natural[plan->zero];
        natural[plan->zero] = natural[plan->zero + 2 * plan->half] = 0;
    }
    const float top = evaluate_grid(plan, plan->levels, natural, work);
    if (!isfinite(top)) return 1; /* torch says what is wrong with such numbers */
    int level = 0, n_rows = 0, n_columns = 0;
    if (plan->n_levels > 1) level = look(plan, natural, top, work, &n_rows, &n_columns);
    if (level == plan->n_levels) return 1;
    const Level *fine = plan->levels + level;
    float whole_top = top;
    int whole = level == 0;
    const int area = n_rows * PAD(n_columns); /* of nothing, where the coarse grid misled: then look everywhere */
    if (!whole && (!area || 5 * area > 4 * fine->n * PAD(n_columns_half(fine)))) { /* the whole costs less */
        whole = 1;
        whole_top = evaluate_grid(plan, fine, natural, work);
    }
    *log_partition = still + (whole ? sum_grid(plan, fine, whole_top, rotation, work)
                                    : sum_part(plan, fine, n_rows, n_columns, rotation, work));
    return 0;
}

static size_t widest(const Plan *plan) {
    size_t width = 0;
    for (int level = 0; level < plan->n_levels; level++) {
        const size_t whole = 2 * PAD(plan->levels[level].n / 2 + 1);
        width = whole > width ? whole : width;
    }
    return width + 2 * LANE;
}

/* Floats for the tables of chosen rows and columns. */
static size_t packed_size(const Plan *plan) {
    return plan->n_levels > 1 ? 2 * (plan->n_first + plan->n_last + PAD(plan->n_last)) * widest(plan) : 0;
}

/* Floats that one thread needs. */
static size_t work_size(const Plan *plan) {
    const size_t width = widest(plan);
    if (plan->n_axes == 1) return 4 * plan->half + 3 * width;
    return 4 * plan->half + (2 * plan->n_first + 4) * width + packed_size(plan) + 4 * width + (width + 8) * width;
}

static void divide(const Plan *plan, float *memory, Work *work) {
    const size_t width = widest(plan);
    work->mixed = memory;
    if (plan->n_axes == 1) {
        work->values = memory + 4 * plan->half;
        work->rows = (int *)(work->values + width);
        work->columns = work->rows + width;
        return;
    }
    work->parts = work->mixed + 4 * plan->half;
    work->packed = work->parts + (2 * plan->n_first + 4) * width;
    work->row_max = work->packed + packed_size(plan) + LANE;
    work->column_max = work->row_max + width;
    work->rows = (int *)(work->column_max + width - LANE);
    work->columns = work->rows + width;
    work->values = (float *)(work->columns + width);
}
