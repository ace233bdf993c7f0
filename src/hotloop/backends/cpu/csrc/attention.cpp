// Attention over paged KV on any CPU, in registers of its own width.
//
// A query row is computed in the same way whatever else is in the step: its keys come chunk by chunk in their order, a
// score is summed over the dimensions in their order, and rows share nothing but the reading of a chunk. So batching,
// chunking and caching change no bit of a result.
//
// KV, float, half or int8_t, is what keys and values are stored in. Of each layer, block and KV head, one after the other:
//
//     keys     [dimension][slot]        values     [slot][dimension]        scales     [keys, values][slot]
//
// Only bytes have scales, floats by which they are multiplied, each by that of its token: that of a whole block would
// change with the tokens that come into it.
//
// One call does a layer: queries and keys are normalised (where the model does) and rotated, keys and values are written
// into their blocks, and every query row attends to what it may see.
//
// Latent attention (MLA) has one key for all heads, [latent, rotary key], whose latent is the value as well and is stored
// once: as values are wanted, it is turned over while it is read. A query is multiplied with what makes its head's keys
// from latents, and what it finds, a latent, with what makes the values, so neither is ever made of a token of the past.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "lanes.h"
#include "layout.h"
#include "workers.h"

namespace {

constexpr int BLOCK = 32;        // tokens a KV block holds
constexpr int CHUNK = 256;       // keys at most between two looks at the running maximum
constexpr int ROOM = 65536;      // floats of keys and values of a chunk, so that they stay in the second cache
constexpr int TILE = 16;         // tokens that go over a chunk while it is in the cache; twice as many of a long prompt
constexpr int LATENT_HEADS = 4;  // query heads of a job, where one key serves all of them
constexpr float NEG_INF = -1e30f;  // the running maximum before any key was seen
constexpr bool HAS_SCALES = sizeof(KV) == 1;

// So many rows and registers at once that neither loads nor multiplications wait for each other.
constexpr int MAX_ROWS = 6, NUM_VECTORS = HAS_32_REGISTERS ? 4 : 2, SPAN = NUM_VECTORS * NUM_LANES;
constexpr int PANEL = 32;        // outputs of a product that stand together

// Tokens [first, first + count) of the step, all of one sequence.
struct Run {
    int first, count;
    const int* table;
};

// What goes over keys together: a run, or several that begin with the same chunk.
using Item = std::vector<Run>;

// What heads make of latents; all zero if keys and values are stored as they are.
struct Latent {
    int nope_dim, rope_dim, value_dim;
};

struct Attention {
    int num_layers, num_heads, num_kv_heads, key_dim, value_dim, num_blocks;
    float norm_eps, scale;
    const float* angles;                       // [position][cos of each rotary pair, sin of each]
    Latent latent;
    std::vector<const float*> up_keys;         // of a layer a matrix of each head: from nope_dim to latents
    std::vector<const float*> up_values;       // of a layer a matrix of each head: from latents to value_dim
    std::vector<const float*> q_norm, k_norm;  // a layer's weights, or null
    std::vector<int> windows;                  // keys that a token of a layer sees, its own the last; 0: all
    std::vector<const float*> sinks;           // a layer's logit of each query head that gives nothing, or null
    char* kv;

    std::vector<int> positions, slots;         // of each token: its position, its block * BLOCK + offset
    std::vector<int> tables;
    std::vector<Item> items;
    std::vector<float> queries;                // [token][query head][key_dim], scaled
    std::vector<float> mixed;                  // [token][query head][value_dim] of latents

    bool is_latent() const { return latent.rope_dim > 0; }
    int group() const { return is_latent() ? std::min(num_heads, LATENT_HEADS) : num_heads / num_kv_heads; }
    int num_jobs() const { return divide_up(num_heads, group()); }  // of an item
    int num_tokens() const { return (int)positions.size(); }
    int chunk() const { return std::clamp(ROOM / (key_dim + value_dim) / BLOCK * BLOCK, BLOCK, CHUNK); }
    int num_keys(const Run& run) const { return positions[run.first] + run.count; }  // that its last token sees
    size_t head_bytes() const {
        const size_t token_bytes = (key_dim + (is_latent() ? 0 : value_dim)) * sizeof(KV);
        return (token_bytes + (HAS_SCALES ? 2 * sizeof(float) : 0)) * BLOCK;
    }
    KV* keys(int layer, int block, int head) const {
        return (KV*)(kv + (((size_t)layer * num_blocks + block) * num_kv_heads + head) * head_bytes());
    }
    KV* values(int layer, int block, int head) const { return keys(layer, block, head) + key_dim * BLOCK; }
    float* scales(int layer, int block, int head) const {  // if there are any
        return (float*)(values(layer, block, head) + value_dim * BLOCK);
    }
};

// A row's softmax so far: the largest score, the sum of the weights, and the values they weigh.
struct Row {
    const float* query;
    float largest, total;
    float* mixed;
    int position;
};

// Normalise a head where the model does, and turn it by its position's angles.
void turn(const Attention& a, const float* x, int dim, const float* norm, const float* angles, float* turned) {
    const int half = dim / 2;
    float scale = 1;
    if (norm) {
        float squares = 0;
        for (int i = 0; i < dim; i++) squares += x[i] * x[i];
        scale = 1 / std::sqrt(squares / dim + a.norm_eps);
    }
    const float *cos = angles, *sin = angles + half;
    for (int i = 0; i < half; i++) {
        float first = x[i] * scale, second = x[i + half] * scale;
        if (norm) first *= norm[i], second *= norm[i + half];
        turned[i] = first * cos[i] - second * sin[i];
        turned[i + half] = second * cos[i] + first * sin[i];
    }
}

// A head's numbers to where they are stored, so far apart; bytes by the largest of them, which is 127.
void store_head(const float* x, int size, KV* to, int stride, [[maybe_unused]] float* scale) {
    if constexpr (HAS_SCALES) {
        float largest = 0;
        for (int d = 0; d < size; d++) largest = std::max(largest, std::abs(x[d]));
        const float factor = largest > 0 ? 127 / largest : 0;
        for (int d = 0; d < size; d++) to[d * stride] = (KV)std::nearbyint(x[d] * factor);
        *scale = largest / 127;
    } else {
        for (int d = 0; d < size; d++) to[d * stride] = (KV)x[d];
    }
}

void write_token(Attention& a, int layer, int token, const float* row) {
    const int D = a.key_dim, block = a.slots[token] / BLOCK, slot = a.slots[token] % BLOCK;
    const float* angles = a.angles + (size_t)a.positions[token] * D;
    float* query = a.queries.data() + (size_t)token * a.num_heads * D;
    for (int h = 0; h < a.num_heads; h++) {
        turn(a, row + h * D, D, a.q_norm[layer], angles, query + h * D);
        for (int d = 0; d < D; d++) query[h * D + d] *= a.scale;
    }
    std::vector<float> turned(D);
    for (int h = 0; h < a.num_kv_heads; h++) {
        turn(a, row + (a.num_heads + h) * D, D, a.k_norm[layer], angles, turned.data());
        const float* value = row + (a.num_heads + a.num_kv_heads + h) * D;
        float* scales = a.scales(layer, block, h) + slot;
        store_head(turned.data(), D, a.keys(layer, block, h) + slot, BLOCK, scales);
        store_head(value, D, a.values(layer, block, h) + slot * D, 1, scales + BLOCK);
    }
}

// A token's latent and its rotary key, after the queries of all heads.
void write_latent(Attention& a, int layer, int token, const float* row) {
    const int rope = a.latent.rope_dim, block = a.slots[token] / BLOCK, slot = a.slots[token] % BLOCK;
    const float* kept = row + (size_t)a.num_heads * (a.latent.nope_dim + a.latent.rope_dim);
    std::vector<float> turned(rope);
    turn(a, kept + a.value_dim, rope, nullptr, a.angles + (size_t)a.positions[token] * rope, turned.data());
    KV* keys = a.keys(layer, block, 0) + slot;
    for (int d = 0; d < a.value_dim; d++) keys[d * BLOCK] = (KV)kept[d];
    for (int d = 0; d < rope; d++) keys[(a.value_dim + d) * BLOCK] = (KV)turned[d];
}

// Keys and values of a block as floats.
struct Block {
    const float *keys, *values;
};

// Neighbours of one another, which a row's scores are weighed together for.
struct Chunk {
    Block blocks[CHUNK / BLOCK];
    int num_keys;

    int num_blocks() const { return divide_up(num_keys, BLOCK); }
};

// Which keys of a chunk a row sees: [first, end).
struct Sight {
    int first, end;
};

// e^x for x <= 0; nothing where it is less than a float can be.
inline Floats exp_of(Floats x) {
    const Floats lowest = all(-87), zero = {};
    return x < lowest ? zero : exponential(x < lowest ? lowest : x);
}

// Scores of `size` keys become weights: e to the power of each, less the largest so far. Returns what the weights of
// earlier keys shrink by, now that there may be a larger score.
inline float weigh(Row& row, float* scores, Sight sight, int size) {
    for (int j = 0; j < sight.first; j++) scores[j] = -INFINITY;
    for (int j = sight.end; j < size; j++) scores[j] = -INFINITY;
    Floats high = load_floats(scores), sums = {};
    for (int j = NUM_LANES; j < size; j += NUM_LANES) {
        const Floats other = load_floats(scores + j);
        high = other > high ? other : high;
    }
    const float largest = std::max(row.largest, largest_of(high));
    for (int j = 0; j < size; j += NUM_LANES) {
        const Floats weights = exp_of(load_floats(scores + j) - largest);
        sums += weights;
        store_floats(scores + j, weights);
    }
    const float shrink = exp_of(all(row.largest - largest))[0];
    row.total = row.total * shrink + sum_of(sums);
    row.largest = largest;
    return shrink;
}

template <int N>
void score_rows(const Row* rows, int K, const Chunk& chunk, float (*scores)[CHUNK]) {
    const int size = chunk.num_blocks() * BLOCK;
    const float* queries[N];
    for (int n = 0; n < N; n++) queries[n] = rows[n].query;
    int key = 0;
    auto score = [&]<int M>() {
        const float* spans[M];
        float* to[N];
        for (int i = 0, at = key; i < M; i++, at += NUM_LANES) spans[i] = chunk.blocks[at / BLOCK].keys + at % BLOCK;
        for (int n = 0; n < N; n++) to[n] = scores[n] + key;
        Sums<N, M> sums;
        sums.add(queries, spans, K, BLOCK);
        sums.store(to);
        key += M * NUM_LANES;
    };
    while (key + SPAN <= size) score.template operator()<NUM_VECTORS>();
    while (key < size) score.template operator()<std::min(NUM_VECTORS, BLOCK / NUM_LANES)>();
}

template <int N>
void mix_values(Row* rows, int V, const Chunk& chunk, const float (*weights)[CHUNK], const float* shrinks) {
    auto num_keys = [&](int b) { return std::min(BLOCK, chunk.num_keys - b * BLOCK); };
    int d = 0;
    auto mix = [&]<int M>() {
        float* to[N];
        for (int n = 0; n < N; n++) to[n] = rows[n].mixed + d;
        Sums<N, M> sums;
        sums.load(to, shrinks);
        for (int b = 0; b < chunk.num_blocks(); b++) {
            const float *spans[M], *from[N];
            for (int i = 0; i < M; i++) spans[i] = chunk.blocks[b].values + d + i * NUM_LANES;
            for (int n = 0; n < N; n++) from[n] = weights[n] + b * BLOCK;
            sums.add(from, spans, num_keys(b), V);
        }
        sums.store(to);
        d += M * NUM_LANES;
    };
    while (d + SPAN <= V) mix.template operator()<NUM_VECTORS>();
    while (d + NUM_LANES <= V) mix.template operator()<1>();
    for (; d < V; d++)
        for (int n = 0; n < N; n++) {
            float sum = rows[n].mixed[d] * shrinks[n];
            for (int b = 0; b < chunk.num_blocks(); b++)
                for (int j = 0; j < num_keys(b); j++) sum += weights[n][b * BLOCK + j] * chunk.blocks[b].values[j * V + d];
            rows[n].mixed[d] = sum;
        }
}

// N rows over a chunk, which is loaded once for all of them. What only others see weighs nothing for a row.
template <int N>
void attend(Row* rows, int K, int V, const Chunk& chunk, const Sight* sights) {
    alignas(64) float scores[N][CHUNK];
    float shrinks[N];
    score_rows<N>(rows, K, chunk, scores);
    for (int n = 0; n < N; n++) shrinks[n] = weigh(rows[n], scores[n], sights[n], chunk.num_blocks() * BLOCK);
    mix_values<N>(rows, V, chunk, scores, shrinks);
}

// A block's keys or values as floats: where they are, or dequantised into `room`.
[[maybe_unused]] const float* as_floats(const float* stored, int, float*) { return stored; }
template <typename Number>
const float* as_floats(const Number* stored, int size, float* room) {
    for (int i = 0; i < size; i += NUM_LANES) store_floats(room + i, load_floats(stored + i));
    return room;
}

// The latents of a block, [dimension][slot], as values.
const float* turn_over(const float* keys, int num_dims, float* room) {
    for (int d = 0; d < num_dims; d++)
        for (int j = 0; j < BLOCK; j++) room[j * num_dims + d] = keys[d * BLOCK + j];
    return room;
}

// `room` is for keys and values of a block.
Block open_block(const Attention& a, int layer, int block, int head, float* room) {
    const int K = a.key_dim, V = a.value_dim;
    const float* keys = as_floats(a.keys(layer, block, head), K * BLOCK, room);
    float* beside = room + K * BLOCK;
    const float* values = a.is_latent() ? turn_over(keys, V, beside)
                                        : as_floats(a.values(layer, block, head), V * BLOCK, beside);
    if constexpr (HAS_SCALES) {
        const float* scales = a.scales(layer, block, head);
        for (int d = 0; d < K; d++)
            for (int j = 0; j < BLOCK; j++) room[d * BLOCK + j] *= scales[j];
        for (int j = 0; j < BLOCK; j++)
            for (int d = 0; d < V; d++) beside[j * V + d] *= scales[BLOCK + j];
    }
    return {keys, values};
}

// The rows of an item, and the query heads of a job: all of a KV head, or some of those that have a latent in common.
struct Pass {
    const Attention& a;
    const Item& runs;
    int layer, head;
    std::vector<Row> rows;
    std::vector<int> row_begins;  // of each run, and where the last one ends
    float* room;
};

// Rows [r, end) over keys [begin, end_key), which are at most a chunk.
void attend_keys(Pass& p, int r, int end, const int* table, int begin, int end_key) {
    const int K = p.a.key_dim, V = p.a.value_dim, window = p.a.windows[p.layer];
    Chunk chunk;
    chunk.num_keys = end_key - begin;
    for (int b = 0; b < chunk.num_blocks(); b++)
        chunk.blocks[b] = open_block(p.a, p.layer, table[begin / BLOCK + b], p.head, p.room + (K + V) * BLOCK * b);
    auto sight = [&](int r) {
        const int seen = p.rows[r].position + 1 - begin;
        return Sight{window ? std::max(0, seen - window) : 0, std::min(seen, chunk.num_keys)};
    };
    while (r < end && p.rows[r].position < begin) r++;
    while (r < end && sight(r).first < chunk.num_keys) {
        auto go = [&]<int N>() {
            Sight sights[N];
            for (int n = 0; n < N; n++) sights[n] = sight(r + n);
            attend<N>(&p.rows[r], K, V, chunk, sights);
            r += N;
        };
        if (end - r >= MAX_ROWS) go.template operator()<MAX_ROWS>();
        else if (end - r >= 3) go.template operator()<3>();
        else if (end - r >= 2) go.template operator()<2>();
        else go.template operator()<1>();
    }
}

// Whether two runs have the chunk at `begin` in common, and all of their tokens come after it.
bool share_chunk(const Attention& a, const Run& one, const Run& other, int begin) {
    const int end = begin + a.chunk(), *blocks = one.table + begin / BLOCK;
    return std::min(a.positions[one.first], a.positions[other.first]) >= end &&
           std::equal(blocks, blocks + a.chunk() / BLOCK, other.table + begin / BLOCK);
}

// Runs [first, last), which have all keys before `begin` in common, over the others: as far as they go the same way together.
void attend_runs(Pass& p, int first, int last, int begin) {
    const Run& run = p.runs[first];
    for (int end; begin < p.a.num_keys(run); begin = end) {
        int next = first + 1;
        while (next < last && share_chunk(p.a, run, p.runs[next], begin)) next++;
        if (next < last) attend_runs(p, next, last, begin), last = next;
        end = std::min(begin / p.a.chunk() * p.a.chunk() + p.a.chunk(), p.a.num_keys(run));
        attend_keys(p, p.row_begins[first], p.row_begins[last], run.table, begin, end);
    }
}

void run_item(const Attention& a, int layer, int job, const Item& runs, float* output) {
    const int K = a.key_dim, V = a.value_dim, first_head = job * a.group(), window = a.windows[layer];
    const float* sinks = a.sinks[layer];
    thread_local Memory memory;
    memory.reserve((size_t)(K + V) * a.chunk() * sizeof(float));
    const int head = a.is_latent() ? 0 : job, group = std::min(a.group(), a.num_heads - first_head);
    Pass p = {a, runs, layer, head, {}, {0}, (float*)memory.data()};
    for (const Run& run : runs) {
        for (int r = 0; r < run.count * group; r++) {
            const int token = run.first + r / group;
            const size_t at = (size_t)token * a.num_heads + first_head + r % group;
            const float sink = sinks ? sinks[first_head + r % group] : NEG_INF;
            p.rows.push_back({a.queries.data() + at * K, sink, sinks ? 1.0f : 0.0f, output + at * V, a.positions[token]});
            memset(output + at * V, 0, V * sizeof(float));
        }
        p.row_begins.push_back((int)p.rows.size());
    }
    if (window)  // what is before it may be another's by now
        for (int i = 0; i < (int)runs.size(); i++)
            attend_runs(p, i, i + 1, std::max(0, a.positions[runs[i].first] + 1 - window) / BLOCK * BLOCK);
    else attend_runs(p, 0, (int)runs.size(), 0);
    for (Row& row : p.rows)
        for (int d = 0; d < V; d++) row.mixed[d] /= row.total;
}

// Rows of numbers by a matrix, each as if it were alone. Rows of either side are so far apart. The matrix is
// [panel of outputs][input][PANEL], the last panel filled up, so that it is read from end to end.
struct Product {
    int num_in, num_out;
    size_t in_stride, out_stride;

    size_t size() const { return (size_t)divide_up(num_out, PANEL) * PANEL * num_in; }
};

template <int N>
void project_rows(const Product& p, const float* x, const float* matrix, int begin, float* out) {
    constexpr int M = PANEL / NUM_LANES;
    float found[N][PANEL];
    float* to[N];
    const float *weights[N], *spans[M];
    for (int n = 0; n < N; n++) to[n] = found[n], weights[n] = x + n * p.in_stride;
    for (int i = 0; i < M; i++) spans[i] = matrix + (size_t)begin * p.num_in + i * NUM_LANES;
    Sums<N, M> sums;
    sums.add(weights, spans, p.num_in, PANEL);
    sums.store(to);
    for (int n = 0; n < N; n++)
        std::copy_n(found[n], std::min(PANEL, p.num_out - begin), out + n * p.out_stride + begin);
}

void project(const Product& p, const float* x, const float* matrix, int count, float* out) {
    for (int begin = 0; begin < p.num_out; begin += PANEL) {
        int t = 0;
        for (; t + 2 <= count; t += 2) project_rows<2>(p, x + t * p.in_stride, matrix, begin, out + t * p.out_stride);
        if (t < count) project_rows<1>(p, x + t * p.in_stride, matrix, begin, out + t * p.out_stride);
    }
}

// Queries of a head of some tokens, as latents, and their rotary part turned; all scaled.
void make_queries(Attention& a, int layer, int head, int first, int count, const float* x, size_t width) {
    const Latent& l = a.latent;
    const int head_dim = l.nope_dim + l.rope_dim, K = a.key_dim;
    const float* from = x + first * width + (size_t)head * head_dim;
    float* to = a.queries.data() + ((size_t)first * a.num_heads + head) * K;
    const Product product = {l.nope_dim, a.value_dim, width, (size_t)a.num_heads * K};
    project(product, from, a.up_keys[layer] + head * product.size(), count, to);
    for (int t = 0; t < count; t++) {
        float* query = to + t * product.out_stride;
        const float* angles = a.angles + (size_t)a.positions[first + t] * l.rope_dim;
        turn(a, from + t * width + l.nope_dim, l.rope_dim, nullptr, angles, query + a.value_dim);
        for (int d = 0; d < K; d++) query[d] *= a.scale;
    }
}

// Of what a head of some tokens has found, the values.
void make_values(const Attention& a, int layer, int head, int first, int count, float* output) {
    const int L = a.value_dim, V = a.latent.value_dim;
    const Product product = {L, V, (size_t)a.num_heads * L, (size_t)a.num_heads * V};
    const float* from = a.mixed.data() + ((size_t)first * a.num_heads + head) * L;
    float* to = output + ((size_t)first * a.num_heads + head) * V;
    project(product, from, a.up_values[layer] + head * product.size(), count, to);
}

// For each head and each tile of tokens.
template <typename Act>
void each_head(const Attention& a, Act act) {
    const int num_tiles = divide_up(a.num_tokens(), TILE);
    split_work(num_tiles * a.num_heads, 1, [&](int job, int) {
        const int first = job / a.num_heads * TILE;
        act(job % a.num_heads, first, std::min(TILE, a.num_tokens() - first));
    });
}

// Runs of a few tokens: those that begin with the same chunk together, if as many jobs are left as there are threads.
void plan_few(Attention& a, std::vector<Run>& few) {
    auto end = [&](const Run& run) { return run.table + divide_up(a.num_keys(run), BLOCK); };
    std::sort(few.begin(), few.end(), [&](const Run& one, const Run& other) {
        return std::lexicographical_compare(one.table, end(one), other.table, end(other));
    });
    const int num_parts = divide_up(std::max(1, (int)std::thread::hardware_concurrency()), a.num_jobs());
    const size_t most = divide_up((int)few.size(), num_parts);
    for (const Run& run : few) {
        const bool follows = &run != few.data() && share_chunk(a, a.items.back()[0], run, 0);
        if (follows && a.items.back().size() < most) a.items.back().push_back(run);
        else a.items.push_back({run});
    }
}

Attention* create(const Attention& shape) {
    char* memory = (char*)calloc((size_t)shape.num_layers * shape.num_blocks * shape.num_kv_heads, shape.head_bytes());
    if (!memory) return nullptr;
    auto* a = new Attention(shape);
    a->q_norm.resize(a->num_layers), a->k_norm.resize(a->num_layers);
    a->windows.resize(a->num_layers), a->sinks.resize(a->num_layers);
    a->up_keys.resize(a->num_layers), a->up_values.resize(a->num_layers);
    a->kv = memory;
    return a;
}

}  // namespace

// ENTRY makes half_create of create: a library may have attention for several types of keys and values.
extern "C" {

// Null if there is no memory.
Attention* ENTRY(create)(int num_layers, int num_heads, int num_kv_heads, int head_dim, int num_blocks, float norm_eps,
                         const float* angles) {
    const float scale = 1 / std::sqrt((float)head_dim);
    return create({num_layers, num_heads, num_kv_heads, head_dim, head_dim, num_blocks, norm_eps, scale, angles});
}

// The same for latent attention. Null for bytes as well: a latent is both a key and a value.
Attention* ENTRY(create_latent)(int num_layers, int num_heads, int kv_rank, int nope_dim, int rope_dim, int value_dim,
                                int num_blocks, float scale, const float* angles) {
    if (HAS_SCALES) return nullptr;
    const Latent latent = {nope_dim, rope_dim, value_dim};
    return create({num_layers, num_heads, 1, kv_rank + rope_dim, kv_rank, num_blocks, 0, scale, angles, latent});
}

void ENTRY(destroy)(Attention* a) {
    free(a->kv);
    delete a;
}

void* ENTRY(kv)(Attention* a) { return a->kv; }

void ENTRY(set_norms)(Attention* a, int layer, const float* q_norm, const float* k_norm) {
    a->q_norm[layer] = q_norm;
    a->k_norm[layer] = k_norm;
}

void ENTRY(set_window)(Attention* a, int layer, int window) { a->windows[layer] = window; }

void ENTRY(set_sinks)(Attention* a, int layer, const float* sinks) { a->sinks[layer] = sinks; }

// What makes a layer's keys of latents, and its values, as a Product wants them.
void ENTRY(set_latent)(Attention* a, int layer, const float* up_keys, const float* up_values) {
    a->up_keys[layer] = up_keys;
    a->up_values[layer] = up_values;
}

// What the next calls of `run` compute: the batch as backend.py draws it.
void ENTRY(plan)(Attention* a, int num_sequences, const int* begins, const int* past_lens, const int* block_ids,
                 const int* block_begins) {
    const int num_tokens = begins[num_sequences];
    a->positions.resize(num_tokens), a->slots.resize(num_tokens);
    a->queries.resize((size_t)num_tokens * a->num_heads * a->key_dim);
    if (a->is_latent()) a->mixed.resize((size_t)num_tokens * a->num_heads * a->value_dim);
    a->tables.assign(block_ids, block_ids + block_begins[num_sequences]);
    a->items.clear();
    std::vector<Run> few;
    for (int i = 0; i < num_sequences; i++) {
        const int* table = a->tables.data() + block_begins[i];
        for (int t = begins[i], position = past_lens[i]; t < begins[i + 1]; t++, position++) {
            a->positions[t] = position;
            a->slots[t] = table[position / BLOCK] * BLOCK + position % BLOCK;
        }
        const int count = begins[i + 1] - begins[i], tile = count < 8 * TILE ? TILE : 2 * TILE;
        if (count <= TILE) few.push_back({begins[i], count, table});
        else
            for (int t = 0; t < count; t += tile)
                a->items.push_back({{begins[i] + t, std::min(tile, count - t), table}});
    }
    plan_few(*a, few);
}

// qkv: [token][query heads, key heads, value heads][head_dim]; output: [token][query heads][head_dim]
// With latents: [token][query heads][nope_dim + rope_dim], latent, rotary key; output: [token][query heads][value_dim]
void ENTRY(run)(Attention* a, int layer, const float* qkv, float* output) {
    const Latent& l = a->latent;
    const size_t width = a->is_latent() ? (size_t)a->num_heads * (l.nope_dim + l.rope_dim) + a->key_dim
                                        : (size_t)(a->num_heads + 2 * a->num_kv_heads) * a->key_dim;
    split_work(a->num_tokens(), 8, [&](int begin, int end) {
        for (int t = begin; t < end; t++)
            (a->is_latent() ? write_latent : write_token)(*a, layer, t, qkv + t * width);
    });
    if (a->is_latent())
        each_head(*a, [&](int h, int first, int n) { make_queries(*a, layer, h, first, n, qkv, width); });
    float* mixed = a->is_latent() ? a->mixed.data() : output;
    const int num_jobs = a->num_jobs();
    split_work((int)a->items.size() * num_jobs, 1, [&](int job, int) {
        run_item(*a, layer, job % num_jobs, a->items[job / num_jobs], mixed);
    });
    if (a->is_latent())
        each_head(*a, [&](int h, int first, int n) { make_values(*a, layer, h, first, n, output); });
}

}  // extern "C"
