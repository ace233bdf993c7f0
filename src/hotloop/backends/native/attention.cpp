// Attention over paged KV on a CPU with AMX: the part of a step that grows with the context.
//
// Two ideas make it quick for agents. Keys and values are stored the way AMX tiles want them, so nothing is repacked
// when they are read again. And sequences that share leading blocks are computed together over those blocks, so a
// prefix that ten agents share is read from memory once a step, not ten times.
//
// A block's keys and values stand where the B tiles of AMX (16 rows of 64 bytes) want them. Word w of key k is its
// dimensions 2w and 2w + 1; pair r of the values is that of keys 2r and 2r + 1:
//
//     keys     [k / 16][w / 16][w % 16][k % 16]        values     [d / 16][r][d % 16][2]
//
// One call does a layer: queries and keys are normalised (where the model does) and rotated, keys and values are
// written into their blocks, and every query row attends to what it may see:
//
//     plan()        once a step    rows -> items: (some query rows) x (a range of keys)
//     attention()   once a layer   write KV, run every item for every KV head, merge the parts of split rows
//
// Rows with few queries (decoding, drafts) are split over ranges of keys and merged; long chunks are not.

#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include <tbb/parallel_for.h>

namespace {

using bf16 = uint16_t;

constexpr int BLOCK = 32;         // tokens a KV block holds
constexpr int ROWS = 32;          // query rows computed at once: two AMX tiles
constexpr int STACK = 4;          // times ROWS that go over a chunk of keys while it is in the cache
constexpr int CHUNK = 256;        // keys between two looks at the running maximum
constexpr int SPLIT = 1024;       // keys an item of a split row covers
constexpr int TILE = 512;         // bf16 values in a tile: 16 rows of 64 bytes
constexpr float NEVER = -1e30f;   // the running maximum before any key was seen

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
    bf16* kv;                                   // [layer][block][KV head][keys, values]
    size_t kv_bytes;

    int num_tokens = 0, num_parts = 0;
    std::vector<int> positions, slots;          // of each token: its position, its block * BLOCK + offset
    std::vector<int> fresh;                     // blocks whose first token this step writes
    std::vector<int> tables;
    std::vector<int> visible;                   // of each token: how many keys it sees
    std::vector<Item> items;
    std::vector<std::vector<int>> parts_of_row;
    std::vector<int> split_rows;
    std::vector<bf16> queries;                  // [KV head][row][head_dim]
    std::vector<float> partials;                // [KV head][part][head_dim + 2]: values, largest, total

    int group() const { return num_heads / num_kv_heads; }
    bf16* keys(int layer, int block, int head) const {
        size_t half = (size_t)head_dim * BLOCK;
        return kv + (((size_t)layer * num_blocks + block) * num_kv_heads + head) * 2 * half;
    }
    bf16* values(int layer, int block, int head) const { return keys(layer, block, head) + (size_t)head_dim * BLOCK; }
    float* partial(int head, int part) {
        return partials.data() + ((size_t)head * num_parts + part) * (head_dim + 2);
    }
};

template <int D>
void round_row(const float* from, bf16* to) {
    for (int d = 0; d < D; d += 16)
        _mm256_storeu_si256((__m256i*)(to + d), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + d)));
}

struct Sequence {
    int first_token, num_tokens, past;
    const int* table;
    int length() const { return past + num_tokens; }
};

void add_split(Attention& a, const std::vector<Run>& runs, const int* table, int begin, int end) {
    for (int key = begin; key < end; key += SPLIT) {
        a.items.push_back({runs, table, key, std::min(end, key + SPLIT), a.num_parts});
        for (const Run& run : runs)
            for (int i = 0; i < run.count; i++) a.parts_of_row[run.first + i].push_back(a.num_parts++);
    }
}

using Family = std::vector<const Sequence*>;

// Blocks [begin, end), which all of a family share: as few passes as its rows allow.
void plan_shared(Attention& a, const Family& family, int begin, int end) {
    std::vector<Run> runs;
    int num_rows = 0;
    for (const Sequence* s : family) {
        Run run{s->first_token * a.group(), s->num_tokens * a.group()};
        if (num_rows + run.count > ROWS) {
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
void plan_family(Attention& a, const Family& family, int begin) {
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
    std::unordered_map<int, Family> branches;
    for (const Sequence* s : family) {
        if (end < s->past / BLOCK) branches[s->table[end]].push_back(s);
        else plan_family(a, {s}, end);
    }
    for (const auto& branch : branches) plan_family(a, branch.second, end);
}

void plan_chunk(Attention& a, const Sequence& s) {
    int group = a.group(), num_rows = s.num_tokens * group;
    for (int row = 0; row < num_rows; row += STACK * ROWS) {
        int count = std::min(STACK * ROWS, num_rows - row);
        int end = s.past + (row + count - 1) / group + 1;
        a.items.push_back({{{s.first_token * group + row, count}}, s.table, 0, end, -1});
    }
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// ROWS queries and what they know so far: the largest score, the sum of the weights, the weighted values.
template <int D>
struct alignas(64) Tile {
    bf16 queries[ROWS * D];
    float values[ROWS * D];
    float largest[ROWS], total[ROWS];
    int seen[ROWS], rows[ROWS];
    int num_rows;

    void begin() {
        num_rows = 0;
        std::fill_n(queries, ROWS * D, 0);
        std::fill_n(values, ROWS * D, 0.0f);
        std::fill_n(largest, ROWS, NEVER);
        std::fill_n(total, ROWS, 0.0f);
    }
};

// Scores and weights of one tile over one chunk, block by block: [CHUNK / BLOCK][ROWS][BLOCK]
constexpr int PATCH = ROWS * BLOCK;
struct alignas(64) Scratch {
    float scores[CHUNK / BLOCK * PATCH];
    bf16 weights[CHUNK / BLOCK * PATCH];
};

// The compiler does not know that tile loads read memory: what they read must be there before.
inline void settle_memory() { asm volatile("" ::: "memory"); }

// scores[32 rows][32 keys] = queries[32][D] * keys of one block
template <int D>
void score_block(const bf16* queries, const bf16* keys, float* scores, bool two) {
    settle_memory();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < D / 32; d++) {
        _tile_loadd(4, queries + d * 32, D * 2);
        _tile_loadd(6, keys + d * TILE, 64);
        _tile_loadd(7, keys + (D / 32 + d) * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, queries + 16 * D + d * 32, D * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, scores, BLOCK * 4);
    _tile_stored(1, scores + 16, BLOCK * 4);
    if (!two) return;
    _tile_stored(2, scores + 16 * BLOCK, BLOCK * 4);
    _tile_stored(3, scores + 16 * BLOCK + 16, BLOCK * 4);
}

// sums[32 rows][32 dims] += weights[32][num_keys] * values of the blocks; `d` picks the 32 dims
template <int D>
void add_values(const Attention& a, int layer, int head, const int* table, int num_keys, int d, const bf16* weights,
                float* sums, bool two) {
    settle_memory();
    _tile_loadd(0, sums, D * 4);
    _tile_loadd(1, sums + 16, D * 4);
    if (two) {
        _tile_loadd(2, sums + 16 * D, D * 4);
        _tile_loadd(3, sums + 16 * D + 16, D * 4);
    }
    for (int key = 0; key < num_keys; key += BLOCK) {
        const bf16* block = a.values(layer, table[key / BLOCK], head) + d * 2 * TILE;
        _tile_loadd(4, weights + key * ROWS, BLOCK * 2);
        _tile_loadd(6, block, 64);
        _tile_loadd(7, block + TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!two) continue;
        _tile_loadd(5, weights + key * ROWS + 16 * BLOCK, BLOCK * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, D * 4);
    _tile_stored(1, sums + 16, D * 4);
    if (!two) return;
    _tile_stored(2, sums + 16 * D, D * 4);
    _tile_stored(3, sums + 16 * D + 16, D * 4);
}

// 2^x for x <= 0, to well under a bf16's precision: a cubic on the fraction, scaled by the whole.
__m512 exp2_of(__m512 x) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.05517166f), f, _mm512_set1_ps(0.24261112f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69326099f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99992807f));
    return _mm512_scalef_ps(p, whole);
}

// One row of scores to weights: those of keys beyond `num_seen` are zero. Keeps the row's state in step.
template <int D>
void weigh_row(const float* scores, bf16* weights, int num_keys, int num_seen, float scale, float* values,
               float& largest, float& total) {
    auto mask = [&](int i) { return (__mmask16)((1u << std::clamp(num_seen - i, 0, 16)) - 1); };
    auto score = [&](int i) { return _mm512_load_ps(scores + i / BLOCK * PATCH + i % BLOCK); };
    __m512 most = _mm512_set1_ps(NEVER), more = most;
    int i = 0;
    for (; i + BLOCK <= num_seen; i += BLOCK) {
        most = _mm512_max_ps(most, score(i));
        more = _mm512_max_ps(more, score(i + 16));
    }
    for (; i < num_seen; i += 16) most = _mm512_mask_max_ps(most, mask(i), most, score(i));
    float next = std::max(largest, _mm512_reduce_max_ps(_mm512_max_ps(most, more)) * scale);
    __m512 factor = _mm512_set1_ps(scale), offset = _mm512_set1_ps(next);
    __m512 sum = _mm512_setzero_ps();
    for (i = 0; i < num_keys; i += BLOCK) {
        __m512 low = exp2_of(_mm512_fmsub_ps(score(i), factor, offset));
        __m512 high = exp2_of(_mm512_fmsub_ps(score(i + 16), factor, offset));
        if (i + BLOCK > num_seen) {
            low = _mm512_maskz_mov_ps(mask(i), low);
            high = _mm512_maskz_mov_ps(mask(i + 16), high);
        }
        sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
        _mm512_store_si512(weights + i / BLOCK * PATCH, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    if (next != largest) {
        float shrink = largest == NEVER ? 0.0f : exp2f(largest - next);
        total *= shrink;
        for (int d = 0; d < D; d += 16)
            _mm512_store_ps(values + d, _mm512_mul_ps(_mm512_load_ps(values + d), _mm512_set1_ps(shrink)));
        largest = next;
    }
    total += _mm512_reduce_add_ps(sum);
}

// The keys [key, key + num_keys) of the blocks at `table`, for the rows of one tile.
template <int D>
void attend(const Attention& a, int layer, int head, const int* table, int key, int num_keys, int end, Tile<D>& tile) {
    static thread_local Scratch scratch;
    const float scale = 1.4426950f / sqrtf((float)D);  // log2(e) / sqrt(D): the exponentials are powers of two
    const bool two = tile.num_rows > 16;
    for (int i = 0; i < num_keys; i += BLOCK)
        score_block<D>(tile.queries, a.keys(layer, table[i / BLOCK], head), scratch.scores + i * ROWS, two);
    for (int row = 0; row < tile.num_rows; row++) {
        int num_seen = std::clamp(std::min(tile.seen[row], end) - key, 0, num_keys);
        weigh_row<D>(scratch.scores + row * BLOCK, scratch.weights + row * BLOCK, num_keys, num_seen, scale,
                     tile.values + row * D, tile.largest[row], tile.total[row]);
    }
    for (int d = 0; d < D / 32; d++)
        add_values<D>(a, layer, head, table, num_keys, d, scratch.weights, tile.values + d * 32, two);
}

// The item's rows, in tiles of ROWS; returns how many tiles.
template <int D>
int gather_rows(const Attention& a, int head, const Item& item, Tile<D>* tiles) {
    const int group = a.group();
    int last = 0;
    tiles[0].begin();
    for (const Run& run : item.runs) {
        for (int row = run.first; row < run.first + run.count; row++) {
            if (tiles[last].num_rows == ROWS) tiles[++last].begin();
            Tile<D>& tile = tiles[last];
            int i = tile.num_rows++;
            const bf16* from = a.queries.data() + ((size_t)head * a.num_tokens * group + row) * D;
            memcpy(tile.queries + i * D, from, D * sizeof(bf16));
            tile.seen[i] = a.visible[row / group];
            tile.rows[i] = row;
        }
    }
    return last + 1;
}

template <int D>
void run_item(Attention& a, int layer, int head, const Item& item, float* output) {
    static thread_local Tile<D> tiles[STACK];
    const int num_tiles = gather_rows<D>(a, head, item, tiles), group = a.group();
    for (int key = item.begin; key < item.end; key += CHUNK) {
        int num_keys = std::min(CHUNK, (item.end - key + BLOCK - 1) / BLOCK * BLOCK);
        for (int t = 0; t < num_tiles; t++)
            attend<D>(a, layer, head, item.table + key / BLOCK, key, num_keys, item.end, tiles[t]);
    }
    for (int t = 0; t < num_tiles; t++) {
        for (int i = 0; i < tiles[t].num_rows; i++) {
            const float* values = tiles[t].values + i * D;
            int row = tiles[t].rows[i];
            if (item.part < 0) {
                float* to = output + ((size_t)(row / group) * a.num_heads + head * group + row % group) * D;
                for (int d = 0; d < D; d++) to[d] = values[d] / tiles[t].total[i];
            } else {
                float* to = a.partial(head, item.part + t * ROWS + i);
                memcpy(to, values, D * sizeof(float));
                to[D] = tiles[t].largest[i];
                to[D + 1] = tiles[t].total[i];
            }
        }
    }
}

// A split row's parts, brought to the largest of their maxima and added up.
template <int D>
void merge_row(Attention& a, int head, int row, float* output) {
    const int group = a.group();
    float* to = output + ((size_t)(row / group) * a.num_heads + head * group + row % group) * D;
    float largest = NEVER, total = 0, sum[D] = {};
    for (int part : a.parts_of_row[row]) largest = std::max(largest, a.partial(head, part)[D]);
    for (int part : a.parts_of_row[row]) {
        const float* from = a.partial(head, part);
        float weight = exp2f(from[D] - largest);
        total += from[D + 1] * weight;
        for (int d = 0; d < D; d++) sum[d] += from[d] * weight;
    }
    for (int d = 0; d < D; d++) to[d] = sum[d] / total;
}

// A head's vector as bf16: normalised where the model does, and turned to its position.
template <int D>
void turn(const float* from, const float* angles, const float* norm, float eps, bf16* to) {
    alignas(64) float x[D], turned[D];
    memcpy(x, from, sizeof(x));
    if (norm) {
        float square = 0;
        for (int d = 0; d < D; d++) square += x[d] * x[d];
        float inverse = 1.0f / sqrtf(square / D + eps);
        for (int d = 0; d < D; d++) x[d] *= inverse * norm[d];
    }
    for (int d = 0; d < D / 2; d++) {
        turned[d] = x[d] * angles[d] - x[d + D / 2] * angles[D / 2 + d];
        turned[d + D / 2] = x[d + D / 2] * angles[d] + x[d] * angles[D / 2 + d];
    }
    round_row<D>(turned, to);
}

template <int D>
void write_token(Attention& a, int layer, int token, const float* row) {
    const int group = a.group();
    const float* angles = a.angles + (size_t)a.positions[token] * D;
    const int block = a.slots[token] / BLOCK, slot = a.slots[token] % BLOCK;
    for (int h = 0; h < a.num_heads; h++) {
        bf16* to = a.queries.data() + (((size_t)(h / group) * a.num_tokens + token) * group + h % group) * D;
        turn<D>(row + h * D, angles, a.q_norm[layer], a.norm_eps, to);
    }
    alignas(64) bf16 rounded[D];
    for (int h = 0; h < a.num_kv_heads; h++) {
        turn<D>(row + (a.num_heads + h) * D, angles, a.k_norm[layer], a.norm_eps, rounded);
        uint32_t pairs[D / 2];
        memcpy(pairs, rounded, sizeof(pairs));
        uint32_t* keys = (uint32_t*)a.keys(layer, block, h) + (slot / 16) * (D / 2) * 16 + slot % 16;
        for (int i = 0; i < D / 2; i++) keys[i * 16] = pairs[i];
        round_row<D>(row + (a.num_heads + a.num_kv_heads + h) * D, rounded);
        bf16* values = a.values(layer, block, h) + (slot / 2) * 32 + slot % 2;
        for (int d = 0; d < D; d++) values[(d / 16) * TILE + (d % 16) * 2] = rounded[d];
    }
}

template <int D>
void run_layer(Attention& a, int layer, const float* qkv, float* output) {
    const size_t width = (size_t)(a.num_heads + 2 * a.num_kv_heads) * D;
    const int num_jobs = (int)a.items.size() * a.num_kv_heads;
    // A weight of zero does not silence a NaN that a block's last owner left behind.
    for (int block : a.fresh)
        for (int head = 0; head < a.num_kv_heads; head++)
            memset(a.values(layer, block, head), 0, (size_t)D * BLOCK * sizeof(bf16));
    tbb::parallel_for(tbb::blocked_range<int>(0, a.num_tokens, 8), [&](const tbb::blocked_range<int>& range) {
        for (int t = range.begin(); t < range.end(); t++) write_token<D>(a, layer, t, qkv + t * width);
    });
    tbb::parallel_for(tbb::blocked_range<int>(0, num_jobs, 1), [&](const tbb::blocked_range<int>& range) {
        static const TileConfig config;
        _tile_loadconfig(&config);
        for (int job = range.begin(); job < range.end(); job++)
            run_item<D>(a, layer, job % a.num_kv_heads, a.items[job / a.num_kv_heads], output);
        _tile_release();
    });
    for (int row : a.split_rows)
        for (int head = 0; head < a.num_kv_heads; head++) merge_row<D>(a, head, row, output);
}

}  // namespace

extern "C" {

// Null if this CPU has no AMX, the head size is not built, or there is no memory.
Attention* attention_create(int num_layers, int num_heads, int num_kv_heads, int head_dim, int num_blocks, float norm_eps,
                            const float* angles) {
    const int request_permission = 0x1023, tile_data = 18;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f") || syscall(SYS_arch_prctl, request_permission, tile_data)) return nullptr;
    if (head_dim != 64 && head_dim != 96 && head_dim != 128) return nullptr;
    size_t bytes = (size_t)num_layers * num_blocks * num_kv_heads * 2 * head_dim * BLOCK * sizeof(bf16);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, bytes, MADV_HUGEPAGE);
    auto* a = new Attention{num_layers, num_heads, num_kv_heads, head_dim, num_blocks, norm_eps, angles};
    a->q_norm.resize(num_layers), a->k_norm.resize(num_layers);
    a->kv = (bf16*)memory;
    a->kv_bytes = bytes;
    return a;
}

void attention_destroy(Attention* a) {
    munmap(a->kv, a->kv_bytes);
    delete a;
}

void* attention_kv(Attention* a) { return a->kv; }

void attention_set_norms(Attention* a, int layer, const float* q_norm, const float* k_norm) {
    a->q_norm[layer] = q_norm;
    a->k_norm[layer] = k_norm;
}

// What the next calls of attention_run compute: the batch as backend.py draws it.
void attention_plan(Attention* a, int num_sequences, const int* begins, const int* past_lens, const int* block_ids,
                    const int* block_begins) {
    const int group = a->group();
    a->num_tokens = begins[num_sequences];
    a->num_parts = 0;
    a->items.clear();
    a->fresh.clear();
    a->parts_of_row.assign((size_t)a->num_tokens * group, {});
    a->positions.resize(a->num_tokens), a->slots.resize(a->num_tokens), a->visible.resize(a->num_tokens);
    a->tables.assign(block_ids, block_ids + block_begins[num_sequences]);
    std::vector<Sequence> sequences;
    for (int i = 0; i < num_sequences; i++) {
        const int* table = a->tables.data() + block_begins[i];
        sequences.push_back({begins[i], begins[i + 1] - begins[i], past_lens[i], table});
        for (int t = begins[i], position = past_lens[i]; t < begins[i + 1]; t++, position++) {
            a->positions[t] = position;
            a->slots[t] = table[position / BLOCK] * BLOCK + position % BLOCK;
            a->visible[t] = position + 1;
            if (position % BLOCK == 0) a->fresh.push_back(table[position / BLOCK]);
        }
    }
    Family few;
    for (const Sequence& s : sequences) {
        if (s.num_tokens * group > ROWS) plan_chunk(*a, s);
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
void attention_run(Attention* a, int layer, const float* qkv, float* output) {
    switch (a->head_dim) {
        case 64: return run_layer<64>(*a, layer, qkv, output);
        case 96: return run_layer<96>(*a, layer, qkv, output);
        case 128: return run_layer<128>(*a, layer, qkv, output);
    }
}

}  // extern "C"
