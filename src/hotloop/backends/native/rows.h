// Rows of a batch on their way into products: normalised, rounded, and in the order of tiles, or grouped.
//
// In front of int8 weights rows are rounded to integers of 16 bits, by a scale for each row: a product is then the sum of
// two of bytes, is exact, and takes as long as one in bf16. Integers have 2^15 added, so that no byte has a sign. Up to
// eight rows have their high and their low bytes in the same tile, one below the other, for half of the products.

#pragma once

#include <cmath>

#include "grouped.h"
#include "quants.h"
#include "tiles.h"

#ifndef MAX_GROUPED_ROWS
#define MAX_GROUPED_ROWS (HAS_AMX ? 16 : 1 << 30)  // up to which strips are multiplied as they are
#endif

constexpr int LEAST = 1 << 15, MOST = 127 * 256;  // what is added to integers, and the largest of them before that

enum class RowForm { BF16, BYTES, GROUPED };

struct Rows {
    RowForm form;
    int num_rows, num_steps;
    Memory tiles;
    std::vector<float> scales;  // of each row, if they are bytes
    GroupedRows grouped;

    bool are_few() const { return form == RowForm::BYTES && num_rows <= 8; }
    int tile_rows() const { return are_few() ? 2 * num_rows : std::min(num_rows, 16); }
    int low_bytes() const { return are_few() ? num_rows * STEP_BYTES : TILE_BYTES; }       // after the high ones
    int low_sums() const { return are_few() ? num_rows * TILE_COLUMNS : 2 * TILE_SUMS; }
    int block_rows() const { return form == RowForm::BYTES ? 16 : 32; }
    int num_blocks() const { return divide_up(num_rows, block_rows()); }
    uint8_t* block(int i) const { return tiles.data() + (size_t)i * num_steps * PAIR_BYTES; }
    uint8_t* row(int i) const { return block(i / block_rows()) + i % block_rows() * STEP_BYTES; }
};

inline RowForm form_for(const Weights& w, int num_rows) {
    if (w.format == Format::STRIPS && num_rows <= MAX_GROUPED_ROWS) return RowForm::GROUPED;
    return w.format == Format::INT8 ? RowForm::BYTES : RowForm::BF16;
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

// `count` numbers a step at a time, the last one filled up with zeros.
template <int STEP, typename Number, typename Work>
void for_steps(const Number* from, int count, Work work) {
    int i = 0;
    for (; i + STEP <= count; i += STEP) work(from + i);
    if (i == count) return;
    alignas(64) Number rest[STEP] = {};
    memcpy(rest, from + i, (count - i) * sizeof(Number));
    work((const Number*)rest);
}

inline void put_bf16(const float* from, int count, uint8_t* to) {
    for_steps<32>(from, count, [&](const float* x) {
        store((uint16_t*)to, load(x), load(x + LANES));
        to += PAIR_BYTES;
    });
}

inline void put_bf16(const uint16_t* from, int count, uint8_t* to) {
    for_steps<32>(from, count, [&](const uint16_t* x) {
        memcpy(to, x, STEP_BYTES);
        to += PAIR_BYTES;
    });
}

// Low bytes so far after high ones. Returns what an integer stands for.
template <typename Number>
float put_bytes(const Number* from, int count, uint8_t* to, int low_bytes) {
    Vector most = {};
    for_steps<LANES>(from, count, [&](const Number* x) { most = larger(most, absolute(load(x))); });
    const float scale = largest_of(most) / MOST, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for_steps<64>(from, count, [&](const Number* x) {
        for (int i = 0; i < 64; i += LANES) {
            const Bits integers = (Bits)nearest(load(x + i) * inverse) + LEAST;
            store_low_bytes(to + i, integers >> 8), store_low_bytes(to + low_bytes + i, integers);
        }
        to += PAIR_BYTES;
    });
    return scale;
}

// Rows for these weights; `prepare(row, scratch)` says where one stands, having made it ready.
template <typename Prepare>
void pack_rows(Workers& workers, Rows& rows, const Weights& next, int num_rows, Prepare prepare) {
    const int num_in = next.num_in;
    rows.form = form_for(next, num_rows), rows.num_rows = num_rows, rows.num_steps = next.num_steps;
    if (rows.form == RowForm::GROUPED) rows.grouped.resize(num_rows, num_in);
    else rows.tiles.reserve((size_t)rows.num_blocks() * rows.num_steps * PAIR_BYTES);
    if (rows.form == RowForm::BYTES) rows.scales.resize(num_rows);
    workers.split(num_rows, 4, [&](int begin, int end) {
        static thread_local std::vector<float> scratch;
        scratch.resize(num_in);
        for (int row = begin; row < end; row++) {
            const auto* from = prepare(row, scratch.data());
            switch (rows.form) {
                case RowForm::GROUPED: round_row(rows.grouped, row, from); break;
                case RowForm::BYTES: rows.scales[row] = put_bytes(from, num_in, rows.row(row), rows.low_bytes()); break;
                case RowForm::BF16: put_bf16(from, num_in, rows.row(row));
            }
        }
    });
}
