// Attention over paged KV on a CPU with AMX: the part of a step that grows with the context.
//
// Two ideas make it quick for agents. The KV cache is laid out as AMX tiles, so that in bf16 it is loaded as it is. And
// sequences with a common prefix attend to its blocks together: a prefix that ten agents share is read from memory once a
// step, not ten times.
//
// A block's keys and values stand where the B tiles of AMX (16 rows of 64 bytes) want them. Word w of key k is its
// dimensions 2w and 2w + 1; pair r of the values is that of keys 2r and 2r + 1:
//
//     keys     [tile][w / 16][w % 16][column]        values     [d / 16][r][d % 16][2]
//
// Four neighbouring keys stand in the first tile and the next four in the second: the scores of two tiles are in order
// once the CPU has packed them into one vector of half as wide numbers.
//
// They are in bf16, or, with -DKV=int8_t, in bytes, and a scale for each token's keys and one for its values follow them:
// [tile][column], [token]. A row of a tile then has the first numbers of its pairs and after them the second ones. A chunk
// becomes tiles of bf16 before it is used, once for all rows of an item.
//
// One call does a layer: queries and keys are normalised (where the model does) and rotated, keys and values are
// written into their blocks, and every query row attends to what it may see:
//
//     plan()        once a step    rows -> items: (some query rows) x (a range of keys)
//     attention()   once a layer   write KV, run every item for every KV head, merge the parts of split rows
//
// Few rows (decoding, drafts, pieces of prompts) are split over ranges of keys, each read once, and merged. Long
// chunks are split over their rows.

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "layout.h"
#include "tiles.h"
#include "workers.h"

namespace {

using bf16 = uint16_t;

constexpr bool ARE_BYTES = sizeof(KV) == 1;

constexpr int BLOCK = 32;         // tokens a KV block holds
constexpr int ROWS = 32;          // query rows computed at once: two tiles
constexpr int MAX_STACK = 8;      // times ROWS that go over a chunk of keys while it is in the cache
constexpr int MAX_ROWS = MAX_STACK * ROWS;
constexpr int CHUNK = 512;        // keys whose weights are multiplied with values at once
constexpr int SCORE_KEYS = 64;       // keys whose scores become weights while they are in the L1 cache
constexpr int DEQUANT_KEYS = 128;      // and those that few rows dequantise at once: they stay in the L1 cache
constexpr int GRAIN = 256;        // keys of which an item of split rows covers a multiple
constexpr int SPLIT = 1024;       // and those that an item of few such rows covers at most
constexpr int MIN_JOBS = 8;       // pieces of a layer's work, so that no worker waits long for the last
constexpr int TILE = TILE_BYTES / sizeof(bf16);
constexpr float NEG_INF = -1e30f;   // the running maximum before any key was seen
constexpr int MAX_DRIFT = 8;          // by how many powers of two a score may exceed it before it is raised
constexpr int UNIT = 128;         // by how much the bits of a bf16 grow when it doubles
constexpr int BIAS = 127 * UNIT;  // those of 1

// A KV head of a block.
constexpr size_t head_bytes(int head_dim) { return 2 * BLOCK * (head_dim * sizeof(KV) + (ARE_BYTES ? sizeof(float) : 0)); }
template <int D>
struct Head {
    uint8_t* at;
    KV* keys() const { return (KV*)at; }
    KV* values() const { return keys() + D * BLOCK; }
    float* scales() const { return (float*)(values() + D * BLOCK); }
};

// Where a block's key stands.
constexpr int key_tile(int key) { return key / 4 % 2; }
constexpr int key_column(int key) { return key / 8 * 4 + key % 4; }

// Rows [first, first + count) of the step, all of one sequence; row r of a KV head is token r / group, head r % group.
struct Run {
    int first, count;
};

// One piece of work: these rows against keys [begin, end) of this block table.
struct Item {
    std::vector<Run> runs;
    const int* table;
    int begin, end;
    int part;  // the first of the partial results it writes, one a row; -1: its results are whole and go to the output
};

struct Attention {
    int num_layers, num_heads, num_kv_heads, head_dim, num_blocks;
    float norm_eps;
    const float* angles;                        // [position][cos of head_dim / 2, sin of head_dim / 2]
    std::vector<const float*> q_norm, k_norm;   // a layer's weights, or null
    Memory kv;                                  // [layer][block][KV head][keys, values, scales if they are bytes]

    int num_tokens = 0, num_parts = 0;
    std::vector<int> positions, slots;          // of each token: its position, its block * BLOCK + offset
    std::vector<int> fresh;                     // blocks whose first token this step writes, but not their last
    std::vector<int> tables;
    std::vector<int> visible;                   // of each token: how many keys it sees
    std::vector<Item> items;
    std::vector<std::vector<int>> parts_of_row;
    std::vector<int> split_rows;
    std::vector<bf16> queries;                  // [KV head][row][head_dim]
    std::vector<float> partials;                // [KV head][part][head_dim + 2]: values, largest, total

    int group() const { return num_heads / num_kv_heads; }
    size_t block_bytes() const { return num_kv_heads * head_bytes(head_dim); }
    uint8_t* place(int layer, int block, int head) const {
        return kv.data() + ((size_t)layer * num_blocks + block) * block_bytes() + head * head_bytes(head_dim);
    }
    float* partial(int head, int part) {
        return partials.data() + ((size_t)head * num_parts + part) * (head_dim + 2);
    }
};

struct Sequence {
    int first_token, num_tokens, past;
    const int* table;
    int length() const { return past + num_tokens; }
};

void add_split(Attention& a, const std::vector<Run>& runs, const int* table, int begin, int end) {
    int num_rows = 0;
    for (const Run& run : runs) num_rows += run.count;
    int size = divide_up(divide_up(end - begin, divide_up(MIN_JOBS, a.num_kv_heads)), GRAIN) * GRAIN;
    if (num_rows <= ROWS) size = std::min(size, SPLIT);  // more have enough to do, and partial results take room
    for (int key = begin; key < end; key += size) {
        a.items.push_back({runs, table, key, std::min(end, key + size), a.num_parts});
        for (const Run& run : runs)
            for (int i = 0; i < run.count; i++) a.parts_of_row[run.first + i].push_back(a.num_parts++);
    }
}

using PrefixGroup = std::vector<const Sequence*>;

// Blocks [begin, end), which all of a family share: as few passes as its rows allow.
void plan_shared(Attention& a, const PrefixGroup& family, int begin, int end) {
    std::vector<Run> runs;
    int num_rows = 0;
    for (const Sequence* s : family) {
        Run run{s->first_token * a.group(), s->num_tokens * a.group()};
        if (num_rows + run.count > MAX_ROWS) {
            add_split(a, runs, family[0]->table, begin * BLOCK, end * BLOCK);
            runs.clear();
            num_rows = 0;
        }
        runs.push_back(run);
        num_rows += run.count;
    }
    add_split(a, runs, family[0]->table, begin * BLOCK, end * BLOCK);
}

// Sequences with the same blocks before `begin`: what they go on to share together, then each branch for itself.
void plan_family(Attention& a, const PrefixGroup& family, int begin) {
    const Sequence& first = *family[0];
    if (family.size() == 1) {
        Run run{first.first_token * a.group(), first.num_tokens * a.group()};
        return add_split(a, {run}, first.table, begin * BLOCK, first.length());
    }
    int end = first.past / BLOCK;
    for (const Sequence* s : family) {
        int i = begin;
        while (i < end && i < s->past / BLOCK && s->table[i] == first.table[i]) i++;
        end = i;
    }
    if (end > begin) plan_shared(a, family, begin, end);
    std::unordered_map<int, PrefixGroup> branches;
    for (const Sequence* s : family) {
        if (end < s->past / BLOCK) branches[s->table[end]].push_back(s);
        else plan_family(a, {s}, end);
    }
    for (const auto& branch : branches) plan_family(a, branch.second, end);
}

// A long run of one sequence, in as large pieces as leave every worker some.
void plan_chunk(Attention& a, const Sequence& s) {
    const int group = a.group(), num_rows = s.num_tokens * group;
    int stack = MAX_STACK;
    while (stack > 1 && divide_up(num_rows, stack * ROWS) * a.num_kv_heads < MIN_JOBS) stack /= 2;
    for (int row = 0; row < num_rows; row += stack * ROWS) {
        int count = std::min(stack * ROWS, num_rows - row);
        int end = s.past + (row + count - 1) / group + 1;
        a.items.push_back({{{s.first_token * group + row, count}}, s.table, 0, end, -1});
    }
}

// Up to ROWS queries and what they know so far; what stands in the other rows is nobody's. Scores are powers of two here:
// `largest` is a whole number that no score has exceeded by more than MAX_DRIFT. It is the item's first score, rounded up, at
// first and raised seldom, and then what was weighed by it is scaled without an error.
template <int D>
struct alignas(64) Queries {
    bf16 words[2][D / 32][TILE];             // [tile of 16 rows][dimensions of a tile], as layout.h has rows
    float values[2][D / 16][TILE_SUMS];      // the weighted values: [tile of 16 rows][16 dimensions]
    float totals[2][TILE_SUMS];              // the sums of the weights: [tile of 16 rows][row][16 times the same]
    float largest[ROWS], offsets[ROWS];      // what a score is weighed by, and what that adds to its weight's bits
    int seen[ROWS], rows[ROWS];
    int num_rows, least_seen, most_seen;

    void begin() {
        num_rows = 0, least_seen = INT_MAX, most_seen = 0;
        memset(values, 0, sizeof(values));
        memset(totals, 0, sizeof(totals));
        std::fill_n(largest, ROWS, NEG_INF);
    }

    void weigh_by(int row, float score) {
        largest[row] = std::ceil(score);
        offsets[row] = BIAS - largest[row] * UNIT;
    }

    bool fills_two() const { return num_rows > 16; }
    bf16* word(int row, int d) { return words[row / 16][d / 32] + row % 16 * 32 + d % 32; }
    float* value(int row, int d) { return values[row / 16][d / 16] + row % 16 * 16 + d % 16; }
    float* total(int row) { return totals[row / 16] + row % 16 * 16; }
};

// Of 32 rows: the scores of a stretch of keys, 16 at a time, and the weights of a chunk of them, a block at a time.
struct alignas(64) Scratch {
    float scores[SCORE_KEYS / 16][2][TILE_SUMS];   // [tile of keys][tile of 16 rows][row][column]
    bf16 weights[CHUNK / BLOCK][2][TILE];       // [32 keys][tile of 16 rows][row][key]
};

// Keys or values of blocks that follow one another in a sequence, as tiles of bf16.
struct Blocks {
    const uint8_t* first;
    size_t stride;
    const int* table;  // which they are; null: one after the other
    const bf16* at(int i) const { return (const bf16*)(first + (table ? table[i] : i) * stride); }
    Blocks after(int count) const {
        return table ? Blocks{first, stride, table + count} : Blocks{first + count * stride, stride, nullptr};
    }
};

// What an item reads at once.
struct Chunk {
    Blocks keys, values;
    const float* scales;  // of the keys, if they were bytes: [block][tile][column]
    int num_left;         // blocks from its first one to the item's end
    int num_read;         // and those that other rows of the item have read

    Chunk after(int count) const {
        const float* scales_after = scales ? scales + count * BLOCK : nullptr;
        return {keys.after(count), values.after(count), scales_after, num_left - count, num_read - count};
    }
};

// While the keys of a block that is new are scored, its values are fetched, and the keys of the one after the next.
template <int D>
void fetch_ahead(const Chunk& chunk, int block) {
    auto fetch_block = [](const bf16* at) { fetch((const uint8_t*)at, D * BLOCK * sizeof(bf16)); };
    if (block < chunk.num_read || block >= chunk.num_left) return;
    fetch_block(chunk.values.at(block));
    if (block + 2 < chunk.num_left) fetch_block(chunk.keys.at(block + 2));
}

// A tile of 16 keys by both tiles of queries, which stay where they are: eight tiles hold all that. Here, as in the next
// two functions, what comes next is loaded before sums are stored: it was there later when its loads came after them.
void score_64(const Queries<64>& q, const Chunk& chunk, int num_keys, Scratch& scratch) {
    tile_load(4, q.words[0][0]);
    tile_load(5, q.words[0][1]);
    tile_load(6, q.words[1][0]);
    tile_load(7, q.words[1][1]);
    const int num_tiles = num_keys / 16;
    auto load_keys = [&](int i) {
        const bf16* tile = chunk.keys.at(i / 2) + i % 2 * 2 * TILE;
        tile_load_once(2, tile);
        tile_load_once(3, tile + TILE);
    };
    load_keys(0);
    for (int i = 0; i < num_tiles; i++) {
        if (i % 2 == 0) fetch_ahead<64>(chunk, i / 2);
        tile_zero(0);
        tile_zero(1);
        tile_dot(0, 4, 2);
        tile_dot(1, 6, 2);
        tile_dot(0, 5, 3);
        tile_dot(1, 7, 3);
        if (i + 1 < num_tiles) load_keys(i + 1);
        tile_store(0, scratch.scores[i][0]);
        tile_store(1, scratch.scores[i][1]);
    }
}

// The same where the queries are too wide to stay, or are but one tile.
template <int D>
void score_wide(const Queries<D>& q, const Chunk& chunk, int num_keys, Scratch& scratch) {
    constexpr int STEPS = D / 32;
    const bool two = q.fills_two();
    const int num_blocks = num_keys / BLOCK;
    auto load_step = [&](int i, int d) {
        const bf16* block = chunk.keys.at(i);
        tile_load(4, q.words[0][d]);
        tile_load_once(6, block + d * TILE);
        tile_load_once(7, block + (STEPS + d) * TILE);
        if (two) tile_load(5, q.words[1][d]);
    };
    load_step(0, 0);
    for (int i = 0; i < num_blocks; i++) {
        fetch_ahead<D>(chunk, i);
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        for (int d = 0; d < STEPS; d++) {
            tile_dot(0, 4, 6);
            tile_dot(1, 4, 7);
            if (two) {
                tile_dot(2, 5, 6);
                tile_dot(3, 5, 7);
            }
            if (d + 1 < STEPS) load_step(i, d + 1);
            else if (i + 1 < num_blocks) load_step(i + 1, 0);
        }
        tile_store(0, scratch.scores[2 * i][0]);
        tile_store(1, scratch.scores[2 * i + 1][0]);
        if (!two) continue;
        tile_store(2, scratch.scores[2 * i][1]);
        tile_store(3, scratch.scores[2 * i + 1][1]);
    }
}

// The values of both tiles of rows, 32 dimensions at a time: += weights * values
template <int D>
void add_values(Queries<D>& q, const Blocks& values, int num_keys, const Scratch& scratch) {
    constexpr int STEPS = D / 32;
    const bool two = q.fills_two();
    const int num_blocks = num_keys / BLOCK;
    auto load_step = [&](int i, int d) {
        const bf16* block = values.at(i) + d * 2 * TILE;
        tile_load(4, scratch.weights[i][0]);
        tile_load_once(6, block);
        tile_load_once(7, block + TILE);
        if (two) tile_load(5, scratch.weights[i][1]);
    };
    load_step(0, 0);
    for (int d = 0; d < STEPS; d++) {
        float(*first)[TILE_SUMS] = q.values[0] + 2 * d, (*second)[TILE_SUMS] = q.values[1] + 2 * d;
        tile_load(0, first[0]);
        tile_load(1, first[1]);
        if (two) {
            tile_load(2, second[0]);
            tile_load(3, second[1]);
        }
        for (int i = 0; i < num_blocks; i++) {
            tile_dot(0, 4, 6);
            tile_dot(1, 4, 7);
            if (two) {
                tile_dot(2, 5, 6);
                tile_dot(3, 5, 7);
            }
            if (i + 1 < num_blocks) load_step(i + 1, d);
            else if (d + 1 < STEPS) load_step(0, d + 1);
        }
        tile_store(0, first[0]);
        tile_store(1, first[1]);
        if (!two) continue;
        tile_store(2, second[0]);
        tile_store(3, second[1]);
    }
}

struct alignas(64) Ones {
    bf16 of[TILE];
    Ones() { std::fill_n(of, TILE, (bf16)BIAS); }
} const ONES;

// The same for totals: += weights * 1
template <int D>
void add_totals(Queries<D>& q, int num_keys, const Scratch& scratch) {
    const bool two = q.fills_two();
    tile_load(6, ONES.of);
    tile_load(0, q.totals[0]);
    if (two) tile_load(1, q.totals[1]);
    for (int i = 0; i < num_keys / BLOCK; i++) {
        tile_load(4, scratch.weights[i][0]);
        tile_dot(0, 4, 6);
        if (!two) continue;
        tile_load(5, scratch.weights[i][1]);
        tile_dot(1, 5, 6);
    }
    tile_store(0, q.totals[0]);
    if (two) tile_store(1, q.totals[1]);
}

// The bits of a bf16 for each key of a block. Weights, which are powers of two, are computed on them: they are an integer
// with the exponent in its upper half, so that 32 logarithms become powers in a few instructions.
using Shorts = uint16_t __attribute__((vector_size(64)));
constexpr Shorts KEY = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

// Numbers that belong to a block's two tiles of keys, as integers of 16 bits in the order of keys: the largest there is for
// those beyond it, zero for those below and what is no number, and for 2^31 and beyond (no model has scores 2^24 apart).
inline Shorts in_order(Vector first, Vector second) {
#if defined(__AVX512BW__)
    return (Shorts)_mm512_packus_epi32(_mm512_cvtps_epi32((__m512)first), _mm512_cvtps_epi32((__m512)second));
#else
    Shorts words;
    for (int key = 0; key < BLOCK; key++) {
        const float x = (key_tile(key) ? second : first)[key_column(key)];
        const bool is_within = x > 0 && x < 0x1p31f;
        words[key] = (uint16_t)(is_within ? std::nearbyint(std::min(x, (float)UINT16_MAX)) : 0);
    }
    return words;
#endif
}

// A bf16's bits are BIAS + UNIT times its logarithm, if that of 1 + f is taken for f. By how much the bits of 2^f are then
// too large, for every other of the fractions that there are:
struct alignas(64) Excess {
    uint8_t of[UNIT / 2];
    Excess() {
        for (int i = 0; i < UNIT / 2; i++) {
            const double f = (2 * i + 0.5) / UNIT;
            of[i] = (uint8_t)std::lround((1 + f - std::exp2(f)) * UNIT);
        }
    }
} const EXCESS;

// Those of a power of two, given BIAS + UNIT times its exponent: the nearest bf16, or the one beside it.
inline Shorts powers(Shorts bits) {
#if defined(__AVX512VBMI__)
    const __m512i table = _mm512_load_si512(EXCESS.of), places = _mm512_srli_epi16((__m512i)bits, 1);
    return bits - (Shorts)_mm512_maskz_permutexvar_epi8(0x5555555555555555, places, table);
#else
    for (int i = 0; i < BLOCK; i++) bits[i] -= EXCESS.of[bits[i] / 2 % (UNIT / 2)];
    return bits;
#endif
}

inline bool exceeds(Shorts bits, int bound) {
#if defined(__AVX512BW__)
    return _mm512_cmpgt_epu16_mask((__m512i)bits, _mm512_set1_epi16((int16_t)bound));
#else
    for (int i = 0; i < BLOCK; i++)
        if (bits[i] > bound) return true;
    return false;
#endif
}

// log2(e) / sqrt(D): the exponentials are powers of two.
inline float scale_of(int head_dim) { return 1.4426950f / sqrtf((float)head_dim); }

// A row's scores of a stretch of keys, of which it sees the first so many.
struct Scores {
    const float* first;  // of its block's first tile; its second one's are two tiles later, as are the next block's
    const float* scales;
    int num_seen;
    Vector at(int key, int tile) const {
        const Vector scores = load(first + (key / 16 + tile) * 2 * TILE_SUMS);
        return ARE_BYTES ? scores * load(scales + key + tile * 16) : scores;
    }

    float largest() const {
        constexpr Integers LANE = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
        Vector most = Vector{} + NEG_INF;
        for (int key = 0; key < num_seen; key += BLOCK)
            for (int tile = 0; tile < 2; tile++)
                most = larger(most, LANE + 4 * tile < num_seen - key ? at(key, tile) : Vector{} + NEG_INF);
        return largest_of(most);
    }
};

// A row's scores have outgrown what it weighed by: all that it weighed before shrinks by a power of two.
template <int D>
__attribute__((noinline)) void raise(Queries<D>& q, int row, float score, int num_weighed, Scratch& scratch) {
    const float before = q.largest[row];
    q.weigh_by(row, score);
    const float shrink = std::exp2(before - q.largest[row]);
    store(q.total(row), load(q.total(row)) * shrink);
    for (int d = 0; d < D; d += LANES) store(q.value(row, d), load(q.value(row, d)) * shrink);
    for (int i = 0; i < num_weighed / BLOCK; i++) {
        bf16* weights = scratch.weights[i][row / 16] + row % 16 * BLOCK;
        store(weights, load(weights) * shrink, load(weights + LANES) * shrink);
    }
}

// Scores to weights, a block at a time; returns whether one is more than it may be.
inline bool weigh(const Scores& scores, float scale, float offset, bf16* weights) {
    const Vector factor = Vector{} + scale * UNIT, offsets = offset - Vector{};  // as all() in lanes.h
    Shorts most = {};
    for (int key = 0; key < scores.num_seen; key += BLOCK, weights += 2 * TILE) {
        auto scaled = [&](int tile) { return multiply_add(scores.at(key, tile), factor, offsets); };
        Shorts bits = in_order(scaled(0), scaled(1));
        if (key + BLOCK > scores.num_seen) bits &= (Shorts)(KEY < (uint16_t)(scores.num_seen - key));
        most = key ? (bits > most ? bits : most) : bits;
        bits = powers(bits);
        memcpy(weights, &bits, sizeof(bits));
    }
    return exceeds(most, BIAS + MAX_DRIFT * UNIT);
}

// A stretch of a row's scores to weights, after so many of the chunk; those of keys that it does not see are zero. Inlined,
// so that the compiler knows the numbers that a caller does.
template <int D>
inline __attribute__((always_inline)) void weigh_row(Queries<D>& q, int row, int num_weighed, int num_keys, int num_seen,
                                                     const float* key_scales, Scratch& scratch) {
    const float scale = scale_of(D);
    const int at = row % 16;
    const Scores scores = {scratch.scores[0][row / 16] + at * 16, key_scales, num_seen};
    bf16* weights = scratch.weights[num_weighed / BLOCK][row / 16] + at * BLOCK;
    if (num_seen && weigh(scores, scale, q.offsets[row], weights)) {
        raise(q, row, scores.largest() * scale, num_weighed, scratch);
        weigh(scores, scale, q.offsets[row], weights);
    }
    for (int i = divide_up(num_seen, BLOCK); i < num_keys / BLOCK; i++)
        memset(weights + i * 2 * TILE, 0, BLOCK * sizeof(bf16));
}

// The item's first score of each row that sees any: what it is weighed by.
template <int D>
void weigh_by_first(Queries<D>& q, const Item& item, const float* key_scales, const Scratch& scratch) {
    const float scale = scale_of(D) * (ARE_BYTES ? key_scales[0] : 1.0f);
    for (int row = 0; row < q.num_rows; row++)
        if (q.seen[row] > item.begin) q.weigh_by(row, scratch.scores[0][row / 16][row % 16 * 16] * scale);
}

// The item's keys [key, key + num_keys) for 32 rows.
template <int D>
void attend(Queries<D>& q, const Chunk& chunk, const Item& item, int key, int num_keys, Scratch& scratch) {
    for (int begin = 0; begin < num_keys; begin += SCORE_KEYS) {
        const int count = std::min(SCORE_KEYS, num_keys - begin);
        const Chunk stretch = chunk.after(begin / BLOCK);
        settle_memory();
        if constexpr (D == 64)
            q.fills_two() ? score_64(q, stretch, count, scratch) : score_wide(q, stretch, count, scratch);
        else score_wide(q, stretch, count, scratch);
        settle_memory();
        if (key + begin == item.begin) weigh_by_first(q, item, stretch.scales, scratch);
        auto num_seen = [&](int seen) { return std::clamp(std::min(seen, item.end) - key - begin, 0, count); };
        if (num_seen(q.least_seen) == SCORE_KEYS)  // mostly: with numbers that the compiler knows
            for (int row = 0; row < q.num_rows; row++) weigh_row(q, row, begin, SCORE_KEYS, SCORE_KEYS, stretch.scales, scratch);
        else
            for (int row = 0; row < q.num_rows; row++)
                weigh_row(q, row, begin, count, num_seen(q.seen[row]), stretch.scales, scratch);
    }
    settle_memory();
    add_totals(q, num_keys, scratch);
    add_values(q, chunk.values, num_keys, scratch);
    settle_memory();
}

// A row of a tile: pairs of bf16, from numbers whose bits beyond that are cut off.
inline void put_pairs(Vector first, Vector second, bf16* to) {
    const Bits pairs = (Bits)first >> 16 | ((Bits)second & 0xffff0000);
    memcpy(to, &pairs, sizeof(pairs));
}

// A chunk of bytes as tiles of bf16, which hold a key's bytes as they are.
template <int D>
struct alignas(64) Dequantised {
    bf16 keys[CHUNK / BLOCK][D * BLOCK], values[CHUNK / BLOCK][D * BLOCK];
    float scales[CHUNK / BLOCK][BLOCK];

    Chunk dequantise(const Attention& a, int layer, int head, const int* table, int num_blocks) {
        for (int i = 0; i < num_blocks; i++) {
            const Head<D> from{a.place(layer, table[i], head)};
            if (i + 1 < num_blocks) fetch(a.place(layer, table[i + 1], head), head_bytes(D));
            memcpy(scales[i], from.scales(), sizeof(scales[i]));
            dequantise_block(from, keys[i], values[i]);
        }
        constexpr size_t stride = sizeof(keys[0]);
        return {{(uint8_t*)keys, stride, nullptr}, {(uint8_t*)values, stride, nullptr}, scales[0], 0, 0};
    }

    static void dequantise_block(Head<D> from, bf16* to_keys, bf16* to_values) {
        const KV *keys = from.keys(), *values = from.values();
        for (int i = 0; i < D * BLOCK; i += BLOCK) put_pairs(load(keys + i), load(keys + i + LANES), to_keys + i);
        alignas(64) float scale[BLOCK];  // by as much more as cutting off takes away
        for (int i = 0; i < BLOCK; i += LANES) store(scale + i, load(from.scales() + BLOCK + i) * (1 + 0x1.7p-9f));
        for (int i = 0; i < D * BLOCK; i += BLOCK) {
            const int token = i / BLOCK % 16 * 2;
            put_pairs(load(values + i) * scale[token], load(values + i + LANES) * scale[token + 1], to_values + i);
        }
    }
};

// The item's rows; returns how many times ROWS they are.
template <int D>
int gather_rows(const Attention& a, int head, const Item& item, Queries<D>* stack) {
    const int group = a.group();
    int last = 0;
    stack[0].begin();
    for (const Run& run : item.runs) {
        for (int row = run.first; row < run.first + run.count; row++) {
            if (stack[last].num_rows == ROWS) stack[++last].begin();
            Queries<D>& q = stack[last];
            int i = q.num_rows++;
            const bf16* from = a.queries.data() + ((size_t)head * a.num_tokens * group + row) * D;
            for (int d = 0; d < D; d += 32) memcpy(q.word(i, d), from + d, 32 * sizeof(bf16));
            q.seen[i] = a.visible[row / group];
            q.least_seen = std::min(q.least_seen, q.seen[i]), q.most_seen = std::max(q.most_seen, q.seen[i]);
            q.rows[i] = row;
        }
    }
    return last + 1;
}

template <int D>
Chunk chunk_at(const Attention& a, int layer, int head, const int* table, int num_blocks, int num_left) {
    if constexpr (ARE_BYTES) {
        static thread_local Dequantised<D> dequantised;
        return dequantised.dequantise(a, layer, head, table, num_blocks);
    } else {
        const Head<D> first{a.place(layer, 0, head)};
        const Blocks values{(uint8_t*)first.values(), a.block_bytes(), table};
        return {{first.at, a.block_bytes(), table}, values, nullptr, num_left, 0};
    }
}

// A worker's own. Not inlined: the compiler would look up where it is at every use.
template <int D>
struct Workspace {
    Queries<D> stack[MAX_STACK];
    Scratch scratch;

    __attribute__((noinline)) static Workspace& own() {
        static thread_local Workspace room;
        return room;
    }
};

template <int D>
void run_item(Attention& a, int layer, int head, const Item& item, float* output) {
    auto& [stack, scratch] = Workspace<D>::own();
    const int height = gather_rows<D>(a, head, item, stack), group = a.group();
    const int most_keys = ARE_BYTES && height == 1 ? DEQUANT_KEYS : CHUNK;
    for (int key = item.begin; key < item.end; key += most_keys) {
        const int num_left = divide_up(item.end - key, BLOCK), num_keys = std::min(most_keys, num_left * BLOCK);
        Chunk chunk = chunk_at<D>(a, layer, head, item.table + key / BLOCK, num_keys / BLOCK, num_left);
        for (int i = 0; i < height; i++) {
            const int num_seen = std::min(num_keys, divide_up(stack[i].most_seen - key, BLOCK) * BLOCK);
            if (num_seen > 0) attend(stack[i], chunk, item, key, num_seen, scratch);
            chunk.num_read = std::max(chunk.num_read, num_seen / BLOCK);
        }
    }
    for (int i = 0; i < height; i++) {
        Queries<D>& q = stack[i];
        for (int r = 0; r < q.num_rows; r++) {
            const int row = q.rows[r];
            const float total = *q.total(r);
            const bool is_whole = item.part < 0;
            float* to = is_whole ? output + ((size_t)(row / group) * a.num_heads + head * group + row % group) * D
                                 : a.partial(head, item.part + i * ROWS + r);
            for (int d = 0; d < D; d += LANES) store(to + d, load(q.value(r, d)) * (is_whole ? 1 / total : 1.0f));
            if (is_whole) continue;
            to[D] = q.largest[r];
            to[D + 1] = total;
        }
    }
}

// A split row's parts, brought to the largest of their maxima and added up.
template <int D>
void merge_row(Attention& a, int head, int row, float* output) {
    const int group = a.group();
    float* to = output + ((size_t)(row / group) * a.num_heads + head * group + row % group) * D;
    float largest = NEG_INF, total = 0, sum[D] = {};
    for (int part : a.parts_of_row[row]) largest = std::max(largest, a.partial(head, part)[D]);
    for (int part : a.parts_of_row[row]) {
        const float* from = a.partial(head, part);
        float weight = exp2f(from[D] - largest);
        total += from[D + 1] * weight;
        for (int d = 0; d < D; d++) sum[d] += from[d] * weight;
    }
    for (int d = 0; d < D; d++) to[d] = sum[d] / total;
}

// A head's vector, normalised where the model does, and turned to its position.
template <int D>
void turn(const float* from, const float* angles, const float* norm, float eps, float* to) {
    alignas(64) float x[D];
    memcpy(x, from, sizeof(x));
    if (norm) {
        float square = 0;
        for (int d = 0; d < D; d++) square += x[d] * x[d];
        float inverse = 1.0f / sqrtf(square / D + eps);
        for (int d = 0; d < D; d++) x[d] *= inverse * norm[d];
    }
    for (int d = 0; d < D / 2; d++) {
        to[d] = x[d] * angles[d] - x[d + D / 2] * angles[D / 2 + d];
        to[d + D / 2] = x[d + D / 2] * angles[d] + x[d] * angles[D / 2 + d];
    }
}

template <int D>
void round_row(const float* from, bf16* to) {
    for (int d = 0; d < D; d += LANES) store(to + d, load(from + d));
}

// Returns what a byte stands for.
template <int D>
float round_row(const float* from, int8_t* to) {
    Vector most = {};
    for (int d = 0; d < D; d += LANES) most = larger(most, absolute(load(from + d)));
    const float scale = largest_of(most) / 127, inverse = scale > 0 ? 1 / scale : 0;
    for (int d = 0; d < D; d += LANES) store(to + d, load(from + d) * inverse);
    return scale;
}

// Two dimensions of a key, which are in one row of a tile, to its column.
inline void put_key(const bf16* from, int column, bf16* row) { memcpy(row + 2 * column, from, 2 * sizeof(bf16)); }
inline void put_key(const int8_t* from, int column, int8_t* row) { row[column] = from[0], row[16 + column] = from[1]; }

// Sixteen dimensions of a value, to every other place in a row of a tile. The other places are another token's, which a
// worker may be writing at the same time: nothing is stored there.
inline void put_value(const bf16* from, int which, bf16* row) {
#if defined(__AVX512BW__)
    const __m512i numbers = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    const __m512i twice = _mm512_or_si512(numbers, _mm512_slli_epi32(numbers, 16));
    _mm512_mask_storeu_epi16(row, which ? 0xaaaaaaaa : 0x55555555, twice);
#else
    for (int i = 0; i < 16; i++) row[2 * i + which] = from[i];
#endif
}
inline void put_value(const int8_t* from, int which, int8_t* row) { memcpy(row + which * 16, from, 16); }

template <int D>
void write_token(Attention& a, int layer, int token, const float* row) {
    const int group = a.group();
    const float *angles = a.angles + (size_t)a.positions[token] * D, *key = row + (size_t)a.num_heads * D;
    const int block = a.slots[token] / BLOCK, slot = a.slots[token] % BLOCK;
    const int tile = key_tile(slot), column = key_column(slot);
    alignas(64) float turned[D];
    alignas(64) KV keys[D], values[D];
    for (int h = 0; h < a.num_kv_heads; h++, key += D) {
        bf16* queries = &a.queries[((size_t)h * a.num_tokens + token) * group * D];
        for (int i = 0; i < group; i++, row += D, queries += D) {
            turn<D>(row, angles, a.q_norm[layer], a.norm_eps, turned);
            round_row<D>(turned, queries);
        }
        const Head<D> head{a.place(layer, block, h)};
        turn<D>(key, angles, a.k_norm[layer], a.norm_eps, turned);
        const float* value = key + (size_t)a.num_kv_heads * D;
        if constexpr (ARE_BYTES) {
            head.scales()[tile * 16 + column] = round_row<D>(turned, keys);
            head.scales()[BLOCK + slot] = round_row<D>(value, values);
        } else {
            round_row<D>(turned, keys);
            round_row<D>(value, values);
        }
        KV *to_keys = head.keys() + tile * D * 16, *to_values = head.values() + slot / 2 * BLOCK;
        for (int d = 0; d < D; d += 2) put_key(keys + d, column, to_keys + d / 2 * BLOCK);
        for (int d = 0; d < D; d += 16) put_value(values + d, slot % 2, to_values + d / 16 * TILE);
    }
}

template <int D>
void run_layer(Attention& a, int layer, const float* qkv, float* output) {
    const size_t width = (size_t)(a.num_heads + 2 * a.num_kv_heads) * D;
    const int num_items = (int)a.items.size(), num_jobs = num_items * a.num_kv_heads;
    // A weight of zero does not silence a NaN that a block's last owner left behind.
    for (int block : a.fresh)
        for (int h = 0; h < a.num_kv_heads; h++) {
            const Head<D> head{a.place(layer, block, h)};
            memset(head.values(), 0, head.at + head_bytes(D) - (uint8_t*)head.values());
        }
    split_work(a.num_tokens, 8, [&](int begin, int end) {
        for (int t = begin; t < end; t++) write_token<D>(a, layer, t, qkv + t * width);
    });
    // All items of a head one after the other, so that its keys and values stay in the second cache.
    split_work(num_jobs, 1, [&](int job, int) {
        tiles_begin(16);
        run_item<D>(a, layer, job / num_items, a.items[job % num_items], output);
        tiles_end();
    });
    split_work((int)a.split_rows.size(), 8, [&](int begin, int end) {
        for (int i = begin; i < end; i++)
            for (int head = 0; head < a.num_kv_heads; head++) merge_row<D>(a, head, a.split_rows[i], output);
    });
}

}  // namespace

// ENTRY makes half_create of create: a library may have attention for several types of keys and values.
extern "C" {

// Null if the system permits no tiles, the head size is not built, or there is no memory.
Attention* ENTRY(create)(int num_layers, int num_heads, int num_kv_heads, int head_dim, int num_blocks, float norm_eps,
                         const float* angles) {
    if (!permit_tiles() || (head_dim != 64 && head_dim != 96 && head_dim != 128)) return nullptr;
    try {
        Memory kv((size_t)num_layers * num_blocks * num_kv_heads * head_bytes(head_dim));
        const std::vector<const float*> none(num_layers);
        return new Attention{num_layers, num_heads, num_kv_heads, head_dim, num_blocks,
                             norm_eps,   angles,    none,         none,     std::move(kv)};
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void ENTRY(destroy)(Attention* a) { delete a; }

void* ENTRY(kv)(Attention* a) { return a->kv.data(); }

void ENTRY(set_norms)(Attention* a, int layer, const float* q_norm, const float* k_norm) {
    a->q_norm[layer] = q_norm;
    a->k_norm[layer] = k_norm;
}

// What the next calls of `run` compute: the batch as backend.py draws it.
void ENTRY(plan)(Attention* a, int num_sequences, const int* query_starts, const int* past_lens, const int* block_ids,
                 const int* block_begins) {
    const int group = a->group();
    a->num_tokens = query_starts[num_sequences];
    a->num_parts = 0;
    a->items.clear();
    a->fresh.clear();
    a->parts_of_row.assign((size_t)a->num_tokens * group, {});
    a->positions.resize(a->num_tokens), a->slots.resize(a->num_tokens), a->visible.resize(a->num_tokens);
    a->tables.assign(block_ids, block_ids + block_begins[num_sequences]);
    std::vector<Sequence> sequences;
    for (int i = 0; i < num_sequences; i++) {
        const int* table = a->tables.data() + block_begins[i];
        sequences.push_back({query_starts[i], query_starts[i + 1] - query_starts[i], past_lens[i], table});
        for (int t = query_starts[i], position = past_lens[i]; t < query_starts[i + 1]; t++, position++) {
            a->positions[t] = position;
            a->slots[t] = table[position / BLOCK] * BLOCK + position % BLOCK;
            a->visible[t] = position + 1;
            const bool is_filled = position + BLOCK <= sequences.back().length();
            if (position % BLOCK == 0 && !is_filled) a->fresh.push_back(table[position / BLOCK]);
        }
    }
    PrefixGroup few;
    for (const Sequence& s : sequences) {
        if (s.num_tokens * group > MAX_ROWS) plan_chunk(*a, s);
        else few.push_back(&s);
    }
    if (!few.empty()) plan_family(*a, few, 0);
    a->split_rows.clear();
    for (size_t row = 0; row < a->parts_of_row.size(); row++)
        if (!a->parts_of_row[row].empty()) a->split_rows.push_back((int)row);
    a->queries.resize((size_t)a->num_tokens * a->num_heads * a->head_dim);
    a->partials.resize((size_t)a->num_kv_heads * a->num_parts * (a->head_dim + 2));
}

// qkv: [token][query heads, key heads, value heads][head_dim]; output: [token][query heads][head_dim]
void ENTRY(run)(Attention* a, int layer, const float* qkv, float* output) {
    switch (a->head_dim) {
        case 64: return run_layer<64>(*a, layer, qkv, output);
        case 96: return run_layer<96>(*a, layer, qkv, output);
        case 128: return run_layer<128>(*a, layer, qkv, output);
    }
}

}  // extern "C"
