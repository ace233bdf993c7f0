// Rows times weights, in int8 (a scale for each row, and for each column of the result) or in bf16.
//
// Both sides stand in the order in which tiles are loaded. A step is 64 bytes of K, a panel 32 columns of the result, a
// block 32 rows; of each step there are two tiles, one after the other:
//
//     rows     [block][step][2 tiles of 16 rows]        weights     [panel][step][2 tiles of 16 columns]
//
// Four tiles of sums, 32 x 32, are computed from two and two at a time, which takes as many loads as dot products: so
// they have to come from the first two caches. A worker's job is some blocks times some panels:
//
//     for each chunk of K                   rows of a chunk stay in the second cache for all panels of the job
//         for each panel                    its chunk stays in the first one for all blocks; the next is on its way
//             for each block                sums go on from where the chunk before left them

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "tiles.h"
#include "vectors.h"
#include "workers.h"

#ifndef CHUNK_STEPS
#define CHUNK_STEPS 10  // 20 KiB of weights and as many of rows: together less than the first cache
#endif
#ifndef MAX_JOB_BLOCKS
#define MAX_JOB_BLOCKS 16
#endif
#ifndef MAX_JOB_PANELS
#define MAX_JOB_PANELS 8
#endif

enum class Format { INT8, BF16 };

constexpr int STEP_BYTES = 64, TILE_BYTES = 1024, PAIR_BYTES = 2 * TILE_BYTES;
constexpr int BLOCK_ROWS = 32, PANEL_COLUMNS = 32, BLOCK_SUMS = BLOCK_ROWS * PANEL_COLUMNS;
constexpr int LINE_BYTES = 64, PAIR_LINES = PAIR_BYTES / LINE_BYTES;
constexpr int STREAM_BYTES = 4 * PAIR_BYTES;  // how far ahead weights are fetched that are used only once

inline int divide_up(int a, int b) { return (a + b - 1) / b; }
inline int size_of(Format format) { return format == Format::INT8 ? 1 : 2; }

// Zeroed memory in large pages, where the system has some.
class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t num_bytes) : num_bytes_(num_bytes) {
        void* at = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
        madvise(at, num_bytes, MADV_HUGEPAGE);
        data_ = (uint8_t*)at;
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
        return *this;
    }
    ~Memory() {
        if (data_) munmap(data_, num_bytes_);
    }
    uint8_t* data() const { return data_; }
    size_t num_bytes() const { return num_bytes_; }

    // Room for so much; what was in it is lost if there was less.
    void reserve(size_t num_bytes) {
        if (num_bytes > num_bytes_) *this = Memory(num_bytes);
    }

   private:
    uint8_t* data_ = nullptr;
    size_t num_bytes_ = 0;
};

// One matrix. Gated: it is two, gate and up, of which a panel has 16 columns each, so that they meet in its sums.
struct Weights {
    Format format;
    int num_out, num_in;
    bool is_gated;
    int num_steps, num_panels;
    Memory tiles;
    std::vector<float> scales, bias;  // of each column of the panels

    // The row of the matrix, gate before up, that a column is; -1 if it only fills up the last panel.
    int source(int column) const {
        if (!is_gated) return column < num_out ? column : -1;
        const int half = num_out / 2, i = column / PANEL_COLUMNS * 16 + column % 16;
        return i >= half ? -1 : column % PANEL_COLUMNS < 16 ? i : half + i;
    }
    uint8_t* panel(int i) const { return tiles.data() + (size_t)i * num_steps * PAIR_BYTES; }
};

// A batch of rows, packed, and what each was divided by.
struct Rows {
    Format format;
    int num_rows, num_steps;
    Memory tiles;
    std::vector<float> scales;

    int num_blocks() const { return divide_up(num_rows, BLOCK_ROWS); }
    uint8_t* block(int i) const { return tiles.data() + (size_t)i * num_steps * PAIR_BYTES; }
};

// Where results go. STORE and ADD: [row][column] floats; GATE: silu(gate) * up, [row][column / 2] bf16.
enum class Then { STORE, ADD, GATE };
struct Target {
    Then then;
    void* out;
    size_t stride;
};

// Numbers of one row to a place of 64 bytes every `stride`: divided by the scale that is returned, if they become int8.
inline float put_row(Format format, const float* from, int count, uint8_t* to, size_t stride) {
    const int step = STEP_BYTES / size_of(format);
    Vector most = {};
    alignas(64) float rest[STEP_BYTES];
    auto piece = [&](int i) {  // of `step` numbers, filled up with zeros
        if (i + step <= count) return from + i;
        memset(rest, 0, sizeof(rest));
        memcpy(rest, from + i, (count - i) * sizeof(float));
        return (const float*)rest;
    };
    if (format == Format::BF16) {
        for (int i = 0; i < count; i += step, to += stride) {
            const float* at = piece(i);
            store((uint16_t*)to, load(at)), store((uint16_t*)to + LANES, load(at + LANES));
        }
        return 1.0f;
    }
    for (int i = 0; i < count; i += step) {
        const float* at = piece(i);
        for (int j = 0; j < step; j += LANES) most = larger(most, absolute(load(at + j)));
    }
    const float scale = largest_of(most) / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < count; i += step, to += stride) {
        const float* at = piece(i);
        for (int j = 0; j < step; j += LANES) store((int8_t*)to + j, load(at + j) * inverse);
    }
    return scale;
}

// 16 rows of 64 bytes, as they stand after one another, to a tile of weights: columns of words.
inline void turn_tile(const uint8_t* from, uint8_t* to) {
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 16; n++) memcpy(to + (k * 16 + n) * 4, from + (n * 16 + k) * 4, 4);
}

// Half `half` of a panel. matrix: [num_out][num_in]
inline void pack_columns(Weights& w, const float* matrix, int panel, int half, uint8_t* turning) {
    memset(turning, 0, (size_t)w.num_steps * TILE_BYTES);
    for (int i = 0; i < 16; i++) {
        const int column = panel * PANEL_COLUMNS + half * 16 + i, source = w.source(column);
        if (source < 0) continue;
        const float* row = matrix + (size_t)source * w.num_in;
        w.scales[column] = put_row(w.format, row, w.num_in, turning + i * STEP_BYTES, TILE_BYTES);
    }
    for (int step = 0; step < w.num_steps; step++)
        turn_tile(turning + step * TILE_BYTES, w.panel(panel) + step * PAIR_BYTES + half * TILE_BYTES);
}

inline Weights* pack_weights(Workers& workers, Format format, const float* matrix, const float* bias, int num_out,
                             int num_in, bool is_gated) {
    const int columns = is_gated ? divide_up(num_out / 2, 16) * PANEL_COLUMNS : num_out;
    auto* w = new Weights{format, num_out, num_in, is_gated, divide_up(num_in * size_of(format), STEP_BYTES),
                          divide_up(columns, PANEL_COLUMNS), {}, {}, {}};
    w->tiles = Memory((size_t)w->num_panels * w->num_steps * PAIR_BYTES);
    w->scales.assign(w->num_panels * PANEL_COLUMNS, 0.0f), w->bias.assign(w->num_panels * PANEL_COLUMNS, 0.0f);
    for (int column = 0; bias && column < (int)w->bias.size(); column++)
        if (w->source(column) >= 0) w->bias[column] = bias[w->source(column)];
    workers.split(w->num_panels, 4, [&](int begin, int end) {
        std::vector<uint8_t> turning((size_t)w->num_steps * TILE_BYTES);
        for (int panel = begin; panel < end; panel++)
            for (int half = 0; half < 2; half++) pack_columns(*w, matrix, panel, half, turning.data());
    });
    return w;
}

// x / sqrt(mean(x^2) + eps) * weight
inline void normalise(const float* x, const float* weight, float eps, int count, float* to) {
    Vector squares = {};
    float rest = 0;
    int i = 0;
    for (; i + LANES <= count; i += LANES) squares += load(x + i) * load(x + i);
    for (; i < count; i++) rest += x[i] * x[i];
    const float inverse = 1.0f / sqrtf((sum_of(squares) + rest) / count + eps);
    for (i = 0; i < count; i++) to[i] = x[i] * inverse * weight[i];
}

inline void widen(const uint16_t* from, int count, float* to) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
    for (; i < count; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, 4);
    }
}

// Rows [num_rows][stride] of `num_in` numbers, made ready by `prepare(row, scratch)`, which says where a row stands then.
template <typename Prepare>
void pack_rows(Workers& workers, Rows& rows, Format format, int num_rows, int num_in, Prepare prepare) {
    rows.format = format, rows.num_rows = num_rows;
    rows.num_steps = divide_up(num_in * size_of(format), STEP_BYTES);
    rows.tiles.reserve((size_t)rows.num_blocks() * rows.num_steps * PAIR_BYTES);
    rows.scales.resize(num_rows);
    workers.split(num_rows, 4, [&](int begin, int end) {
        static thread_local std::vector<float> scratch;
        scratch.resize(num_in);
        for (int row = begin; row < end; row++) {
            const float* from = prepare(row, scratch.data());
            uint8_t* to = rows.block(row / BLOCK_ROWS) + row % BLOCK_ROWS * STEP_BYTES;
            rows.scales[row] = put_row(format, from, num_in, to, PAIR_BYTES);
        }
    });
}

// The part of what comes next that is fetched meanwhile: these lines of the two tiles of each step.
struct Ahead {
    const uint8_t* at;
    int begin, end;
};

#define DOT(sums, rows, weights) \
    if constexpr (FORMAT == Format::INT8) tile_dot_int8(sums, rows, weights); \
    else tile_dot_bf16(sums, rows, weights)

// sums[4 tiles] = (or +=, if it goes on) a block of rows * a panel of weights. One: the block has no second half.
template <Format FORMAT>
void multiply(const uint8_t* rows, const uint8_t* weights, int num_steps, bool one, bool goes_on, float* sums, Ahead ahead) {
    settle_memory();
    if (goes_on) {
        tile_load(0, sums);
        tile_load(1, sums + 256);
        tile_load(2, sums + 512);
        tile_load(3, sums + 768);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int step = 0; step < num_steps; step++, rows += PAIR_BYTES, weights += PAIR_BYTES, ahead.at += PAIR_BYTES) {
        tile_load(6, weights);
        tile_load(4, rows);
        DOT(0, 4, 6);
        tile_load(7, weights + TILE_BYTES);
        DOT(1, 4, 7);
        if (!one) {
            tile_load(5, rows + TILE_BYTES);
            DOT(2, 5, 6);
            DOT(3, 5, 7);
        }
        for (int line = ahead.begin; line < ahead.end; line++) __builtin_prefetch(ahead.at + line * LINE_BYTES, 0, 2);
    }
    tile_store(0, sums);
    tile_store(1, sums + 256);
    if (!one) {
        tile_store(2, sums + 512);
        tile_store(3, sums + 768);
    }
    settle_memory();
}

#undef DOT

inline void put(float* to, Vector v, int count, bool is_added) {
    if (count >= LANES) return store(to, is_added ? v + load(to) : v);
    for (int i = 0; i < count; i++) to[i] = is_added ? to[i] + v[i] : v[i];
}

// Sums of a block and a panel to results.
inline void finish(const Weights& w, const Rows& rows, int block, int panel, const float* sums, const Target& target) {
    const int first = block * BLOCK_ROWS, column = panel * PANEL_COLUMNS;
    const int num_rows = std::min(BLOCK_ROWS, rows.num_rows - first);
    const Vector scales[2] = {load(&w.scales[column]), load(&w.scales[column + 16])};
    const Vector bias[2] = {load(&w.bias[column]), load(&w.bias[column + 16])};
    for (int row = 0; row < num_rows; row++) {
        auto result = [&](int half) {
            const float* at = sums + (row / 16 * 2 + half) * 256 + row % 16 * 16;
            Vector sum = load(at);
            if (w.format == Format::INT8) sum = __builtin_convertvector((Integers)sum, Vector);
            return sum * (scales[half] * rows.scales[first + row]) + bias[half];
        };
        if (target.then == Then::GATE) {
            uint16_t* to = (uint16_t*)target.out + (first + row) * target.stride + panel * 16;
            const int left = w.num_out / 2 - panel * 16;
            alignas(64) uint16_t gated[LANES];
            store(gated, silu(result(0)) * result(1));
            memcpy(to, gated, std::min(left, LANES) * sizeof(uint16_t));
        } else {
            float* to = (float*)target.out + (first + row) * target.stride + column;
            for (int half = 0; half < 2; half++)
                put(to + half * 16, result(half), w.num_out - column - half * 16, target.then == Then::ADD);
        }
    }
}

// Blocks [begin, end) times panels [begin, end).
struct Job {
    int block_begin, block_end, panel_begin, panel_end;
};

template <Format FORMAT>
void run_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, float* scratch) {
    const int num_blocks = job.block_end - job.block_begin, num_steps = w.num_steps;
    // Weights that are used once are read from end to end; else in chunks of about the same size.
    const int num_chunks = num_blocks == 1 ? 1 : divide_up(num_steps, CHUNK_STEPS);
    const int chunk = divide_up(num_steps, num_chunks);
    for (int step = 0; step < num_steps; step += chunk) {
        const int count = std::min(chunk, num_steps - step);
        const bool is_last = step + count == num_steps;
        for (int panel = job.panel_begin; panel < job.panel_end; panel++) {
            const uint8_t* weights = w.panel(panel) + (size_t)step * PAIR_BYTES;
            const uint8_t* next = panel + 1 < job.panel_end ? weights + (size_t)num_steps * PAIR_BYTES
                                : is_last ? w.panel(panel + 1)
                                          : w.panel(job.panel_begin) + (size_t)(step + count) * PAIR_BYTES;
            if (num_blocks == 1) next = weights + STREAM_BYTES;
            for (int i = 0; i < num_blocks; i++) {
                const int block = job.block_begin + i;
                const bool one = rows.num_rows - block * BLOCK_ROWS <= 16;
                const int place = num_chunks == 1 ? 0 : (panel - job.panel_begin) * num_blocks + i;
                float* sums = scratch + (size_t)place * BLOCK_SUMS;
                const Ahead ahead = {next, i * PAIR_LINES / num_blocks, (i + 1) * PAIR_LINES / num_blocks};
                multiply<FORMAT>(rows.block(block) + (size_t)step * PAIR_BYTES, weights, count, one, step > 0, sums, ahead);
                if (is_last) finish(w, rows, block, panel, sums, target);
            }
        }
    }
}

// Workers, and room for the sums that each has under way.
struct Context {
    explicit Context(int num_workers) : workers(num_workers) {
        for (int i = 0; i < num_workers; i++)
            sums.emplace_back((size_t)MAX_JOB_BLOCKS * MAX_JOB_PANELS * BLOCK_SUMS * sizeof(float));
    }
    Workers workers;
    std::vector<Memory> sums;
};

inline void matmul(Context& context, const Rows& rows, const Weights& w, const Target& target) {
    const int num_blocks = rows.num_blocks();
    if (!num_blocks) return;
    const int row_jobs = divide_up(num_blocks, MAX_JOB_BLOCKS), job_blocks = divide_up(num_blocks, row_jobs);
    // Four jobs for each worker, where there are as many panels, so that none waits long for another.
    const int wanted = w.num_panels * row_jobs / (4 * context.workers.num_workers);
    const int job_panels = std::clamp(wanted, 1, MAX_JOB_PANELS), panel_jobs = divide_up(w.num_panels, job_panels);
    auto run = [&](int i, int worker) {
        const int block = i / panel_jobs * job_blocks, panel = i % panel_jobs * job_panels;
        const Job job = {block, std::min(block + job_blocks, num_blocks), panel, std::min(panel + job_panels, w.num_panels)};
        float* sums = (float*)context.sums[worker].data();
        if (w.format == Format::INT8) run_job<Format::INT8>(rows, w, target, job, sums);
        else run_job<Format::BF16>(rows, w, target, job, sums);
    };
    context.workers.share(row_jobs * panel_jobs, tiles_begin, run, tiles_end);
}
