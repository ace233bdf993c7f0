// Rows times weights, in bf16.
//
// Four tiles of sums, 32 x 32, are computed from two and two at a time, which takes as many loads as dot products: so
// they have to come from the first two caches. A worker's job is some blocks times some panels:
//
//     for each chunk of K                   rows of a chunk stay in the second cache for all panels of the job
//         for each panel                    its chunk is unpacked, and stays in the first one for all blocks
//             for each block                sums go on from where the chunk before left them
//
// With one block, as in decoding, nothing is there to be used twice: weights are read from end to end, panel by panel.
// What comes next is fetched meanwhile.

#pragma once

#include <cmath>

#include "few.h"
#include "grouped.h"
#include "quants.h"
#include "tiles.h"

#ifndef CHUNK_STEPS
#define CHUNK_STEPS 8  // 16 KiB of weights and as many of rows: together less than the first cache
#endif
#ifndef MAX_JOB_BLOCKS
#define MAX_JOB_BLOCKS 16
#endif
#ifndef MIN_JOB_BLOCKS
#define MIN_JOB_BLOCKS 4  // with fewer a chunk is hardly worth unpacking
#endif
#ifndef MAX_JOB_PANELS
#define MAX_JOB_PANELS 8
#endif

#ifndef MAX_GROUPED_ROWS
#define MAX_GROUPED_ROWS (HAS_AMX ? 16 : 1 << 30)  // up to which strips are multiplied as they are
#endif

constexpr int LINE_BYTES = 64;

// A batch of rows in the order of tiles, or grouped.
struct Rows {
    int num_rows, num_steps;
    Memory tiles;
    bool is_grouped;
    GroupedRows grouped;

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

// Numbers of a row to its place in the tiles, rounded unless they are bf16 already.
inline void put_row(const float* from, int count, uint8_t* to) {
    for (int i = 0; i < count; i += STEP, to += PAIR_BYTES) {
        alignas(64) float rest[STEP] = {};
        const float* at = from + i;
        if (i + STEP > count) at = (const float*)memcpy(rest, at, (count - i) * sizeof(float));
        store((uint16_t*)to, load(at), load(at + LANES));
    }
}

inline void put_row(const uint16_t* from, int count, uint8_t* to) {
    for (int i = 0; i < count; i += STEP, to += PAIR_BYTES) {
        const int size = std::min(STEP, count - i) * (int)sizeof(uint16_t);
        memcpy(to, from + i, size), memset(to + size, 0, STEP_BYTES - size);
    }
}

// Whether rows are to be rounded to bytes for these weights.
inline bool are_grouped(const Weights& w, int num_rows) {
    return w.format == Format::STRIPS && num_rows <= MAX_GROUPED_ROWS;
}

// Rows for these weights; `prepare(row, scratch)` says where one stands, having made it ready.
template <typename Prepare>
void pack_rows(Workers& workers, Rows& rows, const Weights& next, int num_rows, Prepare prepare) {
    const int num_in = next.num_in;
    rows.num_rows = num_rows, rows.num_steps = divide_up(num_in, STEP);
    rows.is_grouped = are_grouped(next, num_rows);
    if (rows.is_grouped) rows.grouped.resize(num_rows, num_in);
    else rows.tiles.reserve((size_t)rows.num_blocks() * rows.num_steps * PAIR_BYTES);
    workers.split(num_rows, 4, [&](int begin, int end) {
        static thread_local std::vector<float> scratch;
        scratch.resize(num_in);
        for (int row = begin; row < end; row++) {
            const auto* from = prepare(row, scratch.data());
            if (rows.is_grouped) round_row(rows.grouped, row, from);
            else put_row(from, num_in, rows.block(row / BLOCK_ROWS) + row % BLOCK_ROWS * STEP_BYTES);
        }
    });
}

// What is fetched meanwhile: so many lines of memory with each step.
struct Ahead {
    const uint8_t* at;
    int lines;
};

// sums[4 tiles] = (or +=, if it goes on) a block of rows * a panel of weights. One: the block has no second half.
inline void multiply(const uint8_t* rows, const uint8_t* weights, int num_steps, bool one, bool goes_on, float* sums,
                     Ahead ahead) {
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
    for (int step = 0; step < num_steps; step++, rows += PAIR_BYTES, weights += PAIR_BYTES) {
        tile_load(6, weights);
        tile_load(4, rows);
        tile_dot(0, 4, 6);
        tile_load(7, weights + TILE_BYTES);
        tile_dot(1, 4, 7);
        if (!one) {
            tile_load(5, rows + TILE_BYTES);
            tile_dot(2, 5, 6);
            tile_dot(3, 5, 7);
        }
        for (int i = 0; i < ahead.lines; i++, ahead.at += LINE_BYTES) __builtin_prefetch(ahead.at, 0, 2);
    }
    tile_store(0, sums);
    tile_store(1, sums + 256);
    if (!one) {
        tile_store(2, sums + 512);
        tile_store(3, sums + 768);
    }
    settle_memory();
}

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
            return load(sums + (row / 16 * 2 + half) * 256 + row % 16 * 16) * scales[half] + bias[half];
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

// Room for the chunk of a panel that a worker unpacked, and for the sums that it has under way.
struct Scratch {
    Memory chunk{(size_t)CHUNK_STEPS * PAIR_BYTES};
    Memory sums{(size_t)MAX_JOB_BLOCKS * MAX_JOB_PANELS * BLOCK_SUMS * sizeof(float)};
    Unpacked unpacked;
};

inline void run_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, Scratch& scratch) {
    const int num_blocks = job.block_end - job.block_begin, num_steps = w.num_steps;
    auto run_chunk = [&](int step, int panel, const uint8_t* next) {
        const int count = std::min(CHUNK_STEPS, num_steps - step);
        const int lines = divide_up(w.num_bytes(count), num_blocks * count * LINE_BYTES);
        const uint8_t* weights = tiles_of(w, panel, step, count, scratch.chunk.data());
        for (int i = 0; i < num_blocks; i++) {
            const int block = job.block_begin + i;
            const bool one = rows.num_rows - block * BLOCK_ROWS <= 16;
            float* sums = (float*)scratch.sums.data() + ((panel - job.panel_begin) * num_blocks + i) * BLOCK_SUMS;
            const Ahead ahead = {next + (size_t)i * count * lines * LINE_BYTES, lines};
            multiply(rows.block(block) + (size_t)step * PAIR_BYTES, weights, count, one, step > 0, sums, ahead);
            if (step + count == num_steps) finish(w, rows, block, panel, sums, target);
        }
    };
    if (w.format == Format::INT8 && rows.num_rows <= MAX_FEW_ROWS) {
        auto* sums = (float*)scratch.sums.data();
        for (int panel = job.panel_begin; panel < job.panel_end; panel++) {
            multiply_few(w, panel, rows.block(0), rows.num_rows, sums);
            finish(w, rows, 0, panel, sums, target);
        }
        return;
    }
    if (num_blocks == 1) {
        for (int panel = job.panel_begin; panel < job.panel_end; panel++)
            for (int step = 0; step < num_steps; step += CHUNK_STEPS)
                run_chunk(step, panel, w.place(panel, step + CHUNK_STEPS));
        return;
    }
    for (int step = 0; step < num_steps; step += CHUNK_STEPS)
        for (int panel = job.panel_begin; panel < job.panel_end; panel++)
            run_chunk(step, panel, panel + 1 < job.panel_end ? w.place(panel + 1, step)
                                                             : w.place(job.panel_begin, step + CHUNK_STEPS));
}

// The same for grouped rows, whose codes are unpacked but not widened.
inline void run_grouped_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, Scratch& scratch) {
    const int begin = job.block_begin * BLOCK_ROWS, end = std::min(job.block_end * BLOCK_ROWS, rows.num_rows);
    auto* sums = (float*)scratch.sums.data();
    for (int panel = job.panel_begin; panel < job.panel_end; panel++) {
        for (int half = 0; half < 2; half++)
            multiply_strip(rows.grouped, begin, end, w.strips[2 * panel + half], scratch.unpacked, [&](int row) {
                return sums + (((row - begin) / 16 * 2 + half) * 16 + row % 16) * 16;
            });
        for (int block = job.block_begin; block < job.block_end; block++)
            finish(w, rows, block, panel, sums + (block - job.block_begin) * BLOCK_SUMS, target);
    }
}

struct Context {
    explicit Context(int num_workers) : workers(num_workers), scratches(num_workers) {}
    Workers workers;
    std::vector<Scratch> scratches;
};

inline void matmul(Context& context, const Rows& rows, const Weights& w, const Target& target) {
    const int num_blocks = rows.num_blocks();
    if (!num_blocks) return;
    // Four jobs for each worker, so that none waits long for another: of fewer panels, then of fewer blocks.
    const int num_wanted = 4 * context.workers.num_workers;
    const int most_blocks = divide_up(num_blocks, divide_up(num_wanted, w.num_panels));
    const int num_parts = divide_up(num_blocks, std::clamp(most_blocks, MIN_JOB_BLOCKS, MAX_JOB_BLOCKS));
    const int job_blocks = divide_up(num_blocks, num_parts), row_jobs = divide_up(num_blocks, job_blocks);
    const int job_panels = std::clamp(w.num_panels * row_jobs / num_wanted, 1, MAX_JOB_PANELS);
    const int panel_jobs = divide_up(w.num_panels, job_panels);
    auto run = [&](int i, int worker) {
        const int block = i / panel_jobs * job_blocks, panel = i % panel_jobs * job_panels;
        const Job job = {block, std::min(block + job_blocks, num_blocks), panel, std::min(panel + job_panels, w.num_panels)};
        (rows.is_grouped ? run_grouped_job : run_job)(rows, w, target, job, context.scratches[worker]);
    };
    context.workers.share(row_jobs * panel_jobs, tiles_begin, run, tiles_end);
}
