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
constexpr int MIN_FINISHED_ROWS = 4;  // with fewer at a time, getting there takes longer than they do
constexpr int FETCH_BYTES = 8192;     // how far ahead weights are fetched that are used once

// Where results go. STORE and ADD: [row][column] floats; GATE: silu(gate) * up, [row][column / 2] bf16, or GATE_FLOATS. Beyond
// a limit gates and ups are cut off, and then it is gate * sigmoid(slope * gate) * (up + 1).
enum class Then { STORE, ADD, GATE, GATE_FLOATS };
struct Target {
    Then then;
    void* out;
    size_t stride;
    float limit = 0, slope = 1;
};

// A unit whose sums are not results yet, a few rows at a time; partial: [4 tiles], where chunks of bytes add up. Whatever
// a loop over rows needs is in locals: stores could change all else, as far as the compiler knows.
class Unfinished {
   public:
    Unfinished(const Rows& rows, const Weights& w, const Target& target) : rows_(rows), w_(w), target_(target) {}

    void begin(int first, int end, int panel, int chunk, const float* sums, float* partial) {
        first_ = row_ = first, end_ = end;
        panel_ = panel, chunk_ = chunk, sums_ = sums, partial_ = partial;
    }

    bool is_done() const { return row_ >= end_; }

    template <RowForm FORM>
    void finish(int count) {
        const int begin = row_, end = std::min(begin + count, end_), column = panel_ * PANEL_COLUMNS;
        row_ = end;
        if (FORM == RowForm::INT8 && chunk_ + 1 < rows_.chunks.count) {
            float* to = partial_;
            return each_row<FORM>(begin, end, [=](int, int place, Vector first, Vector second) {
                store(to + place, first), store(to + place + TILE_SUMS, second);
            });
        }
        const bool are_integers = FORM == RowForm::INT8 || FORM == RowForm::INT16;
        const Vector one = Vector{} + 1.0f, scale[2] = {are_integers ? load(&w_.scales[column]) : one,
                                                        are_integers ? load(&w_.scales[column + TILE_COLUMNS]) : one};
        const Vector bias[2] = {load(&w_.bias[column]), load(&w_.bias[column + TILE_COLUMNS])};
        auto put_each = [&](auto put) {
            each_row<FORM>(begin, end, [=](int row, int, Vector first, Vector second) {
                put(row, multiply_add(first, scale[0], bias[0]), multiply_add(second, scale[1], bias[1]));
            });
        };
        const size_t stride = target_.stride;
        const int left = w_.num_out - column;
        float* to = (float*)target_.out + column;
        if (target_.then == Then::GATE) {
            put_gated<uint16_t>(put_each);
        } else if (target_.then == Then::GATE_FLOATS) {
            put_gated<float>(put_each);
        } else if (left < PANEL_COLUMNS) {
            const bool is_added = target_.then == Then::ADD;
            put_each([=](int row, Vector first, Vector second) {
                put_some(to + row * stride, first, left, is_added);
                put_some(to + row * stride + TILE_COLUMNS, second, left - TILE_COLUMNS, is_added);
            });
        } else if (target_.then == Then::ADD) {
            put_each([=](int row, Vector first, Vector second) {
                float* at = to + row * stride;
                store(at, first + load(at)), store(at + TILE_COLUMNS, second + load(at + TILE_COLUMNS));
            });
        } else {
            put_each([=](int row, Vector first, Vector second) {
                store(to + row * stride, first), store(to + row * stride + TILE_COLUMNS, second);
            });
        }
    }

   private:
    // work(row, place of its sums, those of either half of the panel)
    template <RowForm FORM, typename Work>
    void each_row(int begin, int end, Work work) const {
        const float *sums = sums_, *partial = partial_;
        const int first = first_, low_sums = rows_.low_sums(), chunk = chunk_;
        const size_t stride = FORM == RowForm::INT8 ? rows_.chunks.count : 1;
        const float* scales = rows_.scales.data() + (FORM == RowForm::INT8 ? chunk : 0);
        const int32_t* columns = w_.sums.data() + (FORM == RowForm::INT16 ? panel_ * PANEL_COLUMNS : 0);
        auto sum = [=](int row, int place, int half) {
            if constexpr (FORM == RowForm::INT8) {
                const Vector scaled = floats(load_integers(sums + place)) * scales[row * stride];
                return chunk ? scaled + load(partial + place) : scaled;
            } else if constexpr (FORM == RowForm::INT16) {
                const Integers high = load_integers(sums + place), low = load_integers(sums + place + low_sums);
                const Integers added = load_integers(columns + half * TILE_COLUMNS) * (LEAST / 256);
                return multiply_add(floats(high - added), Vector{} + 256.0f, floats(low)) * scales[row];
            } else {
                return load(sums + place);
            }
        };
        for (int row = begin; row < end; row++) {
            const unsigned at = row - first;
            const int place = at / 16 * 2 * TILE_SUMS + at % 16 * TILE_COLUMNS;
            work(row, place, sum(row, place, 0), sum(row, place + TILE_SUMS, 1));
        }
    }

    template <typename Number, typename PutEach>
    void put_gated(PutEach put_each) const {
        const size_t stride = target_.stride;
        const int left = w_.num_out / 2 - panel_ * TILE_COLUMNS;
        const float limit = target_.limit, slope = target_.slope;
        auto gated = [=](Vector gate, Vector up) {
            auto act = [](Vector x) { return sizeof(Number) == sizeof(float) ? exact_silu(x) : silu(x); };
            if (limit == 0) return act(gate) * up;
            const Vector most = Vector{} + limit;
            gate = smaller(gate, most), up = larger(smaller(up, most), -most);
            return act(gate * slope) / slope * (up + 1.0f);
        };
        Number* to = (Number*)target_.out + panel_ * TILE_COLUMNS;
        if (left >= LANES) {
            put_each([=](int row, Vector gate, Vector up) { store(to + row * stride, gated(gate, up)); });
        } else {
            put_each([=](int row, Vector gate, Vector up) {
                alignas(64) Number some[LANES];
                store(some, gated(gate, up));
                memcpy(to + row * stride, some, left * sizeof(Number));
            });
        }
    }

    static void put_some(float* to, Vector v, int count, bool is_added) {
        for (int i = 0; i < std::min(count, LANES); i++) to[i] = is_added ? to[i] + v[i] : v[i];
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

    template <RowForm FORM>
    void step() {
        fetch(fetched, num_lines * LINE_BYTES), fetched += num_lines * LINE_BYTES;
        if (!unfinished.is_done()) unfinished.finish<FORM>(num_rows);
    }
};

// sums[4 tiles] = (or +=, if it goes on) a block of rows * a panel of weights, and one more step of them, if there is one
// to come last. One: the block has no second tile of rows.
template <RowForm FORM>
void multiply(const uint8_t* rows, const uint8_t* weights, int num_steps, const uint8_t* last, bool one, bool goes_on,
              float* sums, Meanwhile meanwhile) {
#define DOT(sums, rows, weights) \
    if constexpr (FORM == RowForm::INT8) tile_dot_bytes(sums, rows, weights); \
    else if constexpr (FORM == RowForm::INT16) tile_dot_unsigned(sums, rows, weights); \
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
        meanwhile.step<FORM>();
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

// Room for the chunk of a panel that a worker unpacked, for the weights of its outliers, and for the sums that it has under way.
struct Scratch {
    Memory chunk{(size_t)CHUNK_STEPS * PAIR_BYTES}, outliers{PAIR_BYTES};
    Memory sums{(size_t)(MAX_JOB_BLOCKS * MAX_JOB_PANELS + 2) * UNIT_SUMS * sizeof(float)};
    Unpacked unpacked;
    alignas(64) float widened[FLOAT_CHUNK * PANEL_COLUMNS];

    float* unit(int i) const { return (float*)sums.data() + (size_t)i * UNIT_SUMS; }
    float* next(int num_done) const { return unit(MAX_JOB_BLOCKS * MAX_JOB_PANELS + num_done % 2); }
};

template <RowForm FORM>
void run_job(const Rows& rows, const Weights& w, const Target& target, const Job& job, Scratch& scratch) {
    constexpr bool are_bytes = FORM == RowForm::INT8, are_words = FORM == RowForm::INT16;
    const int num_blocks = job.block_end - job.block_begin, num_steps = w.num_steps;
    const bool is_read_once = num_blocks == 1 && !are_bytes;
    const Chunks chunks = is_read_once ? Chunks{num_steps, 1} : rows.chunks;
    Unfinished unfinished(rows, w, target);
    int num_done = 0;
    if (is_read_once) fetch(w.place(job.panel_begin, 0), FETCH_BYTES);
    auto run_chunk = [&](int chunk, int panel) {
        const int step = chunks.begin(chunk), count = chunks.end(chunk) - step;
        const uint8_t* weights = tiles_of(w, panel, step, count, scratch.chunk.data());
        if (are_bytes) gather_outliers(rows.outliers[chunk], weights, scratch.outliers.data());
        const uint8_t* next = is_read_once                ? weights + FETCH_BYTES
                              : panel + 1 < job.panel_end ? w.place(panel + 1, step)
                                                          : w.place(job.panel_begin, step + count);
        const int lines = w.format == Format::PACKED_GGML ? 0 : divide_up(PAIR_BYTES / LINE_BYTES, num_blocks);
        for (int i = 0; i < num_blocks; i++, num_done++) {
            const int block = job.block_begin + i;
            const bool one = rows.are_few() || (!are_words && rows.num_rows - block * 32 <= 16);
            float* unit = scratch.unit((panel - job.panel_begin) * num_blocks + i);
            float* sums = are_bytes || chunks.count == 1 ? scratch.next(num_done) : unit;
            const Meanwhile meanwhile = {next + (size_t)i * count * lines * LINE_BYTES, lines, unfinished,
                                         std::max(divide_up(rows.block_rows(), count), MIN_FINISHED_ROWS)};
            const uint8_t* from = rows.block(block) + (are_bytes ? rows.chunk_offset(chunk) : (size_t)step * PAIR_BYTES);
            multiply<FORM>(from, weights, count, are_bytes ? scratch.outliers.data() : nullptr, one, !are_bytes && step > 0,
                           sums, meanwhile);
            if (!are_bytes && chunk + 1 < chunks.count) continue;
            const int first = block * rows.block_rows();
            unfinished.begin(first, std::min(first + rows.block_rows(), rows.num_rows), panel, chunk, sums, unit);
        }
    };
    for (int chunk = 0; chunk < chunks.count; chunk++)
        for (int panel = job.panel_begin; panel < job.panel_end; panel++) run_chunk(chunk, panel);
    unfinished.finish<FORM>(rows.block_rows());
}

// Rows [begin, end) times panels [begin, end), for rows that are not in tiles: grouped ones, by codes that are unpacked but not
// widened, or not even that for a few rows, and floats.
struct RowJob {
    int begin, end, panel_begin, panel_end;
};

template <RowForm FORM>
void run_rows(const Rows& rows, const Weights& w, const Target& target, const RowJob& job, Scratch& scratch) {
    const int begin = job.begin, end = job.end, num_panels = job.panel_end - job.panel_begin;
    const int num_blocks = divide_up(end - begin, 32);
    auto sums = [&](int panel, int half, int row) {
        const int at = row - begin;
        return scratch.unit(panel * num_blocks + at / 32) + (at % 32 / 16 * 2 + half) * TILE_SUMS + at % 16 * 16;
    };
    auto each_strip = [&](auto work) {
        for (int i = 0; i < 2 * num_panels; i++) work(w.strips[2 * job.panel_begin + i], i / 2, i % 2);
    };
    const bool are_few = FORM == RowForm::GROUPED && end - begin <= MAX_FEW_ROWS;
    if (!are_few) std::fill_n(scratch.unit(0), num_panels * num_blocks * UNIT_SUMS, 0.0f);
    if constexpr (FORM == RowForm::FLOATS) {
        for (int k = 0; k < w.num_in; k += FLOAT_CHUNK)
            for (int panel = 0; panel < num_panels; panel++) {
                const int count = std::min(FLOAT_CHUNK, w.num_in - k);
                const float* weights = floats_of(w, job.panel_begin + panel, k, count, scratch.widened);
                multiply_floats(rows.floats, begin, end, weights, k, count,
                                [&](int row, int half) { return sums(panel, half, row); });
            }
    } else if (are_few) {
        each_strip([&](const Strip& strip, int panel, int half) {
            multiply_few(rows.grouped, begin, end, strip, [&](int row) { return sums(panel, half, row); });
        });
    } else {
        for (int group = 0; group < rows.grouped.num_groups; group += Unpacked::MAX_GROUPS) {
            const int count = std::min(Unpacked::MAX_GROUPS, rows.grouped.num_groups - group);
            each_strip([&](const Strip& strip, int panel, int half) {
                multiply_strip(rows.grouped, begin, end, strip, group, count, scratch.unpacked,
                               [&](int row) { return sums(panel, half, row); });
            });
        }
    }
    Unfinished unfinished(rows, w, target);
    for (int panel = 0; panel < num_panels; panel++)
        for (int block = 0; block < num_blocks; block++) {
            const int first = begin + block * 32;
            float* unit = scratch.unit(panel * num_blocks + block);
            unfinished.begin(first, std::min(first + 32, end), job.panel_begin + panel, 0, unit, nullptr);
            unfinished.finish<FORM>(32);
        }
}

struct Context {
    explicit Context(int num_workers) : workers(num_workers), scratches(num_workers), packing(num_workers - 1) {}
    Workers workers;
    std::vector<Scratch> scratches;
    Background packing;
};

// The jobs of a product: about four for each worker, so that none waits long for another. A worker has rows of its own,
// which it has just packed, and multiplies all of them with some panels, which are in a cache then, before the next ones.
class Jobs {
   public:
    Jobs(int num_blocks, int num_panels, int num_workers) : num_blocks_(num_blocks), num_panels_(num_panels) {
        const int num_wanted = 4 * num_workers;
        const int most_blocks = divide_up(num_blocks, std::max(divide_up(num_wanted, num_panels), num_workers));
        int num_parts = divide_up(num_blocks, std::clamp(most_blocks, MIN_JOB_BLOCKS, MAX_JOB_BLOCKS));
        if (num_parts > num_workers) num_parts = divide_up(num_parts, num_workers) * num_workers;
        job_blocks_ = divide_up(num_blocks, num_parts), row_jobs_ = divide_up(num_blocks, job_blocks_);
        job_panels_ = std::clamp(num_panels * row_jobs_ / num_wanted, 1, MAX_JOB_PANELS);
        panel_jobs_ = divide_up(num_panels, job_panels_), own_jobs_ = divide_up(row_jobs_, num_workers);
    }

    int count() const { return row_jobs_ * panel_jobs_; }

    Job at(int i) const {
        const int first = i / (own_jobs_ * panel_jobs_) * own_jobs_, num_own = std::min(own_jobs_, row_jobs_ - first);
        const int in_own = i - first * panel_jobs_;
        const int block = (first + in_own % num_own) * job_blocks_, panel = in_own / num_own * job_panels_;
        return {block, std::min(block + job_blocks_, num_blocks_), panel, std::min(panel + job_panels_, num_panels_)};
    }

   private:
    int num_blocks_, num_panels_, job_blocks_, row_jobs_, job_panels_, panel_jobs_;
    int own_jobs_;  // parts of the rows that one worker has
};

// These rows by these weights: of many matrices each multiplies some.
struct Piece {
    const Weights* weights;
    int begin, end;
};

// The same for all of them at once. Rows are in no tiles, and weights of one shape and form.
inline void matmul_pieces(Context& context, const Rows& rows, const std::vector<Piece>& pieces, const Target& target) {
    constexpr int most_rows = MAX_JOB_BLOCKS * 32;
    int num_panels = 0;
    for (const Piece& piece : pieces) num_panels += piece.weights->num_panels * divide_up(piece.end - piece.begin, most_rows);
    const int job_panels = std::clamp(num_panels / (4 * context.workers.num_workers), 1, MAX_JOB_PANELS);
    std::vector<std::pair<const Weights*, RowJob>> jobs;
    for (const Piece& piece : pieces)
        for (int row = piece.begin; row < piece.end; row += most_rows)
            for (int panel = 0; panel < piece.weights->num_panels; panel += job_panels) {
                const int last = std::min(panel + job_panels, piece.weights->num_panels);
                jobs.push_back({piece.weights, {row, std::min(row + most_rows, piece.end), panel, last}});
            }
    auto none = [] {};
    auto run = [&](int i, int worker) {
        const auto run_one = rows.form == RowForm::FLOATS ? run_rows<RowForm::FLOATS> : run_rows<RowForm::GROUPED>;
        run_one(rows, *jobs[i].first, target, jobs[i].second, context.scratches[worker]);
    };
    if (!jobs.empty()) context.workers.share((int)jobs.size(), none, run, none);
}

inline void matmul(Context& context, const Rows& rows, const Weights& w, const Target& target) {
    if (!rows.num_blocks()) return;
    if (rows.form == RowForm::FLOATS) return matmul_pieces(context, rows, {{&w, 0, rows.num_rows}}, target);  // widened once
    const Jobs jobs(rows.num_blocks(), w.num_panels, context.workers.num_workers);
    auto run = [&](int i, int worker) {
        const Job job = jobs.at(i);
        Scratch& scratch = context.scratches[worker];
        const RowJob own = {job.block_begin * 32, std::min(job.block_end * 32, rows.num_rows), job.panel_begin, job.panel_end};
        switch (rows.form) {
            case RowForm::BF16: return run_job<RowForm::BF16>(rows, w, target, job, scratch);
            case RowForm::INT8: return run_job<RowForm::INT8>(rows, w, target, job, scratch);
            case RowForm::INT16: return run_job<RowForm::INT16>(rows, w, target, job, scratch);
            case RowForm::GROUPED: return run_rows<RowForm::GROUPED>(rows, w, target, own, scratch);
            case RowForm::FLOATS: return;
        }
    };
    auto enter = [&] { tiles_begin(rows.tile_rows()); };
    context.workers.share(jobs.count(), enter, run, tiles_end);
}
