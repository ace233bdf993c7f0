// Attention over paged KV on any CPU: loops over short vectors of floats, which every compiler knows how to do quickly.
//
// A query row is computed in the same way whatever else is in the step: its keys come block by block in their order, a
// score is summed over the dimensions in their order, and rows share nothing but the reading of a block. So batching,
// chunking and caching change no bit of a result.
//
// KV, float or half, is what keys and values are stored in. Of each layer, block and KV head, one after the other:
//
//     keys     [dimension][slot]        values     [slot][dimension]
//
// One call does a layer: queries and keys are normalised (where the model does) and rotated, keys and values are written
// into their blocks, and every query row attends to what it may see.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <tbb/parallel_for.h>

#ifdef __ARM_FP16_FORMAT_IEEE
using half = __fp16;
#else
using half = _Float16;
#endif

namespace {

constexpr int BLOCK = 32;        // tokens a KV block holds
constexpr int TILE = 16;         // tokens that go over a block while it is in the cache
constexpr float NEVER = -1e30f;  // the running maximum before any key was seen

// Four floats in a register, and so many of them that neither loads nor multiplications wait for each other.
using Vector = float __attribute__((vector_size(16)));
using Integers = int32_t __attribute__((vector_size(16)));
constexpr int NUM_VECTORS = 8;
constexpr int SPAN = NUM_VECTORS * 4;
static_assert(SPAN == BLOCK, "the scores of a block are one span");

inline Vector load(const float* from) {
    Vector v;
    memcpy(&v, from, sizeof(v));
    return v;
}

inline void store(float* to, Vector v) { memcpy(to, &v, sizeof(v)); }

// Tokens [first, first + count) of the step, all of one sequence.
struct Item {
    int first, count;
    const int* table;
};

struct Attention {
    int num_layers, num_heads, num_kv_heads, head_dim, num_blocks;
    float norm_eps;
    const float* angles;                       // [position][cos of head_dim / 2, sin of head_dim / 2]
    std::vector<const float*> q_norm, k_norm;  // a layer's weights, or null
    std::vector<int> windows;                  // keys that a token of a layer sees, its own the last; 0: all
    std::vector<const float*> sinks;           // a layer's logit of each query head that gives nothing, or null
    KV* kv;

    std::vector<int> positions, slots;         // of each token: its position, its block * BLOCK + offset
    std::vector<int> tables;
    std::vector<Item> items;
    std::vector<float> queries;                // [token][query head][head_dim], scaled

    int group() const { return num_heads / num_kv_heads; }
    int num_tokens() const { return (int)positions.size(); }
    KV* keys(int layer, int block, int head) const {
        return kv + (((size_t)layer * num_blocks + block) * num_kv_heads + head) * 2 * head_dim * BLOCK;
    }
    KV* values(int layer, int block, int head) const { return keys(layer, block, head) + head_dim * BLOCK; }
};

// A row's softmax so far: the largest score, the sum of the weights, and the values they weigh.
struct Row {
    const float* query;
    float largest, total;
    float* mixed;
};

// Normalise a head where the model does, and turn it by its position's angles.
void turn(const Attention& a, const float* x, const float* norm, const float* angles, float* turned) {
    const int half = a.head_dim / 2;
    float scale = 1;
    if (norm) {
        float squares = 0;
        for (int i = 0; i < a.head_dim; i++) squares += x[i] * x[i];
        scale = 1 / std::sqrt(squares / a.head_dim + a.norm_eps);
    }
    const float *cos = angles, *sin = angles + half;
    for (int i = 0; i < half; i++) {
        float first = x[i] * scale, second = x[i + half] * scale;
        if (norm) first *= norm[i], second *= norm[i + half];
        turned[i] = first * cos[i] - second * sin[i];
        turned[i + half] = second * cos[i] + first * sin[i];
    }
}

void write_token(Attention& a, int layer, int token, const float* row) {
    const int D = a.head_dim, block = a.slots[token] / BLOCK, slot = a.slots[token] % BLOCK;
    const float* angles = a.angles + (size_t)a.positions[token] * D;
    const float scale = 1 / std::sqrt((float)D);
    float* query = a.queries.data() + (size_t)token * a.num_heads * D;
    for (int h = 0; h < a.num_heads; h++) {
        turn(a, row + h * D, a.q_norm[layer], angles, query + h * D);
        for (int d = 0; d < D; d++) query[h * D + d] *= scale;
    }
    std::vector<float> turned(D);
    for (int h = 0; h < a.num_kv_heads; h++) {
        turn(a, row + (a.num_heads + h) * D, a.k_norm[layer], angles, turned.data());
        KV* keys = a.keys(layer, block, h) + slot;
        for (int d = 0; d < D; d++) keys[d * BLOCK] = (KV)turned[d];
        const float* value = row + (a.num_heads + a.num_kv_heads + h) * D;
        KV* values = a.values(layer, block, h) + slot * D;
        for (int d = 0; d < D; d++) values[d] = (KV)value[d];
    }
}

// e^x for x <= 0, without a branch: 2^n * e^r, with r within half a binary order of zero.
inline Vector exp_of(Vector x) {
    const Vector zero = {}, lowest = zero - 87;
    const Vector clamped = x < lowest ? lowest : x;
    const Integers n = __builtin_convertvector(clamped * 1.44269504f - 0.5f, Integers);
    const Vector whole = __builtin_convertvector(n, Vector);
    const Vector r = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vector p = zero + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return x < lowest ? zero : p * (Vector)((n + 127) << 23);
}

// Scores become weights: e to the power of each, less the largest so far. Only slots [first, count) are to be seen.
// Returns what the weights of earlier blocks shrink by, now that there may be a larger score.
inline float weigh(Row& row, float* scores, int first, int count) {
    for (int j = 0; j < first; j++) scores[j] = -INFINITY;
    for (int j = count; j < BLOCK; j++) scores[j] = -INFINITY;
    Vector high = load(scores), sums = {};
    for (int i = 1; i < NUM_VECTORS; i++) {
        const Vector other = load(scores + 4 * i);
        high = other > high ? other : high;
    }
    const float largest = std::max({row.largest, high[0], high[1], high[2], high[3]});
    for (int i = 0; i < NUM_VECTORS; i++) {
        const Vector weights = exp_of(load(scores + 4 * i) - largest);
        sums += weights;
        store(scores + 4 * i, weights);
    }
    const float shrink = exp_of(Vector{} + (row.largest - largest))[0];
    row.total = row.total * shrink + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    row.largest = largest;
    return shrink;
}

// For each of N rows, `count` spans of floats weighed and added to its sums, which are shrunk before.
template <int N>
inline void accumulate(float* const* sums, const float* shrinks, const float* const* weights, const float* spans,
                       int count, int stride) {
    Vector totals[N][NUM_VECTORS];
    for (int n = 0; n < N; n++)
        for (int i = 0; i < NUM_VECTORS; i++) totals[n][i] = load(sums[n] + 4 * i) * shrinks[n];
    for (int j = 0; j < count; j++)
        for (int i = 0; i < NUM_VECTORS; i++) {
            const Vector span = load(spans + (size_t)j * stride + 4 * i);
            for (int n = 0; n < N; n++) totals[n][i] += weights[n][j] * span;
        }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < NUM_VECTORS; i++) store(sums[n] + 4 * i, totals[n][i]);
}

// N rows that see the same keys of a block: two at once load them half as often.
template <int N>
void attend_block(Row* rows, int D, const float* keys, const float* values, int first, int count) {
    float scores[N][BLOCK] = {}, shrinks[N];
    float* sums[N];
    const float* weights[N];
    for (int n = 0; n < N; n++) sums[n] = scores[n], weights[n] = rows[n].query, shrinks[n] = 1;
    accumulate<N>(sums, shrinks, weights, keys, D, BLOCK);
    for (int n = 0; n < N; n++) weights[n] = scores[n], shrinks[n] = weigh(rows[n], scores[n], first, count);
    int d = 0;
    for (; d + SPAN <= D; d += SPAN) {
        for (int n = 0; n < N; n++) sums[n] = rows[n].mixed + d;
        accumulate<N>(sums, shrinks, weights, values + d, count, D);
    }
    for (; d < D; d++)
        for (int n = 0; n < N; n++) {
            float sum = rows[n].mixed[d] * shrinks[n];
            for (int j = 0; j < count; j++) sum += scores[n][j] * values[j * D + d];
            rows[n].mixed[d] = sum;
        }
}

// A block's keys or values as floats: where they are, or widened into `room`.
[[maybe_unused]] const float* as_floats(const float* stored, int, float*) { return stored; }
[[maybe_unused]] const float* as_floats(const half* stored, int size, float* room) {
    for (int i = 0; i < size; i++) room[i] = (float)stored[i];
    return room;
}

void run_item(const Attention& a, int layer, int head, const Item& item, float* output) {
    const int D = a.head_dim, group = a.group(), size = D * BLOCK, num_rows = item.count * group;
    thread_local std::vector<float> room;
    room.resize(2 * size);
    std::vector<Row> rows(num_rows);
    for (int r = 0; r < num_rows; r++) {
        size_t at = ((size_t)(item.first + r / group) * a.num_heads + head * group + r % group) * D;
        const float* sinks = a.sinks[layer];
        rows[r] = {a.queries.data() + at, sinks ? sinks[head * group + r % group] : NEVER, sinks ? 1.0f : 0.0f, output + at};
        memset(output + at, 0, D * sizeof(float));
    }
    const int first_position = a.positions[item.first], num_keys = first_position + item.count;
    const int window = a.windows[layer] ? a.windows[layer] : num_keys;
    for (int begin = std::max(0, first_position + 1 - window) / BLOCK * BLOCK; begin < num_keys; begin += BLOCK) {
        const int block = item.table[begin / BLOCK];
        const float* keys = as_floats(a.keys(layer, block, head), size, room.data());
        const float* values = as_floats(a.values(layer, block, head), size, room.data() + size);
        auto visible = [&](int r) { return std::min(first_position + r / group + 1 - begin, BLOCK); };
        auto hidden = [&](int r) { return std::max(0, first_position + r / group + 1 - window - begin); };
        for (int r = std::max(0, begin - first_position) * group; r < num_rows && hidden(r) < BLOCK; r++) {
            if (r + 1 < num_rows && visible(r) == visible(r + 1) && hidden(r) == hidden(r + 1)) {
                attend_block<2>(&rows[r], D, keys, values, hidden(r), visible(r));
                r++;
            } else attend_block<1>(&rows[r], D, keys, values, hidden(r), visible(r));
        }
    }
    for (Row& row : rows)
        for (int d = 0; d < D; d++) row.mixed[d] /= row.total;
}

}  // namespace

extern "C" {

// Null if there is no memory.
Attention* attention_create(int num_layers, int num_heads, int num_kv_heads, int head_dim, int num_blocks, float norm_eps,
                            const float* angles) {
    size_t count = (size_t)num_layers * num_blocks * num_kv_heads * 2 * head_dim * BLOCK;
    KV* memory = (KV*)calloc(count, sizeof(KV));
    if (!memory) return nullptr;
    auto* a = new Attention{num_layers, num_heads, num_kv_heads, head_dim, num_blocks, norm_eps, angles};
    a->q_norm.resize(num_layers), a->k_norm.resize(num_layers);
    a->windows.resize(num_layers), a->sinks.resize(num_layers);
    a->kv = memory;
    return a;
}

void attention_destroy(Attention* a) {
    free(a->kv);
    delete a;
}

void* attention_kv(Attention* a) { return a->kv; }

void attention_set_norms(Attention* a, int layer, const float* q_norm, const float* k_norm) {
    a->q_norm[layer] = q_norm;
    a->k_norm[layer] = k_norm;
}

void attention_set_window(Attention* a, int layer, int window) { a->windows[layer] = window; }

void attention_set_sinks(Attention* a, int layer, const float* sinks) { a->sinks[layer] = sinks; }

// What the next calls of attention_run compute: the batch as backend.py draws it.
void attention_plan(Attention* a, int num_sequences, const int* begins, const int* past_lens, const int* block_ids,
                    const int* block_begins) {
    const int num_tokens = begins[num_sequences];
    a->positions.resize(num_tokens), a->slots.resize(num_tokens);
    a->queries.resize((size_t)num_tokens * a->num_heads * a->head_dim);
    a->tables.assign(block_ids, block_ids + block_begins[num_sequences]);
    a->items.clear();
    for (int i = 0; i < num_sequences; i++) {
        const int* table = a->tables.data() + block_begins[i];
        for (int t = begins[i], position = past_lens[i]; t < begins[i + 1]; t++, position++) {
            a->positions[t] = position;
            a->slots[t] = table[position / BLOCK] * BLOCK + position % BLOCK;
        }
        for (int t = begins[i]; t < begins[i + 1]; t += TILE)
            a->items.push_back({t, std::min(TILE, begins[i + 1] - t), table});
    }
}

// qkv: [token][query heads, key heads, value heads][head_dim]; output: [token][query heads][head_dim]
void attention_run(Attention* a, int layer, const float* qkv, float* output) {
    const size_t width = (size_t)(a->num_heads + 2 * a->num_kv_heads) * a->head_dim;
    const int num_jobs = (int)a->items.size() * a->num_kv_heads;
    tbb::parallel_for(tbb::blocked_range<int>(0, a->num_tokens(), 8), [&](const tbb::blocked_range<int>& range) {
        for (int t = range.begin(); t < range.end(); t++) write_token(*a, layer, t, qkv + t * width);
    });
    tbb::parallel_for(tbb::blocked_range<int>(0, num_jobs, 1), [&](const tbb::blocked_range<int>& range) {
        for (int job = range.begin(); job < range.end(); job++)
            run_item(*a, layer, job % a->num_kv_heads, a->items[job / a->num_kv_heads], output);
    });
}

}  // extern "C"
