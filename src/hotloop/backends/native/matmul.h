// Rows times weights, in units of four tiles of sums.
//
// A step of a unit takes as many loads as dot products, so that they have to come from the first two caches. A worker's
// job is some blocks times some panels:
//
//     for each chunk of K                   rows of a chunk stay in the second cache for all panels of the job
//         for each panel                    its chunk, unpacked if need be, stays in the first one for all blocks,
//                                           past which rows go
//             for each block                sums go on from where the chunk before left them, or, where rows are bytes,
//                                           are scaled and added to those of the chunk before
//
// With one block, as in decoding, nothing is there to be used twice: weights are read from end to end, panel by panel.
// What comes next is fetched meanwhile, and what is done is finished: sums become results while the next ones are summed.

#pragma once

#include "rows.h"

#ifndef MAX_JOB_BLOCKS
#define MAX_JOB_BLOCKS 16
#endif
#ifndef MIN_JOB_BLOCKS
#define MIN_JOB_BLOCKS 4  // with fewer a chunk is hardly worth unpacking
#endif
#ifndef MAX_JOB_PANELS
#define MAX_JOB_PANELS 8
#endif
#ifndef FETCH_BYTES
#define FETCH_BYTES 8192  // how far ahead weights are fetched that are used once
#endif

// Where results go. STORE and ADD: [row][column] floats; GATE: silu(gate) * up, [row][column / 2] bf16.
enum class Then { STORE, ADD, GATE };
struct Target {
    Then then;
    void* out;
    size_t stride;
};

inline void put(float* to, Vector v, int count, bool is_added) {
    if (count >= LANES) return store(to, is_added ? v + load(to) : v);
    for (int i = 0; i < count; i++) to[i] = is_added ? to[i] + v[i] : v[i];
}

// A unit whose sums are not results yet, a row at a time; partial: [4 tiles], where chunks of bytes add up.
class Unfinished {
   public:
    Unfinished(const Rows& rows, const Weights& w, const Target& target) : rows_(rows), w_(w), target_(target) {}

    void begin(int block, int panel, int chunk, const float* sums, float* partial) {
        first_ = row_ = block * rows_.block_rows(), end_ = std::min(first_ + rows_.block_rows(), rows_.num_rows);
        panel_ = panel, chunk_ = chunk, sums_ = sums, partial_ = partial;
    }

    void finish(int count) {
        const int end = std::min(row_ + count, end_);
        if (row_ >= end) return;
        switch (rows_.form) {
            case RowForm::BYTES: return finish_rows(end, [this](int half) { return scaled_bytes(half); });
            case RowForm::WORDS: return finish_rows(end, [this](int half) { return joined_words(half); });
            default: return finish_rows(end, [this](int half) { return load(sums_ + place(half)); });
        }
    }

   private:
    int place(int half) const {
        const int row = row_ - first_;
        return (row / 16 * 2 + half) * TILE_SUMS + row % 16 * 16;
    }

    // Of one half of the panel.
    Vector scaled_bytes(int half) const {
        Integers whole;
        memcpy(&whole, sums_ + place(half), sizeof(whole));
        const Vector sum = floats(whole) * rows_.scales[rows_.scale_place(row_, chunk_)];
        return chunk_ ? sum + load(partial_ + place(half)) : sum;
    }

    Vector joined_words(int half) const {
        const float* sums = sums_ + half * TILE_SUMS + (row_ - first_) * 16;
        Integers high, low, bytes;
        memcpy(&high, sums, sizeof(high));
        memcpy(&low, sums + rows_.low_sums(), sizeof(low));
        memcpy(&bytes, &w_.sums[panel_ * PANEL_COLUMNS + half * 16], sizeof(bytes));
        high -= bytes * (LEAST / 256);
        return multiply_add(floats(high), Vector{} + 256.0f, floats(low)) * rows_.scales[row_];
    }

    template <typename Sum>
    void finish_rows(int end, Sum sum) {
        const int column = panel_ * PANEL_COLUMNS;
        const bool are_integers = rows_.form == RowForm::BYTES || rows_.form == RowForm::WORDS;
        Vector scale[2], bias[2];
        for (int half = 0; half < 2; half++) {
            scale[half] = are_integers ? load(&w_.scales[column + half * 16]) : Vector{} + 1.0f;
            bias[half] = load(&w_.bias[column + half * 16]);
        }
        auto result = [&](int half) { return multiply_add(sum(half), scale[half], bias[half]); };
        if (rows_.form == RowForm::BYTES && chunk_ + 1 < rows_.chunks.count) {
            for (; row_ < end; row_++)
                for (int half = 0; half < 2; half++) store(partial_ + place(half), sum(half));
        } else if (target_.then == Then::GATE) {
            for (; row_ < end; row_++) put_gated(silu(result(0)) * result(1));
        } else {
            for (; row_ < end; row_++) {
                float* to = (float*)target_.out + row_ * target_.stride + column;
                for (int half = 0; half < 2; half++)
                    put(to + half * 16, result(half), w_.num_out - column - half * 16, target_.then == Then::ADD);
            }
        }
    }

    void put_gated(Vector gated) const {
        uint16_t* to = (uint16_t*)target_.out + row_ * target_.stride + panel_ * 16;
        const int left = w_.num_out / 2 - panel_ * 16;
        if (left >= LANES) return store(to, gated);
        alignas(64) uint16_t some[LANES];
        store(some, gated);
        memcpy(to, some, left * sizeof(uint16_t));
    }

    const Rows& rows_;
    const Weights& w_;
    const Target target_;
    int first_ = 0, row_ = 0, end_ = 0, panel_ = 0, chunk_ = 0;
    const float* sums_ = nullptr;
    float* partial_ = nullptr;
};

// What is done with each step besides: so many lines of memory are fetched, and so many rows finished.
struct Meanwhile {
    const uint8_t* fetched;
    int num_lines;
    Unfinished& unfinished;
    int num_rows;

    void step() {
        fetch(fetched, num_lines * LINE_BYTES), fetched += num_lines * LINE_BYTES;
        unfinished.finish(num_rows);
    }
};

// sums[4 tiles] = (or +=, if it goes on) a block of rows * a panel of weights, and one more step of them, if there is one
// to come last. One: the block has no second tile of rows.
template <RowForm FORM>
void multiply(const uint8_t* rows, const uint8_t* weights, int num_steps, const uint8_t* last, bool one, bool goes_on,
              float* sums, Meanwhile meanwhile) {
#define DOT(sums, rows, weights) \
    if constexpr (FORM == RowForm::BYTES) tile_dot_bytes(sums, rows, weights); \
    else if constexpr (FORM == RowForm::WORDS) tile_dot_unsigned(sums, rows, weights); \
    else tile_dot(sums, rows, weights)
    settle_memory();
    if (goes_on) {
        tile_load(0, sums);
        tile_load(1, sums + TILE_SUMS);
        tile_load(2, sums + 2 * TILE_SUMS);
        tile_load(3, sums + 3 * TILE_SUMS);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int step = 0; step < num_steps + (last != nullptr); step++, rows += PAIR_BYTES, weights += PAIR_BYTES) {
        if (step == num_steps) weights = last;
        tile_load(6, weights);
        tile_load_once(4, rows);
        DOT(0, 4, 6);
        tile_load(7, weights + TILE_BYTES);
        DOT(1, 4, 7);
        if (!one) {
            tile_load_once(5, rows + TILE_BYTES);
            DOT(2, 5, 6);
            DOT(3, 5, 7);
        }
        meanwhile.step();
    }
    tile_store(0, sums);
    tile_store(1, sums + TILE_SUMS);
    if (!one) {
        tile_store(2, sums + 2 * TILE_SUMS);
        tile_store(3, sums + 3 * TILE_SUMS);
    }
    settle_memory();
#undef DOT
}

// Blocks [begin, end) times panels [begin, end).
struct Job {
    int block_begin, block_end, panel_begin, panel_end;
};

// Room for the chunk of a panel that a worker unpacked, for the weights of its slots, and for the sums that it has under way.
struct Scratch {
    Memory chunk{(size_t)CHUNK_STEPS * PAIR_BYTES}, slots{PAIR_BYTES};
    Memory sums{(size_t)(MAX_JOB_BLOCKS * MAX_JOB_PANELS + 2) * UNIT_SUMS * sizeof(float)};
    Unpacked unpacked;

    float* unit(int i) const { return (float*)sums.data() + (size_t)i * UNIT_SUMS; }
    float* next(int num_done) const { return unit(MAX_JOB_BLOCKS * MAX_JOB_PANELS + num_done % 2); }
};

inline void run_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, Scratch& scratch) {
    const int num_blocks = job.block_end - job.block_begin, num_steps = w.num_steps;
    const bool are_bytes = rows.form == RowForm::BYTES, is_read_once = num_blocks == 1 && !are_bytes;
    const Chunks chunks = is_read_once ? Chunks{num_steps, 1} : rows.chunks;
    const auto run = are_bytes                     ? multiply<RowForm::BYTES>
                     : rows.form == RowForm::WORDS ? multiply<RowForm::WORDS>
                                                   : multiply<RowForm::BF16>;
    Unfinished unfinished(rows, w, target);
    int num_done = 0;
    if (is_read_once) fetch(w.place(job.panel_begin, 0), FETCH_BYTES);
    auto run_chunk = [&](int chunk, int panel) {
        const int step = chunks.begin(chunk), count = chunks.end(chunk) - step;
        const uint8_t* weights = tiles_of(w, panel, step, count, scratch.chunk.data());
        if (are_bytes) gather_slots(rows.slots[chunk], weights, scratch.slots.data());
        const uint8_t* next = is_read_once                ? weights + FETCH_BYTES
                              : panel + 1 < job.panel_end ? w.place(panel + 1, step)
                                                          : w.place(job.panel_begin, step + count);
        const int lines = w.format == Format::STRIPS ? 0 : divide_up(PAIR_BYTES / LINE_BYTES, num_blocks);
        for (int i = 0; i < num_blocks; i++, num_done++) {
            const int block = job.block_begin + i;
            const bool one = rows.are_few() || (rows.form != RowForm::WORDS && rows.num_rows - block * 32 <= 16);
            float* unit = scratch.unit((panel - job.panel_begin) * num_blocks + i);
            float* sums = are_bytes || chunks.count == 1 ? scratch.next(num_done) : unit;
            const Meanwhile meanwhile = {next + (size_t)i * count * lines * LINE_BYTES, lines, unfinished,
                                         divide_up(rows.block_rows(), count)};
            const uint8_t* from = rows.block(block) + (are_bytes ? rows.chunk_offset(chunk) : (size_t)step * PAIR_BYTES);
            run(from, weights, count, are_bytes ? scratch.slots.data() : nullptr, one, !are_bytes && step > 0, sums,
                meanwhile);
            if (are_bytes || chunk + 1 == chunks.count) unfinished.begin(block, panel, chunk, sums, unit);
        }
    };
    for (int chunk = 0; chunk < chunks.count; chunk++)
        for (int panel = job.panel_begin; panel < job.panel_end; panel++) run_chunk(chunk, panel);
    unfinished.finish(rows.block_rows());
}

// The same for grouped rows, whose codes are unpacked but not widened, or not even that for a few rows.
inline void run_grouped_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, Scratch& scratch) {
    const int begin = job.block_begin * rows.block_rows(), end = std::min(job.block_end * rows.block_rows(), rows.num_rows);
    const int num_blocks = job.block_end - job.block_begin, num_panels = job.panel_end - job.panel_begin;
    const int num_groups = rows.grouped.num_groups;
    auto sums = [&](int panel, int half, int row) {
        const int at = row - begin;
        return scratch.unit(panel * num_blocks + at / 32) + (at % 32 / 16 * 2 + half) * TILE_SUMS + at % 16 * 16;
    };
    auto each_strip = [&](auto work) {
        for (int i = 0; i < 2 * num_panels; i++) work(w.strips[2 * job.panel_begin + i], i / 2, i % 2);
    };
    if (end - begin <= MAX_FEW_ROWS) {
        each_strip([&](const Strip& strip, int panel, int half) {
            multiply_few(rows.grouped, begin, end, strip, [&](int row) { return sums(panel, half, row); });
        });
    } else {
        std::fill_n(scratch.unit(0), num_panels * num_blocks * UNIT_SUMS, 0.0f);
        for (int group = 0; group < num_groups; group += Unpacked::MAX_GROUPS) {
            const int count = std::min(Unpacked::MAX_GROUPS, num_groups - group);
            each_strip([&](const Strip& strip, int panel, int half) {
                multiply_strip(rows.grouped, begin, end, strip, group, count, scratch.unpacked,
                               [&](int row) { return sums(panel, half, row); });
            });
        }
    }
    Unfinished unfinished(rows, w, target);
    for (int panel = 0; panel < num_panels; panel++)
        for (int block = 0; block < num_blocks; block++) {
            float* unit = scratch.unit(panel * num_blocks + block);
            unfinished.begin(job.block_begin + block, job.panel_begin + panel, 0, unit, nullptr);
            unfinished.finish(rows.block_rows());
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
    auto run = [&](int i, int worker) {  // neighbours have the same panels, which then come from a cache
        const int block = i % row_jobs * job_blocks, panel = i / row_jobs * job_panels;
        const Job job = {block, std::min(block + job_blocks, num_blocks), panel, std::min(panel + job_panels, w.num_panels)};
        (rows.form == RowForm::GROUPED ? run_grouped_job : run_job)(rows, w, target, job, context.scratches[worker]);
    };
    auto enter = [&] { tiles_begin(rows.tile_rows()); };
    context.workers.share(row_jobs * panel_jobs, enter, run, tiles_end);
}
